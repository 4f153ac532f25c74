// Arithmetic every family needs: the one shim to a vendor's mathematics, orders, wrapping sums.
#pragma once

#include <cstdint>

#ifdef __SYNTHESIS__
#include <hls_math.h>
#else
#include <cmath>
#endif

namespace aerie {

#ifdef __SYNTHESIS__
inline double exponential(double x) { return hls::exp(x); }
inline double logarithm(double x) { return hls::log(x); }
inline double logarithm_of_one_plus(double x) { return hls::log1p(x); }
inline float square_root(float x) { return hls::sqrt(x); }
#else
inline double exponential(double x) { return std::exp(x); }
inline double logarithm(double x) { return std::log(x); }
inline double logarithm_of_one_plus(double x) { return std::log1p(x); }
inline float square_root(float x) { return std::sqrt(x); }
#endif

constexpr float INFINITE = __builtin_huge_valf();

inline bool is_nan(float x) { return x != x; }

inline bool is_infinite(float x) { return !is_nan(x) && is_nan(x - x); }

inline bool is_finite(float x) { return x - x == 0.0F; }

// A float's bits, and back: what reinterpretation in hardware is, a choice of names.
inline std::uint32_t bits_of(float x) {
    union {
        float value;
        std::uint32_t bits;
    } view;
    view.value = x;
    return view.bits;
}

inline float float_of(std::uint32_t bits) {
    union {
        std::uint32_t bits;
        float value;
    } view;
    view.bits = bits;
    return view.value;
}

inline std::int32_t lower(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

inline std::int32_t higher(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

inline std::int64_t clamped(std::int64_t x, std::int64_t low, std::int64_t high) {
    const std::int64_t raised = x < low ? low : x;
    return raised > high ? high : raised;
}

// Inputs may hold any 64-bit number; signed overflow is undefined in C++, so sums go by bits.
inline std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) +
                                     static_cast<std::uint64_t>(b));
}

// Where a number is only compared or named, the largest stands for all beyond it; b >= 0.
constexpr std::int64_t INT64_HIGHEST = 0x7FFFFFFFFFFFFFFFLL;

inline std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
    return a > INT64_HIGHEST - b ? INT64_HIGHEST : a + b;
}

// How far end lies behind start, 0 if it does not.
inline std::int64_t span_of(std::int64_t start, std::int64_t end) {
    if (end <= start) {
        return 0;
    }
    const std::uint64_t size = static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(start);
    return size > static_cast<std::uint64_t>(INT64_HIGHEST) ? INT64_HIGHEST
                                                            : static_cast<std::int64_t>(size);
}

// Place of (row, column) in a table; a slot table passes 32 bits.
inline std::int64_t place(std::int64_t row, std::int64_t width, std::int64_t column) {
    return row * width + column;
}

// Descending, equal scores by index, NaN behind every number.
inline bool comes_before(float a, std::int32_t index_a, float b, std::int32_t index_b) {
    if (a > b || (is_nan(b) && !is_nan(a))) {
        return true;
    }
    if (b > a || (is_nan(a) && !is_nan(b))) {
        return false;
    }
    return index_a < index_b;
}

// Order of n scores by rank: how many come before each. Right for any n, not only powers of two,
// and in hardware one row of CAPACITY comparators that is used n times.
template <std::int32_t CAPACITY>
inline void sort_descending(const float (&scores)[CAPACITY], std::int32_t n,
                            std::int32_t (&order)[CAPACITY]) {
rank_each:
    for (std::int32_t i = 0; i < CAPACITY; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        std::int32_t rank = 0;
    compare_with:
        for (std::int32_t j = 0; j < CAPACITY; ++j) {
#pragma HLS UNROLL
            if (j < n && comes_before(scores[j], j, scores[i], i)) {
                ++rank;
            }
        }
        order[rank] = i;
    }
}

}  // namespace aerie
