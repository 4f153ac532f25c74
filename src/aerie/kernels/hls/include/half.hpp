// 16-bit floats as bits: what activations and weights are in memory, and how they are rounded.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace aerie {

inline float from_half(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
    const std::uint32_t exponent = (half >> 10) & 31U;
    const std::uint32_t mantissa = half & 0x3FFU;
    if (exponent == 0U) {
        // Subnormal: a multiple of 2^-24.
        const float size = static_cast<float>(mantissa) * float_of(0x33800000U);
        return sign != 0U ? -size : size;
    }
    const std::uint32_t wide = exponent == 31U ? 255U : exponent + 112U;
    return float_of(sign | (wide << 23) | (mantissa << 13));
}

// Nearest, ties to even; beyond the largest half: infinite.
inline std::uint16_t to_half(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t size = bits & 0x7FFFFFFFU;
    if (size > 0x7F800000U) {
        return static_cast<std::uint16_t>(sign | 0x7E00U);
    }
    if (size >= 0x47800000U) {
        return static_cast<std::uint16_t>(sign | 0x7C00U);
    }
    const std::int32_t exponent = static_cast<std::int32_t>(size >> 23);
    const std::uint32_t mantissa = (size & 0x7FFFFFU) | (exponent > 0 ? 0x800000U : 0U);
    // Normal halves keep 11 bits of the mantissa, subnormal ones fewer.
    const std::int32_t cut = exponent >= 113 ? 13 : lower(126 - exponent, 25);
    const std::uint32_t kept = mantissa >> cut;
    const std::uint32_t lost = mantissa & ((1U << cut) - 1U);
    const std::uint32_t half = 1U << (cut - 1);
    const std::uint32_t up = lost > half || (lost == half && (kept & 1U) != 0U) ? 1U : 0U;
    const std::uint32_t base =
        exponent >= 113 ? static_cast<std::uint32_t>(exponent - 113) << 10 : 0U;
    return static_cast<std::uint16_t>(sign | (base + kept + up));
}

inline float rounded_to_half(float x) { return from_half(to_half(x)); }

}  // namespace aerie
