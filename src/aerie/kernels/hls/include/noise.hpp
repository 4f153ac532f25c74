// Philox4x32-10 and the Gumbel noise of sample_target_tokens, keyed by seed, position and token.
#pragma once

#include "config.hpp"
#include "numeric.hpp"

namespace aerie {

// Four words of one counter.
struct Words {
    std::uint32_t word[4];
};

inline Words philox(Words counter, std::uint32_t key_low, std::uint32_t key_high) {
    // Multipliers and key increments of Philox4x32 (Salmon et al., SC 2011, table 2).
    constexpr std::uint64_t MULTIPLIER_0 = 0xD2511F53U;
    constexpr std::uint64_t MULTIPLIER_1 = 0xCD9E8D57U;
    constexpr std::uint32_t WEYL_0 = 0x9E3779B9U;
    constexpr std::uint32_t WEYL_1 = 0xBB67AE85U;
philox_rounds:
    for (std::int32_t round = 0; round < 10; ++round) {
#pragma HLS UNROLL
        const std::uint64_t product_0 = MULTIPLIER_0 * counter.word[0];
        const std::uint64_t product_1 = MULTIPLIER_1 * counter.word[2];
        const std::uint32_t high_0 = static_cast<std::uint32_t>(product_0 >> 32);
        const std::uint32_t high_1 = static_cast<std::uint32_t>(product_1 >> 32);
        counter = Words{{high_1 ^ counter.word[1] ^ key_low, static_cast<std::uint32_t>(product_1),
                         high_0 ^ counter.word[3] ^ key_high,
                         static_cast<std::uint32_t>(product_0)}};
        key_low += WEYL_0;
        key_high += WEYL_1;
    }
    return counter;
}

// What the noise of a row depends on, besides the token.
struct NoiseKey {
    std::int64_t seed;
    std::int64_t position;
    std::int64_t sample_index;
};

// The words of four consecutive token ids.
inline Words noise_words(const NoiseKey& key, std::uint32_t group) {
    const std::uint64_t seed = static_cast<std::uint64_t>(key.seed);
    const std::uint32_t position = static_cast<std::uint32_t>(wrapping_sum(key.position, 1));
    const Words counter = {{group, position, static_cast<std::uint32_t>(key.sample_index), 0U}};
    return philox(counter, static_cast<std::uint32_t>(seed),
                  static_cast<std::uint32_t>(seed >> 32));
}

// The middle of a word's interval of (0, 1), through the inverse of Gumbel's distribution.
inline float gumbel(std::uint32_t word) {
    const double uniform = (static_cast<double>(word) + 0.5) * (1.0 / 4294967296.0);
    return static_cast<float>(-logarithm(-logarithm_of_one_plus(-uniform)));
}

}  // namespace aerie
