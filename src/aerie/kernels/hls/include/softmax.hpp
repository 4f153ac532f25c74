// exp by table and range reduction in fixed point, and the softmax of a row made of it.
//
// exp(d) for d <= 0 is 2^-y with y = -d * log2(e), split into a whole number and a fraction; the
// fraction's power of two is one entry of a table of 256 for its upper eight bits, times one for
// the next eight, times 1 + r ln 2 for the rest, whose square is below 2^-33. Everything is 32 and
// 64-bit integers; the relative error is below 2^-29, a thirtieth of the last place of a float.
#pragma once

#include <cstdint>

#include "numeric.hpp"
#include "powers.hpp"

namespace aerie {

// mantissa * 2^(-31 - down); the mantissa is in [2^31, 2^32), or 0 for a power that is 0.
struct Power {
    std::uint32_t mantissa;
    std::int32_t down;
};

// Below this exp(d) is less than half the smallest float: 2^-150.
constexpr float LEAST_EXPONENT = -104.0F;

// log2(e) in 2^-22 and what is left of it in 2^-44; ln 2 in 2^-24.
constexpr std::uint64_t LOG2_E_HIGH = 6051101U;
constexpr std::uint64_t LOG2_E_LOW = 2435971U;
constexpr std::uint64_t LN_2 = 11629080U;

inline Power power_of_e(float d) {
    if (!(d >= LEAST_EXPONENT)) {
        return Power{0U, 0};
    }
    const std::uint32_t bits = bits_of(d);
    const std::int32_t exponent = static_cast<std::int32_t>((bits >> 23) & 255U);
    const std::uint64_t mantissa = (bits & 0x7FFFFFU) | (exponent > 0 ? 0x800000U : 0U);
    // |d| = mantissa * 2^(exponent - 150), as a multiple of 2^-34.
    const std::int32_t up = exponent - 116;
    const std::uint64_t size = up >= 0     ? mantissa << up
                               : up > -32 ? (mantissa + (1ULL << (-up - 1))) >> -up
                                           : 0U;
    const std::uint64_t y = size * LOG2_E_HIGH + ((size * LOG2_E_LOW) >> 22);  // in 2^-56
    const std::uint64_t fraction = (0ULL - y) & 0xFFFFFFFFFFFFFFULL;
    const std::int32_t down = static_cast<std::int32_t>((y + 0xFFFFFFFFFFFFFFULL) >> 56);
    const std::uint64_t coarse = COARSE_POWERS[fraction >> 48];
    const std::uint64_t fine = FINE_POWERS[(fraction >> 40) & 255U];
    const std::uint64_t product = (coarse * fine) >> 31;
    const std::uint64_t rest = ((fraction & 0xFFFFFFFFFFULL) * LN_2) >> 24;  // in 2^-56
    const std::uint64_t whole = product + ((product * (rest >> 16)) >> 40);
    return Power{static_cast<std::uint32_t>(whole > 0xFFFFFFFFULL ? 0xFFFFFFFFULL : whole), down};
}

// A power as a multiple of 2^-46: what the sum of a row is made of. 2^18 of them fit 64 bits, and
// what is cut off all of them together is below 2^-28 of the sum, which is at least 1.
inline std::uint64_t summand(const Power& power) {
    const std::uint64_t wide = static_cast<std::uint64_t>(power.mantissa) << 15;
    return power.down < 47 ? wide >> power.down : 0U;
}

// 1 / sum, for all quotients of a row: mantissa * 2^-down.
struct Reciprocal {
    std::uint64_t mantissa;
    std::int32_t down;
};

inline Reciprocal reciprocal_of(std::uint64_t sum) {
    // The sum as top * 2^shift with top in [2^31, 2^32]; a sum below 2^31 is shifted up.
    std::int32_t highest = 0;
find_highest:
    for (std::int32_t bit = 0; bit < 64; ++bit) {
#pragma HLS UNROLL
        highest = (sum >> bit) != 0U ? bit : highest;
    }
    const std::int32_t shift = highest - 31;
    const std::uint64_t half = shift > 0 ? 1ULL << (shift - 1) : 0U;
    const std::uint64_t top = shift > 0 ? (sum + half) >> shift : sum << -shift;
    return Reciprocal{(1ULL << 63) / (top != 0U ? top : 1U), 63 + shift - 46};
}

// power / sum as a float, nearest, ties to even; small quotients are subnormal.
inline float quotient(const Power& power, const Reciprocal& reciprocal) {
    if (power.mantissa == 0U) {
        return 0.0F;
    }
    const std::uint64_t most = 0xFFFFFFFFULL;
    const std::uint64_t inverse = reciprocal.mantissa > most ? most : reciprocal.mantissa;
    const std::uint64_t product = power.mantissa * inverse;
    // product * 2^-(31 + down + reciprocal.down) has its highest bit at 62 or 63.
    const std::int32_t top = (product >> 63) != 0U ? 63 : 62;
    const std::int32_t scale = 31 + power.down + reciprocal.down;
    // As a multiple of 2^-149, a float keeps 24 bits, or fewer where it is subnormal.
    const std::int32_t cut = higher(top - 23, scale - 149);
    if (cut > 63) {
        return cut == 64 && product > (1ULL << 63) ? float_of(1U) : 0.0F;
    }
    const std::uint64_t kept = product >> cut;
    const std::uint64_t lost = product & ((1ULL << cut) - 1U);
    const std::uint64_t half = 1ULL << (cut - 1);
    const bool is_up = lost > half || (lost == half && (kept & 1U) != 0U);
    const std::uint32_t mantissa = static_cast<std::uint32_t>(kept) + (is_up ? 1U : 0U);
    // The lowest kept bit weighs 2^(cut - scale).
    const std::int32_t shift = cut - scale + 149;
    const bool is_normal = cut == top - 23;
    const std::uint32_t exponent = is_normal ? static_cast<std::uint32_t>(shift) : 0U;
    return float_of((exponent << 23) + mantissa);
}

}  // namespace aerie
