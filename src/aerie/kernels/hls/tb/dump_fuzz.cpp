// Feeds the dump reader with damaged dumps: deterministic mutations of valid files, splices of two
// of them, and random bytes. Built with -fsanitize=address,undefined; every input lies in a heap
// block of exactly its size, so a read one byte too far ends the run.
//
//   dump_fuzz INPUTS SEED FILE...
//
// Prints how often the reader gave which answer. Exit status 0: every input was answered.
#include <cstdlib>
#include <memory>

#include "dump.hpp"

using namespace aerie::dump;

namespace {

// xorshift64*: the same inputs on every machine.
struct Random {
    std::uint64_t state;
    std::uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545F4914F6CDD1Dull;
    }
    std::uint64_t below(std::uint64_t limit) { return limit ? next() % limit : 0; }
};

using Bytes = std::vector<std::uint8_t>;

std::uint64_t header_end(const Bytes& bytes) {
    if (bytes.size() < 8) return bytes.size();
    std::uint64_t length = 0;
    for (int index = 7; index >= 0; --index) length = length << 8 | bytes[index];
    return length < bytes.size() - 8 ? 8 + length : bytes.size();
}

// A place to damage: three times in four in the header, where the parser works.
std::uint64_t place(Random& random, const Bytes& bytes) {
    return random.below(random.below(4) ? header_end(bytes) : bytes.size());
}

// Characters and words that mean something to the parser.
const char* const kTokens[] = {
    "\"",      "{",       "}",      "[",     "]",    ":",    ",",       "\\",
    "\\u0000", "\\u00e9", "\\u",    "-",     "-1",   "0",    "00",      "1e9",
    "1.0",     "true",    "null",   "NaN",   "F32",  "F64",  "BOOL",    "I64",
    "[]",      "{}",      "\"\"",   "[0,0]", "dtype", "shape", "scalars", "absent",
    "format",  "\"a\":",  "__metadata__",     "data_offsets",
    "281474976710655",    "281474976710656",  "18446744073709551616",
    "{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}",
};

void insert(Bytes& bytes, std::uint64_t at, const std::uint8_t* from, std::uint64_t count) {
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), from, from + count);
}

void erase(Bytes& bytes, std::uint64_t at, std::uint64_t count) {
    const std::uint64_t most = bytes.size() - at;
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    bytes.erase(first, first + static_cast<std::ptrdiff_t>(count < most ? count : most));
}

// Make the length field say where the header ends now, so that the damage behind it is reached.
void repair_length(Bytes& bytes, std::uint64_t length) {
    for (int index = 0; index < 8 && bytes.size() >= 8; ++index) {
        bytes[index] = static_cast<std::uint8_t>(length >> (8 * index));
    }
}

// The same, with spaces that bring the header to a multiple of 8, as the format demands.
void realign(Bytes& bytes, std::uint64_t length) {
    const std::uint64_t end = 8 + length, missing = (8 - length % 8) % 8;
    if (end > bytes.size()) return;
    const Bytes spaces(missing, ' ');
    insert(bytes, end, spaces.data(), missing);
    repair_length(bytes, length + missing);
}

void put_token(Random& random, Bytes& bytes, bool replaces) {
    const char* token = kTokens[random.below(sizeof(kTokens) / sizeof(kTokens[0]))];
    const std::uint64_t count = std::strlen(token), at = place(random, bytes);
    if (replaces) erase(bytes, at, 1 + random.below(6));
    insert(bytes, at, reinterpret_cast<const std::uint8_t*>(token), count);
}

void mutate_once(Random& random, Bytes& bytes) {
    if (bytes.empty()) return;
    const std::uint64_t at = place(random, bytes);
    switch (random.below(10)) {
        case 0: bytes[at] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
        case 1: bytes[at] = static_cast<std::uint8_t>(random.next()); break;
        case 2: bytes[at] = static_cast<std::uint8_t>('0' + random.below(10)); break;
        case 3: bytes.resize(at); break;
        case 4: erase(bytes, at, 1 + random.below(16)); break;
        case 5: {  // a piece of itself again
            const std::uint64_t most = bytes.size() - at;
            const std::uint64_t count = 1 + random.below(most < 64 ? most : 64);
            const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
            const Bytes piece(first, first + static_cast<std::ptrdiff_t>(count));
            insert(bytes, place(random, bytes), piece.data(), piece.size());
            break;
        }
        case 6: repair_length(bytes, random.next() >> random.below(64)); break;
        case 7: bytes.resize(bytes.size() + 1 + random.below(32)); break;
        case 8: put_token(random, bytes, true); break;
        default: put_token(random, bytes, false); break;
    }
}

Bytes make_input(Random& random, const std::vector<Bytes>& seeds) {
    const std::uint64_t kind = random.below(16);
    if (kind == 0) {  // noise, now and then behind a length that fits
        Bytes bytes(random.below(512));
        for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
        if (random.below(2)) repair_length(bytes, random.below(bytes.size() + 1));
        return bytes;
    }
    Bytes bytes = seeds[random.below(seeds.size())];
    if (kind == 1) {  // the head of one and the tail of another
        const Bytes& other = seeds[random.below(seeds.size())];
        bytes.resize(place(random, bytes));
        const std::uint64_t from = random.below(other.size());
        insert(bytes, bytes.size(), other.data() + from, other.size() - from);
        return bytes;
    }
    const std::uint64_t size = bytes.size(), length = header_end(bytes) - 8;
    const std::uint64_t times = 1 + random.below(kind < 10 ? 2 : 8);
    for (std::uint64_t turn = 0; turn < times; ++turn) mutate_once(random, bytes);
    // Mostly the length is right again: what follows it is what is tested.
    const std::uint64_t now = length + bytes.size() - size;
    const std::uint64_t choice = random.below(4);
    if (choice == 1) repair_length(bytes, now);
    if (choice > 1) realign(bytes, now);
    return bytes;
}

// Read every byte and every value the reader vouched for.
std::uint64_t touch(const Dump& dump) {
    std::uint64_t sum = static_cast<std::uint64_t>(dump.card_version);
    for (int index = 0; index < dump.container.n_arrays; ++index) {
        const Array& array = dump.container.arrays[index];
        const std::uint64_t n_bytes = array.end - array.start;
        for (std::uint64_t byte = 0; byte < n_bytes; ++byte) sum += array.data[byte];
        if (const auto* wide = values<std::int64_t>(&array)) {
            for (std::uint64_t item = 0; item < array.elements; ++item) {
                sum += static_cast<std::uint64_t>(wide[item]);
            }
        }
    }
    for (int index = 0; index < dump.n_scalars; ++index) {
        for (int item = 0; item < dump.scalars[index].count; ++item) {
            sum += static_cast<std::uint64_t>(dump.scalars[index].values[item]);
        }
    }
    for (int index = 0; index < dump.n_absent; ++index) sum += std::strlen(dump.absent[index]);
    return sum + std::strlen(dump.kernel) + std::strlen(dump.outcome) + std::strlen(dump.number);
}

Error answer(const Bytes& bytes, Dump& dump, std::uint64_t& sum) {
    // operator new aligns to 16, as a reader of a mapped file would see it.
    std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[bytes.size()]);
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    const Error error = parse(exact.get(), bytes.size(), dump);
    if (error == Error::ok) sum += touch(dump);
    return error;
}

bool read_seeds(int count, char** names, std::vector<Bytes>& out) {
    static Dump dump;
    for (int index = 0; index < count; ++index) {
        Storage storage;
        std::uint64_t size = 0, sum = 0;
        if (read_bytes(names[index], storage, size) != Error::ok) return false;
        const auto* first = reinterpret_cast<const std::uint8_t*>(storage.data());
        out.emplace_back(first, first + size);
        if (answer(out.back(), dump, sum) != Error::ok) return false;
    }
    return !out.empty();
}

}  // namespace

int main(int count, char** arguments) {
    std::vector<Bytes> seeds;
    if (count < 4 || !read_seeds(count - 3, arguments + 3, seeds)) {
        std::fprintf(stderr, "usage: dump_fuzz INPUTS SEED FILE..., every FILE a valid dump\n");
        return 2;
    }
    const std::uint64_t n_inputs = std::strtoull(arguments[1], nullptr, 10);
    Random random{std::strtoull(arguments[2], nullptr, 10) * 2 + 1};
    static Dump dump;
    std::uint64_t answers[static_cast<int>(Error::array_name) + 1] = {}, sum = 0;
    for (std::uint64_t input = 0; input < n_inputs; ++input) {
        ++answers[static_cast<int>(answer(make_input(random, seeds), dump, sum))];
    }
    std::printf("%llu inputs from %zu dumps, seed %s: no crash, nothing out of bounds\n",
                static_cast<unsigned long long>(n_inputs), seeds.size(), arguments[2]);
    for (int index = 0; index <= static_cast<int>(Error::array_name); ++index) {
        std::printf("%10s %llu\n", describe(static_cast<Error>(index)),
                    static_cast<unsigned long long>(answers[index]));
    }
    std::printf("checksum of what was accepted: %016llx\n", static_cast<unsigned long long>(sum));
    return 0;
}
