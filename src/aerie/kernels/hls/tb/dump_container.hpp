// The container of a dump: named arrays and metadata of a safetensors file, checked byte by byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "dump_json.hpp"

namespace aerie::dump {

// The limits of src/aerie/parity/dump_file.py.
constexpr std::uint64_t kHeaderLimit = 1u << 20;
constexpr int kMaxArrays = 64, kMaxAxes = 4, kMaxMetadata = 16;

enum class Dtype { boolean, u8, i8, u16, i16, u32, i32, u64, i64, bf16, f16, f32, f64 };

struct DtypeInfo {
    const char* name;
    std::uint64_t size;
};

inline const DtypeInfo& info(Dtype dtype) {
    static const DtypeInfo table[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2},
                                      {"U32", 4},  {"I32", 4}, {"U64", 8}, {"I64", 8}, {"BF16", 2},
                                      {"F16", 2},  {"F32", 4}, {"F64", 8}};
    return table[static_cast<int>(dtype)];
}

// One array: `data` points into the file's bytes.
struct Array {
    char name[kMaxName];
    Dtype dtype;
    int rank;
    std::uint64_t shape[kMaxAxes];
    std::uint64_t elements;
    std::uint64_t start, end;  // bytes from the beginning of the data
    const std::uint8_t* data;
};

struct Container {
    Array arrays[kMaxArrays];
    int n_arrays;
    Text metadata[kMaxMetadata];
    int n_metadata;
};

inline Error find_dtype(const char* name, Dtype& out) {
    for (int index = 0; index <= static_cast<int>(Dtype::f64); ++index) {
        if (std::strcmp(info(static_cast<Dtype>(index)).name, name) == 0) {
            out = static_cast<Dtype>(index);
            return Error::ok;
        }
    }
    return Error::dtype;
}

// The fields of one array's entry, each exactly once, in any order.
inline Error take_fields(Cursor& cursor, Array& array) {
    bool has_dtype = false, has_shape = false, has_span = false, is_last = false;
    if (!take(cursor, '{') || take(cursor, '}')) return Error::syntax;
    while (!is_last) {
        char field[kMaxName];
        Error error = take_string(cursor, field, kMaxName);
        if (error != Error::ok) return error;
        if (!take(cursor, ':')) return Error::syntax;
        if (std::strcmp(field, "dtype") == 0 && !has_dtype) {
            char name[kMaxName];
            has_dtype = true;
            error = take_string(cursor, name, kMaxName);
            if (error == Error::ok) error = find_dtype(name, array.dtype);
        } else if (std::strcmp(field, "shape") == 0 && !has_shape) {
            has_shape = true;
            error = take_naturals(cursor, array.shape, kMaxAxes, array.rank);
        } else if (std::strcmp(field, "data_offsets") == 0 && !has_span) {
            std::uint64_t span[2] = {0, 0};
            int count = 0;
            has_span = true;
            error = take_naturals(cursor, span, 2, count);
            if (error == Error::ok && count != 2) error = Error::syntax;
            array.start = span[0];
            array.end = span[1];
        } else {
            error = Error::syntax;
        }
        if (error == Error::ok) error = next_member(cursor, is_last);
        if (error != Error::ok) return error;
    }
    return has_dtype && has_shape && has_span ? Error::ok : Error::syntax;
}

// Elements of a shape; the axes that are not empty may not promise more than a file can hold.
inline Error count_elements(Array& array) {
    std::uint64_t product = 1;
    bool is_empty = false;
    for (int axis = 0; axis < array.rank; ++axis) {
        if (array.shape[axis] == 0) {
            is_empty = true;
        } else if (array.shape[axis] > (kNumberLimit - 1) / product) {
            return Error::span;
        } else {
            product *= array.shape[axis];
        }
    }
    array.elements = is_empty ? 0 : product;
    return Error::ok;
}

inline Error check_array(Array& array, const std::uint8_t* data, std::uint64_t size) {
    const Error error = count_elements(array);
    if (error != Error::ok) return error;
    const std::uint64_t item = info(array.dtype).size;
    if (array.end < array.start || array.end > size) return Error::span;
    if (array.end - array.start != array.elements * item) return Error::span;
    if (array.start % item != 0) return Error::alignment;
    array.data = data + array.start;
    if (array.dtype == Dtype::boolean) {
        for (std::uint64_t index = 0; index < array.elements; ++index) {
            if (array.data[index] > 1) return Error::boolean;
        }
    }
    return Error::ok;
}

// Arrays follow each other without gap or overlap, up to the end of the file.
inline Error check_cover(const Container& container, std::uint64_t size) {
    bool is_used[kMaxArrays] = {};
    std::uint64_t position = 0;
    for (int turn = 0; turn < container.n_arrays; ++turn) {
        int found = -1;
        for (int index = 0; index < container.n_arrays; ++index) {
            const Array& array = container.arrays[index];
            if (is_used[index] || array.start != position) continue;
            // Of those that begin here the empty ones come first.
            if (found < 0 || array.end < container.arrays[found].end) found = index;
        }
        if (found < 0) return Error::cover;
        is_used[found] = true;
        position = container.arrays[found].end;
    }
    return position == size ? Error::ok : Error::cover;
}

inline Error take_metadata(Cursor& cursor, Container& container) {
    if (!take(cursor, '{')) return Error::syntax;
    if (take(cursor, '}')) return Error::ok;
    for (bool is_last = false; !is_last;) {
        if (container.n_metadata == kMaxMetadata) return Error::capacity;
        Text& text = container.metadata[container.n_metadata];
        Error error = take_string(cursor, text.key, kMaxName);
        if (error != Error::ok) return error;
        for (int index = 0; index < container.n_metadata; ++index) {
            if (std::strcmp(container.metadata[index].key, text.key) == 0) return Error::duplicate;
        }
        if (!take(cursor, ':')) return Error::syntax;
        error = skip_string(cursor, text);
        if (error != Error::ok) return error;
        ++container.n_metadata;
        error = next_member(cursor, is_last);
        if (error != Error::ok) return error;
    }
    return Error::ok;
}

inline Error take_array(Cursor& cursor, const char* name, Container& container) {
    if (container.n_arrays == kMaxArrays) return Error::capacity;
    for (int index = 0; index < container.n_arrays; ++index) {
        if (std::strcmp(container.arrays[index].name, name) == 0) return Error::duplicate;
    }
    Array& array = container.arrays[container.n_arrays];
    std::memcpy(array.name, name, kMaxName);
    const Error error = take_fields(cursor, array);
    if (error == Error::ok) ++container.n_arrays;
    return error;
}

inline Error take_header(Cursor& cursor, Container& container) {
    bool has_metadata = false;
    if (!take(cursor, '{')) return Error::syntax;
    bool is_last = take(cursor, '}');
    while (!is_last) {
        char name[kMaxName] = {};
        Error error = take_string(cursor, name, kMaxName);
        if (error != Error::ok) return error;
        if (!take(cursor, ':')) return Error::syntax;
        if (std::strcmp(name, "__metadata__") == 0) {
            if (has_metadata) return Error::duplicate;
            has_metadata = true;
            error = take_metadata(cursor, container);
        } else {
            error = take_array(cursor, name, container);
        }
        if (error == Error::ok) error = next_member(cursor, is_last);
        if (error != Error::ok) return error;
    }
    skip_space(cursor);
    return cursor.at == cursor.end ? Error::ok : Error::syntax;
}

// The arrays and metadata of a file's bytes, whatever they mean.
inline Error parse_container(const std::uint8_t* bytes, std::uint64_t size, Container& out) {
    out.n_arrays = out.n_metadata = 0;
    if (size < 8) return Error::header;
    std::uint64_t length = 0;
    for (int index = 7; index >= 0; --index) length = length << 8 | bytes[index];
    if (length < 2 || length > kHeaderLimit || length > size - 8) return Error::header;
    const char* text = reinterpret_cast<const char*>(bytes + 8);
    Cursor cursor{text, text + length};
    Error error = take_header(cursor, out);
    if (error != Error::ok) return error;
    if (length % 8 != 0) return Error::alignment;
    const std::uint64_t data_size = size - 8 - length;
    for (int index = 0; index < out.n_arrays; ++index) {
        error = check_array(out.arrays[index], bytes + 8 + length, data_size);
        if (error != Error::ok) return error;
    }
    return check_cover(out, data_size);
}

}  // namespace aerie::dump
