// K1 to K3: score a layer of candidates, store it as nodes, weigh what it brings.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// Captured runs discount stored scores from depth 2 on by this factor (compat).
constexpr float COMPAT_DISCOUNT = 0.9999F;

// ---- K1 ----

// Place of the smallest target id that the map holds twice, or -1. Ids may be any 64-bit number,
// so a table of hashes with open addressing holds those seen; it has two places for each.
inline std::int32_t find_repeat(const std::int64_t* hot_token_id, std::int32_t VD) {
    static std::int64_t keys[Config::MAX_HASHES];
    static std::uint8_t is_used[Config::MAX_HASHES];
#pragma HLS BIND_STORAGE variable=keys type=ram_2p impl=uram
    std::int32_t found = -1;
    fill<std::uint8_t>(is_used, Config::MAX_HASHES, 0);
insert_ids:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_VOCAB; ++i) {
        if (i >= VD) {
            break;
        }
        const std::int64_t id = hot_token_id[i];
        // The golden ratio spreads consecutive ids; the upper bits are the mixed ones.
        const std::uint64_t mixed = static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15ULL;
        const std::uint64_t hash = (mixed >> 32) % Config::MAX_HASHES;
    probe:
        for (std::int32_t step = 0; step < Config::MAX_HASHES; ++step) {
#pragma HLS PIPELINE
            const std::uint64_t slot = (hash + step) % Config::MAX_HASHES;
            if (is_used[slot] == 0) {
                is_used[slot] = 1;
                keys[slot] = id;
                break;
            }
            if (keys[slot] == id) {
                found = found == -1 || id < hot_token_id[found] ? i : found;
                break;
            }
        }
    }
    return found;
}

// The first token of a layer that the map does not have.
inline void check_tokens(Refusal& refusal, const std::int64_t* tokens, std::int32_t n,
                         std::int32_t VD) {
find_outside:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= n) {
            break;
        }
        if (tokens[c] < 0 || tokens[c] >= VD) {
            refuse(refusal, Status::OUT_OF_RANGE, tokens[c]);
        }
    }
}

inline void score_candidates(const float* probas, const float* last, std::int32_t n,
                             std::int32_t K, float (&scores)[Config::MAX_CANDIDATES]) {
score_each:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= n) {
            break;
        }
        const float p = probas[c];
        // NaN fails the comparison and becomes 0.
        const float above = p > 0.0F ? p : 0.0F;
        const float proba = above < 1.0F ? above : 1.0F;
        scores[c] = proba * last[c / K];
    }
}

inline void emit_order(const float (&scores)[Config::MAX_CANDIDATES],
                       const std::int32_t (&order)[Config::MAX_CANDIDATES], std::int32_t n,
                       float* curr_layer_scores, float* sort_layer_scores,
                       std::int64_t* sort_layer_indices) {
emit_each:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= n) {
            break;
        }
        curr_layer_scores[c] = scores[c];
        sort_layer_scores[c] = scores[order[c]];
        sort_layer_indices[c] = order[c];
    }
}

// Ids, parents and hidden rows of the best K. Rows move as 16-bit words whatever they hold.
inline void emit_best(const std::int32_t (&order)[Config::MAX_CANDIDATES], std::int32_t K,
                      std::int32_t row_words, std::int32_t cumu_count,
                      const std::uint16_t* input_hidden, std::int64_t* cache_topk_indices,
                      std::int64_t* parent_indices_in_layer, std::uint16_t* output_hidden) {
emit_child:
    for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
        if (i >= K) {
            break;
        }
        const std::int32_t parent = order[i] / K;
        cache_topk_indices[i] = cumu_count + order[i];
        parent_indices_in_layer[i] = parent;
    gather_words:
        for (std::int32_t w = 0; w < Config::MAX_HIDDEN_WORDS; ++w) {
#pragma HLS PIPELINE II=1
            if (w >= row_words) {
                break;
            }
            output_hidden[place(i, row_words, w)] = input_hidden[place(parent, row_words, w)];
        }
    }
}

// One request as a stream: score, sort, then the order and the best K side by side.
inline void score_request(const float* probas, const float* last, std::int32_t n, std::int32_t K,
                          std::int32_t row_words, std::int32_t cumu_count,
                          const std::uint16_t* input_hidden, float* curr_layer_scores,
                          float* sort_layer_scores, std::int64_t* sort_layer_indices,
                          std::int64_t* cache_topk_indices,
                          std::int64_t* parent_indices_in_layer, std::uint16_t* output_hidden) {
#pragma HLS DATAFLOW
    float scores[Config::MAX_CANDIDATES] = {};
    std::int32_t order[Config::MAX_CANDIDATES] = {};
#pragma HLS ARRAY_PARTITION variable=scores complete
#pragma HLS ARRAY_PARTITION variable=order complete
    score_candidates(probas, last, n, K, scores);
    sort_descending(scores, n, order);
    emit_order(scores, order, n, curr_layer_scores, sort_layer_scores, sort_layer_indices);
    emit_best(order, K, row_words, cumu_count, input_hidden, cache_topk_indices,
              parent_indices_in_layer, output_hidden);
}

inline void draft_tree_layer_score_index_gen_op(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
    std::int32_t E, std::int32_t cumu_count, std::int32_t has_hot_token_id,
    const float* topk_probas, const std::int64_t* topk_tokens, const float* last_layer_scores,
    const std::uint16_t* input_hidden, const std::int64_t* hot_token_id,
    float* curr_layer_scores, float* sort_layer_scores, std::int64_t* sort_layer_indices,
    std::int64_t* cache_topk_indices, std::int64_t* parent_indices_in_layer,
    std::uint16_t* output_hidden, std::int64_t* mapped_tokens, std::int32_t* status,
    std::int64_t* detail) {
    const std::int32_t n = W * K;
    const std::int32_t row_words = H * (E / 2);
    const std::int32_t repeat = has_hot_token_id != 0 ? find_repeat(hot_token_id, VD) : -1;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t layer = place(b, n, 0);
        const std::int64_t best = place(b, K, 0);
        Refusal refusal;
        if (has_hot_token_id != 0) {
            check_tokens(refusal, topk_tokens + layer, n, VD);
            if (repeat != -1) {
                refuse(refusal, Status::NOT_INJECTIVE, hot_token_id[repeat]);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (is_refused(refusal)) {
            fill<float>(curr_layer_scores + layer, n, 0.0F);
            fill<float>(sort_layer_scores + layer, n, 0.0F);
            fill<std::int64_t>(sort_layer_indices + layer, n, -1);
            fill<std::int64_t>(cache_topk_indices + best, K, -1);
            fill<std::int64_t>(parent_indices_in_layer + best, K, -1);
            fill<std::uint16_t>(output_hidden + best * row_words, place(K, row_words, 0), 0);
            fill<std::int64_t>(mapped_tokens + layer, n, -1);
            continue;
        }
        score_request(topk_probas + layer, last_layer_scores + place(b, W, 0), n, K, row_words,
                      cumu_count, input_hidden + place(b, W, 0) * row_words,
                      curr_layer_scores + layer, sort_layer_scores + layer,
                      sort_layer_indices + layer, cache_topk_indices + best,
                      parent_indices_in_layer + best, output_hidden + best * row_words);
    map_tokens:
        for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
            if (c >= n) {
                break;
            }
            const std::int64_t token = topk_tokens[layer + c];
            mapped_tokens[layer + c] = has_hot_token_id != 0 ? hot_token_id[token] : token;
        }
    }
}

// ---- K2 ----

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

// The first of n ids that lies outside [0, end).
inline void check_range(Refusal& refusal, Status code, const std::int64_t* ids, std::int32_t n,
                        std::int32_t end) {
range_each:
    for (std::int32_t i = 0; i < Config::MAX_CANDIDATES; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        if (ids[i] < 0 || ids[i] >= end) {
            refuse(refusal, code, ids[i]);
        }
    }
}

inline Refusal check_layer(const std::int64_t* tokens, const std::int64_t* order,
                           const std::int64_t* frontier, std::int32_t W, std::int32_t K,
                           std::int32_t cumu_count) {
    Refusal refusal;
    check_range(refusal, Status::OUT_OF_RANGE, frontier, W, cumu_count);
    const std::int32_t twin = smallest_twin(frontier, W);
    if (twin != -1) {
        refuse(refusal, Status::BROKEN_TREE, frontier[twin]);
    }
    check_range(refusal, Status::CANDIDATE, order, W * K, W * K);
check_siblings:
    for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
        if (t >= W) {
            break;
        }
        const std::int64_t* siblings = tokens + place(t, K, 0);
        const std::int32_t repeated = smallest_twin(siblings, K);
        if (repeated != -1) {
            refuse(refusal, Status::DUPLICATE_SIBLING, siblings[repeated]);
        }
    }
    return refusal;
}

// The node store of one request.
struct Store {
    std::int64_t* tokens;
    float* scores;
    std::int64_t* depths;
    std::int64_t* parents;
    std::int64_t* first_children;
    std::int64_t* next_siblings;
};

inline void store_nodes(const Store& store, const float* scores, const std::int64_t* tokens,
                        const std::int64_t* frontier, std::int32_t W, std::int32_t K,
                        std::int32_t cumu_count, bool compat) {
store_node:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= W * K) {
            break;
        }
        const std::int32_t node = cumu_count + c;
        const std::int64_t parent = frontier[c / K];
        const std::int64_t depth = wrapping_sum(store.depths[parent], 1);
        store.tokens[node] = tokens[c];
        store.scores[node] = compat && depth > 1 ? scores[c] * COMPAT_DISCOUNT : scores[c];
        store.depths[node] = depth;
        store.parents[node] = parent;
        store.first_children[node] = -1;
        store.next_siblings[node] = c % K < K - 1 ? node + 1 : -1;
    }
link_parent:
    for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
#pragma HLS PIPELINE II=1
        if (t >= W) {
            break;
        }
        store.first_children[frontier[t]] = cumu_count + t * K;
    }
}

// The chosen children see what their parent sees, and themselves.
inline void emit_masks(const std::int64_t* order, const std::uint8_t* input_mask, std::int32_t K,
                       std::int32_t F, std::int32_t fed_count, std::uint8_t* output_mask) {
mask_row:
    for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
        if (i >= K) {
            break;
        }
        const std::int64_t parent = order[i] / K;
    mask_column:
        for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
            if (f >= F) {
                break;
            }
            const bool is_self = f == fed_count + i;
            output_mask[place(i, F, f)] = is_self ? 1 : input_mask[place(parent, F, f)];
        }
    }
}

// The best `new_count` of the old scores and the layer's; the older entry first on equality.
inline void merge_scores(float* sort_scores, const float* layer_scores, std::int32_t old_count,
                         std::int32_t n, std::int32_t new_count) {
    float merged[Config::MAX_MERGED] = {};
    std::int32_t order[Config::MAX_MERGED] = {};
#pragma HLS ARRAY_PARTITION variable=merged complete
read_scores:
    for (std::int32_t i = 0; i < Config::MAX_MERGED; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= old_count + n) {
            break;
        }
        merged[i] = i < old_count ? sort_scores[i] : layer_scores[i - old_count];
    }
    sort_descending(merged, old_count + n, order);
write_scores:
    for (std::int32_t i = 0; i < Config::MAX_VERIFY; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= new_count) {
            break;
        }
        sort_scores[i] = merged[order[i]];
    }
}

// The same checks without the writes: a host that raises errors asks first.
inline void update_cumu_draft_state_check(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t /*N*/, std::int32_t /*M*/,
    std::int32_t /*F*/, std::int32_t cumu_count, std::int32_t /*verify_num*/,
    std::int32_t /*fed_count*/, std::int32_t /*compat*/, const std::int64_t* /*cumu_tokens*/,
    const float* /*cumu_scores*/, const std::int64_t* /*cumu_deltas*/,
    const std::int64_t* /*prev_indexs*/, const std::int64_t* /*next_indexs*/,
    const std::int64_t* /*side_indexs*/, const float* /*sort_scores*/,
    const float* /*curr_layer_scores*/, const std::int64_t* topk_tokens,
    const float* /*sort_layer_scores*/, const std::int64_t* sort_layer_indices,
    const std::int64_t* frontier_indexs, const std::uint8_t* /*input_tree_mask*/,
    std::int32_t* status, std::int64_t* detail) {
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t layer = place(b, W * K, 0);
        const Refusal refusal =
            check_layer(topk_tokens + layer, sort_layer_indices + layer,
                        frontier_indexs + place(b, W, 0), W, K, cumu_count);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline void update_cumu_draft_state(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
    std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
    std::int32_t compat, std::int64_t* cumu_tokens, float* cumu_scores,
    std::int64_t* cumu_deltas, std::int64_t* prev_indexs, std::int64_t* next_indexs,
    std::int64_t* side_indexs, float* sort_scores, const float* curr_layer_scores,
    const std::int64_t* topk_tokens, const float* sort_layer_scores,
    const std::int64_t* sort_layer_indices, const std::int64_t* frontier_indexs,
    const std::uint8_t* input_tree_mask, float* output_scores, std::int64_t* output_tokens,
    float* work_scores, std::uint8_t* output_tree_mask, std::int32_t* status,
    std::int64_t* detail) {
    const std::int32_t n = W * K;
    const std::int32_t old_count = lower(verify_num, cumu_count);
    const std::int32_t new_count = lower(verify_num, cumu_count + n);
    const std::int32_t work_count = old_count + K;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t layer = place(b, n, 0);
        const std::int64_t best = place(b, K, 0);
        const std::int64_t* order = sort_layer_indices + layer;
        const std::int64_t* frontier = frontier_indexs + place(b, W, 0);
        float* sorted = sort_scores + place(b, M, 0);
        float* work = work_scores + place(b, work_count, 0);
        std::uint8_t* mask = output_tree_mask + place(best, F, 0);
        const Refusal refusal =
            check_layer(topk_tokens + layer, order, frontier, W, K, cumu_count);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (is_refused(refusal)) {
            fill<float>(output_scores + best, K, 0.0F);
            fill<std::int64_t>(output_tokens + best, K, -1);
            fill<float>(work, work_count, 0.0F);
            fill<std::uint8_t>(mask, place(K, F, 0), 0);
            continue;
        }
        const std::int64_t first = place(b, N, 0);
        const Store store = {cumu_tokens + first, cumu_scores + first, cumu_deltas + first,
                             prev_indexs + first, next_indexs + first, side_indexs + first};
        store_nodes(store, curr_layer_scores + layer, topk_tokens + layer, frontier, W, K,
                    cumu_count, compat != 0);
        emit_masks(order, input_tree_mask + place(place(b, W, 0), F, 0), K, F, fed_count, mask);
    emit_frontier:
        for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= K) {
                break;
            }
            output_scores[best + i] = sort_layer_scores[layer + i];
            output_tokens[best + i] = topk_tokens[layer + order[i]];
            work[old_count + i] = sort_layer_scores[layer + i];
        }
    emit_old:
        for (std::int32_t i = 0; i < Config::MAX_VERIFY; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= old_count) {
                break;
            }
            work[i] = sorted[i];
        }
        merge_scores(sorted, sort_layer_scores + layer, old_count, n, new_count);
    }
}

// ---- K3 ----

inline void calculate_work_deltas(std::int32_t B, std::int32_t C, std::int32_t node_top_k,
                                  std::int32_t verify_num, const float* work_scores, float* G) {
    // G[k] is a sum over requests, ascending, in double: no partial sum may be kept in float.
    double gains[Config::MAX_TOP_K + 1] = {};
#pragma HLS ARRAY_PARTITION variable=gains complete
    const std::int32_t old_count = C - node_top_k;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const float* scores = work_scores + place(b, C, 0);
        double mass = 0.0;
    weigh_new:
        for (std::int32_t k = 0; k < Config::MAX_TOP_K; ++k) {
            if (k >= node_top_k) {
                break;
            }
            // A free slot first, then the old scores, the smallest first; NaN is above nothing.
            const double score = scores[old_count + k];
            const std::int32_t met = verify_num - 1 - k;
            if (met >= 0) {
                const double displaced = met < old_count ? scores[met] : 0.0;
                mass += score > displaced ? score - displaced : 0.0;
            }
            gains[k + 1] += mass;
        }
    }
emit_gains:
    for (std::int32_t k = 0; k < Config::MAX_TOP_K + 1; ++k) {
        if (k > node_top_k) {
            break;
        }
        G[k] = static_cast<float>(gains[k] / static_cast<double>(higher(B, 1)));
    }
}

}  // namespace aerie
