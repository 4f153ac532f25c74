// Captured graph sizes: ascending lists, the smallest that fits.
#pragma once

#include "config.hpp"

namespace aerie {

// The smallest captured size that holds `needed`; the last one if none does.
inline std::int32_t smallest_bucket(const std::int32_t* buckets, std::int32_t n_buckets,
                                    std::int32_t needed) {
    std::int32_t found = buckets[n_buckets - 1];
find_bucket:
    for (std::int32_t i = 0; i < Config::MAX_BUCKETS; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n_buckets) {
            break;
        }
        if (buckets[i] >= needed) {
            found = buckets[i];
            break;
        }
    }
    return found;
}

// A list of sizes must not be empty, ascend strictly and stay within [low, high].
inline bool is_ascending(const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t low,
                         std::int32_t high) {
    if (n_buckets < 1 || n_buckets > Config::MAX_BUCKETS) {
        return false;
    }
    bool holds = true;
check_bucket:
    for (std::int32_t i = 0; i < Config::MAX_BUCKETS; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n_buckets) {
            break;
        }
        holds = holds && buckets[i] >= low && buckets[i] <= high;
        holds = holds && (i == 0 || buckets[i] > buckets[i - 1]);
    }
    return holds;
}

}  // namespace aerie
