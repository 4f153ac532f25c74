// Sums of floats without rounding: a fixed-point number that holds every finite float exactly.
//
// Bit 0 weighs 2^-149, the smallest float. 149 + 128 bits hold any float, 18 more a sum over the
// largest vocabulary, one the sign: 296 of 320. The order of additions does not matter, and a
// float64 unit is not needed; in hardware it is an accumulator with a carry chain (Kulisch).
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace aerie {

constexpr std::int32_t LIMBS = 10;
constexpr std::int32_t WIDTH_OF_EXACT = 320;

// Two's complement, lowest limb first.
struct Exact {
    std::uint32_t limb[LIMBS];
};

// A float's bits apart: |x| = mantissa * 2^(shift - 149).
struct Parts {
    std::uint32_t mantissa;
    std::int32_t shift;
    bool is_negative;
};

inline Parts parts_of(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::int32_t exponent = static_cast<std::int32_t>((bits >> 23) & 255U);
    const std::uint32_t hidden = exponent > 0 ? 1U << 23 : 0U;
    return Parts{(bits & 0x7FFFFFU) | hidden, exponent > 0 ? exponent - 1 : 0, (bits >> 31) != 0};
}

inline Exact sum_of(const Exact& a, const Exact& b) {
    Exact sum = {};
    std::uint64_t carry = 0;
add_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        carry += static_cast<std::uint64_t>(a.limb[i]) + b.limb[i];
        sum.limb[i] = static_cast<std::uint32_t>(carry);
        carry >>= 32;
    }
    return sum;
}

inline Exact negated(const Exact& a) {
    Exact sum = {};
    std::uint64_t carry = 1;
negate_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        carry += static_cast<std::uint32_t>(~a.limb[i]);
        sum.limb[i] = static_cast<std::uint32_t>(carry);
        carry >>= 32;
    }
    return sum;
}

inline Exact exactly(float x) {
    const Parts parts = parts_of(x);
    const std::uint64_t placed = static_cast<std::uint64_t>(parts.mantissa) << (parts.shift % 32);
    const std::int32_t low = parts.shift / 32;
    Exact value = {};
place_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        value.limb[i] = i == low       ? static_cast<std::uint32_t>(placed)
                        : i == low + 1 ? static_cast<std::uint32_t>(placed >> 32)
                                       : 0U;
    }
    return parts.is_negative ? negated(value) : value;
}

// Stands for an infinite term of a sum: no sum of floats reaches it, and its mean is infinite.
inline Exact beyond_all() {
    Exact value = {};
    value.limb[LIMBS - 1] = 1U << 12;
    return value;
}

inline bool is_below_zero(const Exact& a) { return (a.limb[LIMBS - 1] >> 31) != 0; }

inline bool is_below(const Exact& a, const Exact& b) {
    return is_below_zero(sum_of(a, negated(b)));
}

inline bool is_zero(const Exact& a) {
    std::uint32_t any = 0;
any_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        any |= a.limb[i];
    }
    return any == 0;
}

// a * u rounded down to a multiple of 2^-149, for a >= 0 and u in [0, 1).
inline Exact share_of(const Exact& a, float u) {
    const Parts parts = parts_of(u);
    // u = mantissa * 2^-down: u is below 1, so the shift goes to the right.
    const std::int32_t down = 149 - parts.shift;
    std::uint32_t product[LIMBS + 1] = {};
    std::uint64_t carry = 0;
multiply_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        carry += static_cast<std::uint64_t>(a.limb[i]) * parts.mantissa;
        product[i] = static_cast<std::uint32_t>(carry);
        carry >>= 32;
    }
    product[LIMBS] = static_cast<std::uint32_t>(carry);
    Exact share = {};
shift_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
#pragma HLS UNROLL
        const std::int32_t from = i + down / 32;
        const std::uint64_t low = from <= LIMBS ? product[from] : 0U;
        const std::uint64_t high = from < LIMBS ? product[from + 1] : 0U;
        share.limb[i] = static_cast<std::uint32_t>(((high << 32) | low) >> (down % 32));
    }
    return share;
}

// The float nearest to a / divisor, ties to even; infinite beyond the largest.
inline float mean_of(const Exact& a, std::uint32_t divisor) {
    const bool is_negative = is_below_zero(a);
    const Exact size = is_negative ? negated(a) : a;
    std::uint32_t quotient[LIMBS] = {};
    std::uint64_t rest = 0;
divide_limb:
    for (std::int32_t i = 0; i < LIMBS; ++i) {
        const std::uint64_t part = (rest << 32) | size.limb[LIMBS - 1 - i];
        quotient[LIMBS - 1 - i] = static_cast<std::uint32_t>(part / divisor);
        rest = part % divisor;
    }
    std::int32_t top = -1;  // the highest bit that is set
find_top:
    for (std::int32_t bit = 0; bit < WIDTH_OF_EXACT; ++bit) {
        top = ((quotient[bit / 32] >> (bit % 32)) & 1U) != 0U ? bit : top;
    }
    // 24 bits and one more to round by; smaller numbers are subnormal and keep their place.
    const std::int32_t low = higher(top - 23, 0);
    bool has_rest = rest != 0;
    std::uint32_t half = 0;
    std::uint32_t mantissa = 0;
collect_bits:
    for (std::int32_t bit = 0; bit < WIDTH_OF_EXACT; ++bit) {
        const std::uint32_t value = (quotient[bit / 32] >> (bit % 32)) & 1U;
        if (bit < low - 1) {
            has_rest = has_rest || value != 0U;
        } else if (bit == low - 1) {
            half = value;
        } else if (bit < low + 24) {
            mantissa |= value << (bit - low);
        }
    }
    // Below the lowest bit the divisor's rest decides: it is more than, or exactly, a half.
    if (low == 0) {
        half = 2 * rest >= divisor ? 1U : 0U;
        has_rest = 2 * rest != divisor && rest != 0;
    }
    mantissa += half != 0U && (has_rest || (mantissa & 1U) != 0U) ? 1U : 0U;
    // A carry out of the mantissa runs into the exponent, as it should.
    const std::uint32_t exponent = top < 23 ? 0U : static_cast<std::uint32_t>(low) + 1U;
    const std::uint32_t body =
        exponent > 0U ? ((exponent - 1U) << 23) + mantissa : mantissa;
    const std::uint32_t bits = body >= 0x7F800000U ? 0x7F800000U : body;
    return float_of(bits | (is_negative ? 0x80000000U : 0U));
}

}  // namespace aerie
