// Reads a dump of one kernel call (docs/dump_format.md) in a test bench, without Python.
//
// Nothing in the file is trusted: every character of the header is checked before it is used, and
// every array lies inside the file, aligned for its type. No exceptions, no recursion, no heap but
// the buffer of `read_file`. What `parse` hands out points into the caller's bytes.
//
//   aerie::dump::Storage storage;
//   static aerie::dump::Dump dump;
//   if (aerie::dump::read_file(path, storage, dump) != aerie::dump::Error::ok) return 1;
//   const auto* scores = aerie::dump::values<float>(aerie::dump::find(dump, "in.work_scores"));
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "dump_container.hpp"

namespace aerie::dump {

constexpr std::uint64_t kFileLimit = std::uint64_t{1} << 31;
// What any card stays below.
constexpr int kMaxScalars = 16, kMaxList = 256, kMaxText = 8192;

// A host value: an integer, a truth value (0 or 1), or a list of integers.
struct Scalar {
    char name[kMaxName];
    bool is_list;
    int count;
    std::int64_t values[kMaxList];
};

struct Dump {
    Container container;
    char kernel[kMaxName], number[kMaxName], outcome[kMaxName];
    std::int64_t card_version;
    Scalar scalars[kMaxScalars];
    int n_scalars;
    char absent[kMaxArrays][kMaxName];
    int n_absent;
};

inline const Text* find_text(const Container& container, const char* key) {
    for (int index = 0; index < container.n_metadata; ++index) {
        if (std::strcmp(container.metadata[index].key, key) == 0) {
            return &container.metadata[index];
        }
    }
    return nullptr;
}

// A metadata string, decoded.
inline Error text_of(const Container& container, const char* key, char* out, int capacity) {
    const Text* text = find_text(container, key);
    if (!text) return Error::metadata;
    Cursor cursor{text->begin, text->end};
    return take_string(cursor, out, capacity);
}

inline Error take_scalar(Cursor& cursor, Scalar& scalar) {
    scalar.is_list = false;
    scalar.count = 1;
    scalar.values[0] = 0;
    if (take_word(cursor, "false")) return Error::ok;
    if (take_word(cursor, "true")) {
        scalar.values[0] = 1;
        return Error::ok;
    }
    skip_space(cursor);
    if (cursor.at < cursor.end && *cursor.at == '[') {
        std::uint64_t values[kMaxList];
        scalar.is_list = true;
        const Error error = take_naturals(cursor, values, kMaxList, scalar.count);
        if (error != Error::ok) return error;
        for (int index = 0; index < scalar.count; ++index) {
            scalar.values[index] = static_cast<std::int64_t>(values[index]);
        }
        return Error::ok;
    }
    return take_integer(cursor, scalar.values[0]);
}

inline Error parse_scalars(Dump& out) {
    char text[kMaxText];
    if (text_of(out.container, "scalars", text, kMaxText) != Error::ok) return Error::scalars;
    Cursor cursor{text, text + std::strlen(text)};
    if (!take(cursor, '{')) return Error::scalars;
    bool is_last = take(cursor, '}');
    while (!is_last) {
        if (out.n_scalars == kMaxScalars) return Error::scalars;
        Scalar& scalar = out.scalars[out.n_scalars++];
        if (take_string(cursor, scalar.name, kMaxName) != Error::ok) return Error::scalars;
        if (!take(cursor, ':') || take_scalar(cursor, scalar) != Error::ok) return Error::scalars;
        if (next_member(cursor, is_last) != Error::ok) return Error::scalars;
    }
    skip_space(cursor);
    return cursor.at == cursor.end ? Error::ok : Error::scalars;
}

inline Error parse_absent(Dump& out) {
    char text[kMaxText];
    if (text_of(out.container, "absent", text, kMaxText) != Error::ok) return Error::absent;
    Cursor cursor{text, text + std::strlen(text)};
    if (!take(cursor, '[')) return Error::absent;
    bool is_last = take(cursor, ']');
    while (!is_last) {
        if (out.n_absent == kMaxArrays) return Error::absent;
        if (take_string(cursor, out.absent[out.n_absent++], kMaxName) != Error::ok) {
            return Error::absent;
        }
        is_last = take(cursor, ']');
        if (!is_last && !take(cursor, ',')) return Error::absent;
    }
    skip_space(cursor);
    return cursor.at == cursor.end ? Error::ok : Error::absent;
}

inline bool begins_with(const char* text, const char* prefix) {
    return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

inline Error parse_metadata(Dump& out) {
    static const char* const keys[] = {"format",  "version", "kernel",  "number",    "card_version",
                                       "scalars", "absent",  "outcome", "provenance"};
    const int n_keys = static_cast<int>(sizeof(keys) / sizeof(keys[0]));
    if (out.container.n_metadata != n_keys) return Error::metadata;
    for (const char* key : keys) {
        if (!find_text(out.container, key)) return Error::metadata;
    }
    char text[kMaxName];
    Error error = text_of(out.container, "format", text, kMaxName);
    if (error != Error::ok || std::strcmp(text, "aerie-dump") != 0) return Error::format;
    error = text_of(out.container, "version", text, kMaxName);
    if (error != Error::ok || std::strcmp(text, "1") != 0) return Error::format;
    error = text_of(out.container, "card_version", text, kMaxName);
    Cursor cursor{text, text + (error == Error::ok ? std::strlen(text) : 0)};
    if (take_integer(cursor, out.card_version) != Error::ok) return Error::metadata;
    if (cursor.at != cursor.end) return Error::metadata;
    error = text_of(out.container, "kernel", out.kernel, kMaxName);
    if (error == Error::ok) error = text_of(out.container, "number", out.number, kMaxName);
    if (error == Error::ok) error = text_of(out.container, "outcome", out.outcome, kMaxName);
    return error;
}

// A dump from a file's bytes, which must stay where they are and be aligned to 8.
inline Error parse(const std::uint8_t* bytes, std::uint64_t size, Dump& out) {
    out.n_scalars = out.n_absent = 0;
    Error error = parse_container(bytes, size, out.container);
    if (error == Error::ok) error = parse_metadata(out);
    if (error == Error::ok) error = parse_scalars(out);
    if (error == Error::ok) error = parse_absent(out);
    if (error != Error::ok) return error;
    for (int index = 0; index < out.container.n_arrays; ++index) {
        const char* name = out.container.arrays[index].name;
        if (begins_with(name, "in.") || begins_with(name, "before.") || begins_with(name, "out.")) {
            continue;
        }
        return Error::array_name;
    }
    return Error::ok;
}

// Eight bytes an element: arrays inside the file are then aligned as the format promises.
using Storage = std::vector<std::uint64_t>;

inline Error read_bytes(const char* path, Storage& storage, std::uint64_t& size) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) return Error::file;
    const bool is_sized = std::fseek(file, 0, SEEK_END) == 0;
    const long length = is_sized ? std::ftell(file) : -1;
    Error error = Error::file;
    if (length >= 0 && static_cast<std::uint64_t>(length) < kFileLimit &&
        std::fseek(file, 0, SEEK_SET) == 0) {
        size = static_cast<std::uint64_t>(length);
        storage.assign(size / 8 + 1, 0);
        if (std::fread(storage.data(), 1, size, file) == size) error = Error::ok;
    }
    std::fclose(file);
    return error;
}

// A dump from a file; `storage` owns the bytes and must outlive `out`.
inline Error read_file(const char* path, Storage& storage, Dump& out) {
    std::uint64_t size = 0;
    const Error error = read_bytes(path, storage, size);
    if (error != Error::ok) return error;
    return parse(reinterpret_cast<const std::uint8_t*>(storage.data()), size, out);
}

// An array by its full name (`in.work_scores`), or null.
inline const Array* find(const Dump& dump, const char* name) {
    for (int index = 0; index < dump.container.n_arrays; ++index) {
        const Array& array = dump.container.arrays[index];
        if (std::strcmp(array.name, name) == 0) return &array;
    }
    return nullptr;
}

// A scalar by name, or null.
inline const Scalar* find_scalar(const Dump& dump, const char* name) {
    for (int index = 0; index < dump.n_scalars; ++index) {
        if (std::strcmp(dump.scalars[index].name, name) == 0) return &dump.scalars[index];
    }
    return nullptr;
}

// The elements as `T`; null where there is no array, or where its elements have another width.
template <typename T>
const T* values(const Array* array) {
    if (!array || info(array->dtype).size != sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(array->data);
}

}  // namespace aerie::dump
