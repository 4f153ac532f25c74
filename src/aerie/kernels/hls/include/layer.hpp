// What the drafting kernels do with a layer once it is on chip: score, sort, store, merge, weigh.
#pragma once

#include "channel.hpp"
#include "config.hpp"
#include "exact.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// Captured runs discount stored scores from depth 2 on by this factor (compat).
constexpr float COMPAT_DISCOUNT = 0.9999F;
constexpr std::int64_t NO_NODE = -1;

// Sizes of a layer: n = width * top_k candidates, column t * top_k + j the j-th of frontier slot t.
struct Layer {
    std::int32_t width;
    std::int32_t top_k;
    std::int32_t n;
};

// One place of both orders: the candidate's own score, and the score and candidate of that rank.
struct Entry {
    float score;
    float sorted;
    std::int32_t index;
};

// A probability is read as min(max(p, 0), 1); NaN fails the comparison and becomes 0.
inline float path_score(float proba, float parent) {
    const float above = proba > 0.0F ? proba : 0.0F;
    return (above < 1.0F ? above : 1.0F) * parent;
}

// Scores in candidate order to entries: a row of comparators ranks one candidate a cycle.
inline void sort_stream(Channel<float, Config::MAX_CANDIDATES>& in, const Layer& layer,
                        Channel<Entry, Config::MAX_CANDIDATES>& out) {
    float scores[Config::MAX_CANDIDATES] = {};
    std::int32_t order[Config::MAX_CANDIDATES] = {};
#pragma HLS ARRAY_PARTITION variable=scores complete
#pragma HLS ARRAY_PARTITION variable=order complete
take_scores:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        scores[c] = in.read();
    }
    sort_descending(scores, layer.n, order);
give_entries:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        out.write(Entry{scores[c], scores[order[c]], order[c]});
    }
}

// A layer about to become nodes.
struct StoredLayer {
    std::int64_t tokens[Config::MAX_CANDIDATES];
    std::int64_t order[Config::MAX_CANDIDATES];
    float scores[Config::MAX_CANDIDATES];
    float sorted[Config::MAX_CANDIDATES];
    std::int64_t frontier[Config::MAX_WIDTH];
    std::int64_t depths[Config::MAX_WIDTH];
};

// The first of n ids that lies outside [0, end).
template <std::int32_t CAPACITY>
inline void check_range(Refusal& refusal, Status code, const std::int64_t (&ids)[CAPACITY],
                        std::int32_t n, std::int32_t end) {
range_each:
    for (std::int32_t i = 0; i < CAPACITY; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        if (ids[i] < 0 || ids[i] >= end) {
            refuse(refusal, code, ids[i]);
        }
    }
}

// Place of the smallest value that stands twice among n, or -1.
inline std::int32_t smallest_twin(const std::int64_t* values, std::int32_t n) {
    std::int32_t found = -1;
twin_first:
    for (std::int32_t i = 0; i < Config::MAX_CHOICES; ++i) {
        if (i >= n) {
            break;
        }
    twin_second:
        for (std::int32_t j = 0; j < Config::MAX_CHOICES; ++j) {
#pragma HLS PIPELINE II=1
            if (j >= n) {
                break;
            }
            if (j > i && values[i] == values[j]) {
                found = found == -1 || values[i] < values[found] ? i : found;
            }
        }
    }
    return found;
}

// What K2 refuses, decided before anything is written.
inline Refusal check_layer(const StoredLayer& stored, const Layer& layer,
                           std::int32_t cumu_count) {
    Refusal refusal;
    check_range(refusal, Status::OUT_OF_RANGE, stored.frontier, layer.width, cumu_count);
    const std::int32_t twin = smallest_twin(stored.frontier, layer.width);
    if (twin != -1) {
        refuse(refusal, Status::BROKEN_TREE, stored.frontier[twin]);
    }
    check_range(refusal, Status::CANDIDATE, stored.order, layer.n, layer.n);
check_siblings:
    for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
        if (t >= layer.width) {
            break;
        }
        const std::int64_t* siblings = stored.tokens + place(t, layer.top_k, 0);
        const std::int32_t repeated = smallest_twin(siblings, layer.top_k);
        if (repeated != -1) {
            refuse(refusal, Status::DUPLICATE_SIBLING, siblings[repeated]);
        }
    }
    return refusal;
}

// A candidate as a node.
struct Node {
    std::int64_t token;
    float score;
    std::int64_t depth;
    std::int64_t parent;
    std::int64_t next_sibling;
};

inline Node node_of(const StoredLayer& stored, const Layer& layer, std::int32_t c,
                    std::int32_t cumu_count, bool compat) {
    const std::int32_t t = c / layer.top_k;
    const bool is_last = c % layer.top_k == layer.top_k - 1;
    const std::int64_t depth = wrapping_sum(stored.depths[t], 1);
    const float score = stored.scores[c];
    return Node{stored.tokens[c], compat && depth > 1 ? score * COMPAT_DISCOUNT : score, depth,
                stored.frontier[t], is_last ? NO_NODE : cumu_count + c + 1};
}

// The best scores so far, descending.
struct Running {
    float scores[Config::MAX_MERGED];
};

// The old scores and the layer's in one order; on equality the older entry is first, NaN is last.
inline void merge_scores(Running& running, std::int32_t old_count,
                         const float (&layer_scores)[Config::MAX_CANDIDATES], std::int32_t n) {
    float merged[Config::MAX_MERGED] = {};
    std::int32_t order[Config::MAX_MERGED] = {};
#pragma HLS ARRAY_PARTITION variable=merged complete
join_scores:
    for (std::int32_t i = 0; i < Config::MAX_MERGED; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= old_count + n) {
            break;
        }
        merged[i] = i < old_count ? running.scores[i] : layer_scores[i - old_count];
    }
    sort_descending(merged, old_count + n, order);
place_scores:
    for (std::int32_t i = 0; i < Config::MAX_MERGED; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= old_count + n) {
            break;
        }
        running.scores[i] = merged[order[i]];
    }
}

// What a score has above the one it displaces; NaN is above nothing.
inline Exact gain_of(float score, float displaced) {
    if (!(score > displaced)) {
        return Exact{};
    }
    return is_infinite(score) || is_infinite(displaced)
               ? beyond_all()
               : sum_of(exactly(score), exactly(-displaced));
}

// What verifying k of the new scores brings beside the old ones, added to gains[k].
inline void weigh_new(const float (&scores)[Config::MAX_WORK], std::int32_t old_count,
                      std::int32_t top_k, std::int32_t verify_num,
                      Exact (&gains)[Config::MAX_TOP_K + 1]) {
    Exact mass = {};
weigh_each:
    for (std::int32_t k = 0; k < Config::MAX_TOP_K; ++k) {
        if (k >= top_k) {
            break;
        }
        // A free slot first, then the old scores, the smallest first.
        const std::int32_t met = verify_num - 1 - k;
        if (met >= 0) {
            const float displaced = met < old_count ? scores[met] : 0.0F;
            mass = sum_of(mass, gain_of(scores[old_count + k], displaced));
        }
        gains[k + 1] = sum_of(gains[k + 1], mass);
    }
}

}  // namespace aerie
