// One row of sample_target_tokens: penalties, bias, temperature, filters, keyed noise.
#pragma once

#include "config.hpp"
#include "noise.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// Below this temperature a request is greedy.
constexpr float GREEDY_TEMPERATURE = 1e-6F;

// Options of one request, absent ones at their neutral value; a table not given is not read.
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
    bool has_prompt_counts;
    bool has_output_counts;
    bool has_logit_bias;
    std::int32_t n_stops;
    std::int64_t floor_position;
};

// Tables of one request, on chip: every row of the request reads them.
struct Tables {
    std::int32_t prompt_counts[Config::MAX_VOCAB];
    std::int32_t output_counts[Config::MAX_VOCAB];
    float logit_bias[Config::MAX_VOCAB];
    std::int64_t stop_tokens[Config::MAX_STOPS];
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
inline float adjusted(const Sampler& sampler, const Tables& tables, float logit,
                      std::int32_t token, std::int32_t on_path, bool is_barred) {
    const std::int64_t committed = sampler.has_output_counts ? tables.output_counts[token] : 0;
    const std::int64_t produced = committed + on_path;
    const bool is_prompt = sampler.has_prompt_counts && tables.prompt_counts[token] > 0;
    float score = logit;
    if (produced > 0 || is_prompt) {
        score = score > 0.0F ? score / sampler.repetition : score * sampler.repetition;
    }
    score = score - sampler.frequency * static_cast<float>(produced);
    score = score - (produced > 0 ? sampler.presence : 0.0F);
    if (sampler.has_logit_bias) {
        score = score + tables.logit_bias[token];
    }
    score = is_barred ? -INFINITE : score;
    return is_greedy(sampler.temperature) ? score : score / sampler.temperature;
}

// Buffers of one row, on chip: a row is read once and used several times.
struct RowBuffers {
    float scores[Config::MAX_VOCAB];
    double mass[Config::MAX_VOCAB];
    std::uint8_t is_kept[Config::MAX_VOCAB];
};

// Floats as integers in the same order, reversed: ascending keys are descending scores. Both
// zeros have one key, for they are equal.
inline std::uint32_t descending_key(float score) {
    const std::uint32_t bits = bits_of(score == 0.0F ? 0.0F : score);
    const bool is_negative = (bits >> 31) != 0;
    const std::uint32_t ascending = is_negative ? ~bits : bits | 0x80000000U;
    return ~ascending;
}

// Whether the upper `n` digits of a key are those of another.
inline bool agree(std::uint32_t a, std::uint32_t b, std::int32_t n) {
    return n == 0 || (a >> (32 - 8 * n)) == (b >> (32 - 8 * n));
}

// Where a filter cuts the order (score descending, id ascending): everything with a smaller key
// stays, and of the tokens with this very key those that the filter still admits, by id.
struct Cut {
    std::uint32_t key;
    std::int32_t count;  // tokens before the key
    double mass;  // and their mass
};

// The key at which the count of tokens reaches `most`, or their mass `enough`, whichever is asked
// for. Four passes of a histogram over eight bits of the key each: the row is never sorted.
inline Cut find_cut(const RowBuffers& row, std::int32_t V, std::int64_t most, double enough,
                    bool by_mass) {
    Cut cut = {0U, 0, 0.0};
find_digit:
    for (std::int32_t digit = 0; digit < 4; ++digit) {
        std::int32_t counts[256] = {};
        double masses[256] = {};
    count_digits:
        for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
            if (v >= V) {
                break;
            }
            const std::uint32_t key = descending_key(row.scores[v]);
            if (row.is_kept[v] != 0 && agree(key, cut.key, digit)) {
                const std::uint32_t bin = (key >> (24 - 8 * digit)) & 255U;
                ++counts[bin];
                masses[bin] += by_mass ? row.mass[v] : 0.0;
            }
        }
        bool is_found = false;
        std::uint32_t chosen = 0;
    pass_bins:
        for (std::int32_t bin = 0; bin < 256; ++bin) {
            const bool is_whole = by_mass ? cut.mass + masses[bin] < enough
                                          : cut.count + counts[bin] < most;
            if (is_found || counts[bin] == 0) {
                continue;
            }
            chosen = static_cast<std::uint32_t>(bin);
            if (is_whole) {
                cut.count += counts[bin];
                cut.mass += masses[bin];
            } else {
                is_found = true;
            }
        }
        if (!is_found) {
            // Every bin is admitted whole: the cut lies behind all keys.
            return Cut{0xFFFFFFFFU, cut.count, cut.mass};
        }
        cut.key |= chosen << (24 - 8 * digit);
    }
    return cut;
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

// Drop what follows the best top_k.
inline void keep_top_k(RowBuffers& row, std::int32_t V, std::int64_t top_k) {
    const Cut cut = find_cut(row, V, top_k, 0.0, false);
    std::int32_t before = cut.count;
drop_tail:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        const std::uint32_t key = descending_key(row.scores[v]);
        const bool is_tie = key == cut.key;
        if (key > cut.key || (is_tie && before >= top_k)) {
            row.is_kept[v] = 0;
        }
        before += is_tie ? 1 : 0;
    }
}

// Keep a token while the mass before it is below top_p of the whole.
inline void keep_top_p(RowBuffers& row, std::int32_t V, double top_p) {
    double total = 0.0;
sum_kept:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
        if (v >= V) {
            break;
        }
        total += row.is_kept[v] != 0 ? row.mass[v] : 0.0;
    }
    const double enough = top_p * total;
    const Cut cut = find_cut(row, V, 0, enough, true);
    double before = cut.mass;
drop_rest:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
        if (v >= V) {
            break;
        }
        const std::uint32_t key = descending_key(row.scores[v]);
        const bool is_tie = key == cut.key && row.is_kept[v] != 0;
        if (key > cut.key || (is_tie && !(before < enough))) {
            row.is_kept[v] = 0;
        }
        before += is_tie ? row.mass[v] : 0.0;
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
keep_all:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        row.is_kept[v] = 1;
    }
    if (has_top_p || has_min_p) {
        weigh_row(row, V);
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
