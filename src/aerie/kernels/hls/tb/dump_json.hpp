// As much JSON as the header of a dump needs: strings, integers, flat lists. No recursion.
//
// Nothing is trusted: a cursor never passes its end, a string never passes its buffer, a number
// never overflows. The first departure from the format is returned as an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace aerie::dump {

// Integers of a header lie below 2^48, as in src/aerie/parity/dump_file.py.
constexpr std::uint64_t kNumberLimit = std::uint64_t{1} << 48;
constexpr int kMaxName = 64;  // characters of a name, its closing zero included

enum class Error {
    ok,
    file,        // cannot be opened or read
    header,      // no header, or one of an impossible length
    syntax,      // the header is not the JSON it should be
    text,        // a string that is too long or not ASCII
    duplicate,   // a name that is there twice
    dtype,       // a dtype that does not exist
    number,      // not an integer in [0, 2^48)
    capacity,    // more arrays, axes or metadata than there may be
    span,        // an array outside the file, or of another size than its shape says
    cover,       // a gap or an overlap
    alignment,   // an array that is not aligned for its type
    boolean,     // a truth value that is neither 0 nor 1
    metadata,    // a key that is missing or unknown
    format,      // not an aerie dump of version 1
    scalars,     // scalars that are not a flat object of integers
    absent,      // absent ports that are not a list of names
    array_name,  // an array that is neither in., before. nor out.
};

inline const char* describe(Error error) {
    static const char* const words[] = {
        "ok",        "file",     "header", "syntax",    "text",    "duplicate", "dtype",
        "number",    "capacity", "span",   "cover",     "alignment", "boolean", "metadata",
        "format",    "scalars",  "absent", "array_name"};
    return words[static_cast<int>(error)];
}

// A metadata string as it stands in the header, escapes included.
struct Text {
    char key[kMaxName];
    const char* begin;
    const char* end;
};

struct Cursor {
    const char* at;
    const char* end;
};

inline void skip_space(Cursor& cursor) {
    while (cursor.at < cursor.end && (*cursor.at == ' ' || *cursor.at == '\t' ||
                                      *cursor.at == '\n' || *cursor.at == '\r')) {
        ++cursor.at;
    }
}

// Whether the next character after spaces is `wanted`; it is consumed then.
inline bool take(Cursor& cursor, char wanted) {
    skip_space(cursor);
    if (cursor.at >= cursor.end || *cursor.at != wanted) return false;
    ++cursor.at;
    return true;
}

inline bool take_word(Cursor& cursor, const char* word) {
    skip_space(cursor);
    const std::size_t length = std::strlen(word);
    if (static_cast<std::size_t>(cursor.end - cursor.at) < length) return false;
    if (std::memcmp(cursor.at, word, length) != 0) return false;
    cursor.at += length;
    return true;
}

// The character of \uXXXX behind the `u`; only ASCII ones occur in a dump.
inline Error take_code(Cursor& cursor, char& out) {
    unsigned value = 0;
    if (cursor.end - cursor.at < 4) return Error::syntax;
    for (int digit = 0; digit < 4; ++digit) {
        const char c = *cursor.at++;
        value <<= 4;
        if (c >= '0' && c <= '9') value |= static_cast<unsigned>(c - '0');
        else if (c >= 'a' && c <= 'f') value |= static_cast<unsigned>(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F') value |= static_cast<unsigned>(c - 'A' + 10);
        else return Error::syntax;
    }
    if (value >= 0x80) return Error::text;
    out = static_cast<char>(value);
    return Error::ok;
}

// One character of a string whose opening quote has been read. `is_end` is set at the closing one.
inline Error take_character(Cursor& cursor, char& out, bool& is_end) {
    if (cursor.at >= cursor.end) return Error::syntax;
    const char c = *cursor.at++;
    is_end = c == '"';
    out = c;
    if (is_end) return Error::ok;
    if (static_cast<unsigned char>(c) >= 0x80) return Error::text;
    if (static_cast<unsigned char>(c) < 0x20) return Error::syntax;
    if (c != '\\') return Error::ok;
    if (cursor.at >= cursor.end) return Error::syntax;
    const char escaped = *cursor.at++;
    if (escaped == 'u') return take_code(cursor, out);
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char* found = escaped ? std::strchr(from, escaped) : nullptr;
    if (!found) return Error::syntax;
    out = to[found - from];
    return Error::ok;
}

// A string, decoded into `out` with a closing zero; one that does not fit is an error.
inline Error take_string(Cursor& cursor, char* out, int capacity) {
    if (!take(cursor, '"')) return Error::syntax;
    int length = 0;
    for (;;) {
        char c = 0;
        bool is_end = false;
        const Error error = take_character(cursor, c, is_end);
        if (error != Error::ok) return error;
        if (is_end) break;
        // A zero would end the name early for strcmp.
        if (length + 1 >= capacity || c == 0) return Error::text;
        out[length++] = c;
    }
    out[length] = 0;
    return Error::ok;
}

// A string that is only checked; where it stands is kept.
inline Error skip_string(Cursor& cursor, Text& out) {
    if (!take(cursor, '"')) return Error::syntax;
    out.begin = cursor.at - 1;
    for (;;) {
        char c = 0;
        bool is_end = false;
        const Error error = take_character(cursor, c, is_end);
        if (error != Error::ok) return error;
        if (is_end) break;
        if (c == 0) return Error::text;
    }
    out.end = cursor.at;
    return Error::ok;
}

// A JSON integer with |value| < 2^48.
inline Error take_integer(Cursor& cursor, std::int64_t& out) {
    const bool is_negative = take(cursor, '-');
    if (cursor.at >= cursor.end || *cursor.at < '0' || *cursor.at > '9') return Error::number;
    std::uint64_t value = 0;
    const char* first = cursor.at;
    while (cursor.at < cursor.end && *cursor.at >= '0' && *cursor.at <= '9') {
        value = value * 10 + static_cast<std::uint64_t>(*cursor.at++ - '0');
        if (value >= kNumberLimit) return Error::number;
    }
    if (*first == '0' && cursor.at - first > 1) return Error::syntax;
    if (cursor.at < cursor.end && (*cursor.at == '.' || *cursor.at == 'e' || *cursor.at == 'E')) {
        return Error::number;
    }
    out = is_negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
    return Error::ok;
}

inline Error take_natural(Cursor& cursor, std::uint64_t& out) {
    std::int64_t value = 0;
    const Error error = take_integer(cursor, value);
    if (error != Error::ok) return error;
    if (value < 0) return Error::number;
    out = static_cast<std::uint64_t>(value);
    return Error::ok;
}

// `[1, 2, 3]` into `out`; one entry more than fits is an error.
inline Error take_naturals(Cursor& cursor, std::uint64_t* out, int capacity, int& count) {
    count = 0;
    if (!take(cursor, '[')) return Error::syntax;
    if (take(cursor, ']')) return Error::ok;
    for (;;) {
        if (count == capacity) return Error::capacity;
        const Error error = take_natural(cursor, out[count]);
        if (error != Error::ok) return error;
        ++count;
        if (take(cursor, ']')) return Error::ok;
        if (!take(cursor, ',')) return Error::syntax;
    }
}

// After a member of an object: `is_last` at the closing brace.
inline Error next_member(Cursor& cursor, bool& is_last) {
    is_last = take(cursor, '}');
    if (is_last || take(cursor, ',')) return Error::ok;
    return Error::syntax;
}

}  // namespace aerie::dump
