// Says of every file named whether it is a dump, and what it holds; exit status 1 if any is not.
#include <cinttypes>

#include "dump.hpp"

using namespace aerie::dump;

static void print(const Dump& dump) {
    std::printf(" %s %s version %" PRId64 " outcome %s, %d arrays, %d scalars, %d absent\n",
                dump.number, dump.kernel, dump.card_version, dump.outcome,
                dump.container.n_arrays, dump.n_scalars, dump.n_absent);
}

int main(int count, char** names) {
    static Dump dump;
    int status = count > 1 ? 0 : 2;
    for (int index = 1; index < count; ++index) {
        Storage storage;
        const Error error = read_file(names[index], storage, dump);
        std::printf("%s: %s", names[index], describe(error));
        if (error == Error::ok) {
            print(dump);
        } else {
            std::printf("\n");
            status = 1;
        }
    }
    return status;
}
