// One row of sample_target_tokens: penalties, bias, temperature, filters, keyed noise.
#pragma once

#include "config.hpp"
#include "noise.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// Below this temperature a request is greedy.
constexpr float GREEDY_TEMPERATURE = 1e-6F;

// Options of one request, absent ones at their neutral value; tables are null when not given.
struct Sampler {
    float temperature;
    bool has_seed;
    std::int64_t seed;
    std::int64_t sample_index;
    std::int64_t top_k;
    float top_p;
    float min_p;
    float repetition;
    float presence;
    float frequency;
    const std::int32_t* prompt_counts;
    const std::int32_t* output_counts;
    const float* logit_bias;
    const std::int64_t* stop_tokens;
    std::int32_t n_stops;
    std::int64_t floor_position;
};

inline bool is_greedy(float temperature) { return temperature < GREEDY_TEMPERATURE; }

inline bool is_temperature(float value) { return value >= 0.0F && value < INFINITE; }

// NaN fails every comparison.
inline bool is_possible(const Sampler& sampler) {
    return is_temperature(sampler.temperature) &&
           (is_greedy(sampler.temperature) || sampler.has_seed) && sampler.top_k >= 0 &&
           sampler.top_p > 0.0F && sampler.top_p <= 1.0F && sampler.min_p >= 0.0F &&
           sampler.min_p <= 1.0F && sampler.repetition > 0.0F && sampler.repetition < INFINITE &&
           is_finite(sampler.presence) && is_finite(sampler.frequency);
}

// Whether the token after a position stands before the floor; no sum that could overflow.
inline bool is_short(const Sampler& sampler, std::int64_t position) {
    return position < sampler.floor_position && position + 1 < sampler.floor_position;
}

// Score of one token, every step rounded to float; `on_path` is how often the path holds it.
inline float adjusted(const Sampler& sampler, float logit, std::int32_t token,
                      std::int32_t on_path, bool is_barred) {
    const std::int64_t committed =
        sampler.output_counts != nullptr ? sampler.output_counts[token] : 0;
    const std::int64_t produced = committed + on_path;
    const bool is_prompt = sampler.prompt_counts != nullptr && sampler.prompt_counts[token] > 0;
    float score = logit;
    if (produced > 0 || is_prompt) {
        score = score > 0.0F ? score / sampler.repetition : score * sampler.repetition;
    }
    score = score - sampler.frequency * static_cast<float>(produced);
    score = score - (produced > 0 ? sampler.presence : 0.0F);
    if (sampler.logit_bias != nullptr) {
        score = score + sampler.logit_bias[token];
    }
    score = is_barred ? -INFINITE : score;
    return is_greedy(sampler.temperature) ? score : score / sampler.temperature;
}

// Buffers of one row, on chip: a row is read once and used several times.
struct RowBuffers {
    float scores[Config::MAX_VOCAB];
    double mass[Config::MAX_VOCAB];
    std::uint8_t is_kept[Config::MAX_VOCAB];
    std::int32_t order[2][Config::MAX_VOCAB];
};

// Floats as integers in the same order, reversed: ascending keys are descending scores. Both
// zeros have one key, for they are equal.
inline std::uint32_t descending_key(float score) {
    union {
        float value;
        std::uint32_t bits;
    } view;
    view.value = score == 0.0F ? 0.0F : score;
    const bool is_negative = (view.bits >> 31) != 0;
    const std::uint32_t ascending = is_negative ? ~view.bits : view.bits | 0x80000000U;
    return ~ascending;
}

// Ids by (score descending, id ascending): a radix sort keeps equal keys in order, takes the same
// time for any scores, and its passes are plain loops over the row. The order ends in order[0].
inline void sort_row(RowBuffers& row, std::int32_t V) {
fill_order:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        row.order[0][v] = v;
    }
sort_pass:
    for (std::int32_t pass = 0; pass < 4; ++pass) {
        std::int32_t next[256] = {};
        const std::int32_t from = pass % 2;
    count_digits:
        for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
            if (v >= V) {
                break;
            }
            ++next[(descending_key(row.scores[v]) >> (8 * pass)) & 255U];
        }
        std::int32_t first = 0;
    sum_digits:
        for (std::int32_t digit = 0; digit < 256; ++digit) {
#pragma HLS PIPELINE II=1
            const std::int32_t n = next[digit];
            next[digit] = first;
            first += n;
        }
    move_ids:
        for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
            if (v >= V) {
                break;
            }
            const std::int32_t id = row.order[from][v];
            const std::uint32_t digit = (descending_key(row.scores[id]) >> (8 * pass)) & 255U;
            row.order[1 - from][next[digit]] = id;
            ++next[digit];
        }
    }
}

inline std::int32_t argmax(const float* scores, std::int32_t V) {
    std::int32_t best = 0;
find_best:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        best = scores[v] > scores[best] ? v : best;
    }
    return best;
}

// Drop what follows the best top_k, in the row's order.
inline void keep_top_k(RowBuffers& row, std::int32_t V, std::int64_t top_k) {
drop_tail:
    for (std::int32_t i = 0; i < Config::MAX_VOCAB; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= V) {
            break;
        }
        if (i >= top_k) {
            row.is_kept[row.order[0][i]] = 0;
        }
    }
}

// Keep a token while the mass before it is below top_p of the whole, summed in the row's order.
inline void keep_top_p(RowBuffers& row, std::int32_t V, double top_p) {
    double total = 0.0;
sum_kept:
    for (std::int32_t i = 0; i < Config::MAX_VOCAB; ++i) {
#pragma HLS PIPELINE
        if (i >= V) {
            break;
        }
        const std::int32_t id = row.order[0][i];
        total += row.is_kept[id] != 0 ? row.mass[id] : 0.0;
    }
    const double enough = top_p * total;
    double before = 0.0;
drop_rest:
    for (std::int32_t i = 0; i < Config::MAX_VOCAB; ++i) {
#pragma HLS PIPELINE
        if (i >= V) {
            break;
        }
        const std::int32_t id = row.order[0][i];
        if (!(before < enough)) {
            row.is_kept[id] = 0;
        }
        // What top-k dropped lies behind everything it kept: its mass is before nothing kept.
        before += row.mass[id];
    }
}

// Mass of every token relative to the best one.
inline void weigh_row(RowBuffers& row, std::int32_t V) {
    const float best = row.scores[argmax(row.scores, V)];
weigh_token:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        row.mass[v] = exponential(static_cast<double>(row.scores[v] - best));
    }
}

inline void drop_below(RowBuffers& row, std::int32_t V, double min_p) {
drop_token:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        if (row.mass[v] < min_p) {
            row.is_kept[v] = 0;
        }
    }
}

// Filters that are off cost nothing.
inline void filter_row(RowBuffers& row, std::int32_t V, const Sampler& sampler) {
    const bool has_top_k = sampler.top_k > 0 && sampler.top_k < V;
    const bool has_top_p = sampler.top_p < 1.0F;
    const bool has_min_p = sampler.min_p > 0.0F;
    fill<std::uint8_t>(row.is_kept, V, 1);
    if (has_top_p || has_min_p) {
        weigh_row(row, V);
    }
    if (has_top_k || has_top_p) {
        sort_row(row, V);
    }
    if (has_top_k) {
        keep_top_k(row, V, sampler.top_k);
    }
    if (has_top_p) {
        keep_top_p(row, V, static_cast<double>(sampler.top_p));
    }
    if (has_min_p) {
        drop_below(row, V, static_cast<double>(sampler.min_p));
    }
}

// The best kept token after noise; lowest id on ties.
inline std::int32_t choose_noisy(const RowBuffers& row, std::int32_t V, const NoiseKey& key) {
    float best_score = -INFINITE;
    std::int32_t best = 0;
noise_groups:
    for (std::int32_t group = 0; group < Config::MAX_VOCAB / 4; ++group) {
        if (4 * group >= V) {
            break;
        }
        const Words words = noise_words(key, static_cast<std::uint32_t>(group));
    noise_tokens:
        for (std::int32_t w = 0; w < 4; ++w) {
#pragma HLS PIPELINE II=1
            const std::int32_t v = 4 * group + w;
            if (v < V && row.is_kept[v] != 0) {
                const float score = row.scores[v] + gumbel(words.word[w]);
                best = score > best_score ? v : best;
                best_score = score > best_score ? score : best_score;
            }
        }
    }
    return best;
}

// The token of a row whose scores are in the buffer.
inline std::int32_t choose_token(RowBuffers& row, std::int32_t V, const Sampler& sampler,
                                 std::int64_t position) {
    if (is_greedy(sampler.temperature)) {
        return argmax(row.scores, V);
    }
    filter_row(row, V, sampler);
    return choose_noisy(row, V, NoiseKey{sampler.seed, position, sampler.sample_index});
}

}  // namespace aerie
