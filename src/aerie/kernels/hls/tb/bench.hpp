// What every test bench does: read dumps, call the kernel, compare what it wrote.
//
// A bench is a host program, not hardware: it may use the heap. Results live in buffers of exactly
// the size the card states, so that a sanitizer sees a write past their end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "dump.hpp"

namespace aerie::bench {

// Fresh results hold this byte, so that an entry a kernel forgets is wrong and not luckily zero.
constexpr int POISON = 0xA5;

// What a bench returns instead of a kernel's code when the shapes contradict each other: there the
// host refuses, for C++ sees pointers and sizes only.
constexpr std::int32_t HOST = -1;

// Who recorded a dump, and so how far from the reference it may be.
enum class Recorder { reference, cpu, gpu };

// Ulps an output may be from the reference, on a CPU and on a GPU; 0 for everything but floats.
struct Ulps {
    std::int64_t cpu;
    std::int64_t gpu;
};

constexpr Ulps EXACT = {0, 0};

// One array the kernel writes, and the record to compare it with.
struct Written {
    const char* name;
    std::vector<std::uint8_t> bytes;
    std::size_t item;
    bool is_float;
    Ulps ulps;
};

// Floats as integers in the same order; +0 and -0 coincide.
inline std::int64_t ordered(const std::uint8_t* bytes) {
    std::int32_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    const std::int64_t wide = bits;
    return wide < 0 ? -(std::int64_t{1} << 31) - wide : wide;
}

inline bool is_nan(const std::uint8_t* bytes) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof(value));
    return value != value;
}

inline bool is_close(const std::uint8_t* left, const std::uint8_t* right, std::int64_t ulps) {
    if (is_nan(left) || is_nan(right)) return is_nan(left) && is_nan(right);
    const std::int64_t distance = ordered(left) - ordered(right);
    return distance <= ulps && -distance <= ulps;
}

// One recorded call: hands out its inputs, makes room for its results, compares them.
class Call {
  public:
    explicit Call(const dump::Dump& record) : record_(record) {}

    // Entries of a port along an axis, less `offset`, over `divisor`; `absent` if it is not there.
    std::int32_t size(const char* port, int axis, std::int64_t offset, std::int64_t divisor,
                      std::int32_t absent) const {
        const dump::Array* array = input(port);
        if (!array || array->rank <= axis || divisor <= 0) return absent;
        return static_cast<std::int32_t>(
            (static_cast<std::int64_t>(array->shape[axis]) - offset) / divisor);
    }

    // The shape the sizes ask of a port, if it is there.
    void expect(const char* port, std::initializer_list<std::int64_t> shape) {
        const dump::Array* array = input(port);
        if (!array) return;
        is_consistent_ = is_consistent_ && array->rank == static_cast<int>(shape.size());
        int axis = 0;
        for (const std::int64_t entries : shape) {
            is_consistent_ = is_consistent_ && axis < array->rank &&
                             static_cast<std::int64_t>(array->shape[axis]) == entries;
            ++axis;
        }
    }

    bool is_consistent() const { return is_consistent_; }

    // Bytes of an element of a port.
    std::int32_t item_bytes(const char* port) const {
        const dump::Array* array = input(port);
        return array ? static_cast<std::int32_t>(dump::info(array->dtype).size) : 4;
    }

    std::int32_t scalar(const char* name) const {
        const dump::Scalar* found = dump::find_scalar(record_, name);
        return found ? static_cast<std::int32_t>(found->values[0]) : 0;
    }

    const std::int32_t* list(const char* name) {
        const dump::Scalar* found = dump::find_scalar(record_, name);
        lists_.emplace_back(new std::vector<std::int32_t>);
        for (int i = 0; found && i < found->count; ++i) {
            lists_.back()->push_back(static_cast<std::int32_t>(found->values[i]));
        }
        return lists_.back()->data();
    }

    std::int32_t length(const char* name) const {
        const dump::Scalar* found = dump::find_scalar(record_, name);
        return found ? found->count : 0;
    }

    std::int32_t has(const char* port) const { return input(port) ? 1 : 0; }

    template <typename Element>
    const Element* in(const char* port) {
        const dump::Array* array = input(port);
        if (!array) return nullptr;
        // A copy of exactly its size: a sanitizer sees a read past its end, but none in the file.
        const std::size_t size = array->elements * dump::info(array->dtype).size;
        read_.emplace_back(new std::vector<std::uint8_t>(array->data, array->data + size));
        return reinterpret_cast<const Element*>(read_.back()->data());
    }

    // An array written in place: a copy of its state before the call.
    template <typename Element>
    Element* inout(const char* port) {
        const dump::Array* array = input(port);
        if (!array) return nullptr;
        const std::size_t size = array->elements * dump::info(array->dtype).size;
        return room<Element>(port, array->data, size, EXACT);
    }

    template <typename Element>
    Element* out(const char* port, std::int64_t entries, Ulps ulps) {
        // A capacity below zero gets no room; refusing it is the kernel's part.
        const std::int64_t legal = std::max<std::int64_t>(entries, 0);
        return room<Element>(port, nullptr, legal * sizeof(Element), ulps);
    }

    // Rows of hidden states, `entries` of the width their input has.
    std::uint16_t* out_hidden(const char* port, std::int64_t entries, std::int32_t item) {
        return room<std::uint16_t>(port, nullptr, entries * item, EXACT);
    }

    // The name of the first array that differs from the record, or null.
    const char* difference(Recorder recorder) const {
        for (const auto& written : written_) {
            if (!is_same(*written, recorder)) return written->name;
        }
        return nullptr;
    }

    // Whether nothing that existed before the call has changed.
    bool is_untouched() const {
        for (const auto& written : written_) {
            const dump::Array* before = input(written->name);
            if (!before || written->bytes.empty()) continue;
            if (std::memcmp(written->bytes.data(), before->data, written->bytes.size()) != 0) {
                return false;
            }
        }
        return true;
    }

  private:
    const dump::Array* input(const char* port) const {
        char name[dump::kMaxName];
        std::snprintf(name, sizeof(name), "in.%s", port);
        const dump::Array* found = dump::find(record_, name);
        if (found) return found;
        std::snprintf(name, sizeof(name), "before.%s", port);
        return dump::find(record_, name);
    }

    template <typename Element>
    Element* room(const char* port, const std::uint8_t* from, std::size_t size, Ulps ulps) {
        const bool is_float = static_cast<Element>(0.5F) != static_cast<Element>(0);
        written_.emplace_back(new Written{port, {}, sizeof(Element), is_float, ulps});
        std::vector<std::uint8_t>& bytes = written_.back()->bytes;
        bytes.assign(size, POISON);
        if (from && size) std::memcpy(bytes.data(), from, size);
        return reinterpret_cast<Element*>(bytes.data());
    }

    bool is_same(const Written& written, Recorder recorder) const {
        char name[dump::kMaxName];
        std::snprintf(name, sizeof(name), "out.%s", written.name);
        const dump::Array* array = dump::find(record_, name);
        // The values to blame are not part of a record.
        if (!array) return std::strcmp(written.name, "detail") == 0;
        if (array->rank == 0) return is_same_number(written, *array);
        const std::size_t size = array->elements * dump::info(array->dtype).size;
        if (size != written.bytes.size()) return false;
        if (!written.is_float) {
            return size == 0 || std::memcmp(written.bytes.data(), array->data, size) == 0;
        }
        const std::int64_t recorded =
            recorder == Recorder::gpu ? written.ulps.gpu : written.ulps.cpu;
        const std::int64_t allowed =
            written.ulps.cpu + (recorder == Recorder::reference ? 0 : recorded);
        for (std::size_t at = 0; at < size; at += written.item) {
            if (!is_close(written.bytes.data() + at, array->data + at, allowed)) return false;
        }
        return true;
    }

    // A host integer is recorded as 64 bits without axes; the kernel writes 32.
    static bool is_same_number(const Written& written, const dump::Array& array) {
        std::int32_t made = 0;
        std::int64_t recorded = 0;
        if (written.bytes.size() != sizeof(made)) return false;
        if (array.end - array.start != sizeof(recorded)) return false;
        std::memcpy(&made, written.bytes.data(), sizeof(made));
        std::memcpy(&recorded, array.data, sizeof(recorded));
        return made == recorded;
    }

    const dump::Dump& record_;
    bool is_consistent_ = true;
    std::vector<std::unique_ptr<std::vector<std::uint8_t>>> read_;
    std::vector<std::unique_ptr<Written>> written_;
    std::vector<std::unique_ptr<std::vector<std::int32_t>>> lists_;
};

// What a bench knows of its kernel.
struct Kernel {
    const char* name;
    std::int64_t version;
    std::int32_t own_bound;  // codes from here on are limits of the hardware, not of the card
    std::int32_t (*run)(Call&);
    std::int32_t (*check)(Call&);  // null where the kernel writes nothing in place
};

inline Recorder recorder_of(const dump::Dump& record) {
    static char text[dump::kMaxText];
    if (dump::text_of(record.container, "provenance", text, dump::kMaxText) != dump::Error::ok) {
        return Recorder::gpu;
    }
    if (std::strstr(text, "\"backend\": \"reference\"")) return Recorder::reference;
    return std::strstr(text, "\"device\": \"cuda") ? Recorder::gpu : Recorder::cpu;
}

// One dump: null if the kernel does what the record says, else what is wrong.
inline const char* judge(const Kernel& kernel, const dump::Dump& record) {
    const Recorder recorder = recorder_of(record);
    const bool has_run = std::strcmp(record.outcome, "KernelBoundsError") != 0;
    if (kernel.check) {
        Call asked(record);
        const std::int32_t code = kernel.check(asked);
        if (has_run && code == 0 && asked.difference(recorder)) return "the check's status";
    }
    Call call(record);
    const std::int32_t code = kernel.run(call);
    if (code == HOST) return has_run ? "the shapes contradict each other" : nullptr;
    if (code != 0 && !call.is_untouched()) return "refused, yet something was written";
    if (!has_run) return code != 0 ? nullptr : "a call beyond a bound was not refused";
    if (code != 0) return code >= kernel.own_bound ? nullptr : "refused a call within the bounds";
    return call.difference(recorder);
}

// Every file on the command line that holds a dump of the kernel; 0 if all agree.
inline int run_all(const Kernel& kernel, int argc, char** argv) {
    static dump::Dump record;
    int n_run = 0, n_failed = 0;
    for (int i = 1; i < argc; ++i) {
        dump::Storage storage;
        const dump::Error error = dump::read_file(argv[i], storage, record);
        const char* wrong = error == dump::Error::ok ? nullptr : "not a dump";
        if (!wrong && std::strcmp(record.kernel, kernel.name) != 0) continue;
        if (!wrong && record.card_version != kernel.version) wrong = "another card version";
        // Names, dtypes and shapes are the host's business: C++ cannot be called so at all.
        const bool is_typed = wrong || std::strcmp(record.outcome, "KernelDtypeError") != 0;
        if (!is_typed) continue;
        if (!wrong) wrong = judge(kernel, record);
        ++n_run;
        n_failed += wrong ? 1 : 0;
        if (wrong) std::printf("%s: %s differs: %s\n", kernel.name, argv[i], wrong);
    }
    std::printf("%-36s %3d dumps, %d differ\n", kernel.name, n_run, n_failed);
    return n_failed == 0 ? 0 : 1;
}

}  // namespace aerie::bench
