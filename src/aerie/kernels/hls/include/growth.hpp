// K1 to K3: score a layer of candidates, store it as nodes, weigh what it brings.
#pragma once

#include "channel.hpp"
#include "config.hpp"
#include "exact.hpp"
#include "layer.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K1 ----

// The map from draft ids to target ids, on chip for the length of a call.
struct TokenMap {
    std::int64_t ids[Config::MAX_DRAFT_VOCAB];
    std::int64_t repeated;  // the smallest id that stands twice
    bool is_injective;
};

// Ids may be any 64-bit number, so a table of hashes with open addressing holds those seen; it has
// two places for each.
inline void load_map(In<std::int64_t> hot_token_id, std::int32_t VD, TokenMap& map) {
    static std::int64_t keys[Config::MAX_HASHES];
    static std::uint8_t is_used[Config::MAX_HASHES];
#pragma HLS BIND_STORAGE variable=keys type=ram_2p impl=uram
    map.is_injective = true;
clear_hashes:
    for (std::int32_t slot = 0; slot < Config::MAX_HASHES; ++slot) {
#pragma HLS PIPELINE II=1
        is_used[slot] = 0;
    }
insert_ids:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_VOCAB; ++i) {
        if (i >= VD) {
            break;
        }
        const std::int64_t id = hot_token_id[i];
        map.ids[i] = id;
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
                map.repeated = map.is_injective || id < map.repeated ? id : map.repeated;
                map.is_injective = false;
                break;
            }
        }
    }
}

// Read a layer and score it; candidate order.
inline void score_stream(In<float> probas, In<float> last, const Layer& layer,
                         Channel<float, Config::MAX_CANDIDATES>& scores) {
    float parents[Config::MAX_WIDTH] = {};
    load(last, layer.width, parents);
score_each:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        scores.write(path_score(probas[c], parents[c / layer.top_k]));
    }
}

// Write the layer's scores in both orders; the best K go on.
inline void emit_stream(Channel<Entry, Config::MAX_CANDIDATES>& entries, const Layer& layer,
                        std::int32_t cumu_count, Out<float> curr_layer_scores,
                        Out<float> sort_layer_scores, Out<std::int64_t> sort_layer_indices,
                        Out<std::int64_t> cache_topk_indices,
                        Out<std::int64_t> parent_indices_in_layer,
                        Channel<std::int32_t, Config::MAX_TOP_K>& parents) {
emit_each:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        const Entry entry = entries.read();
        curr_layer_scores[c] = entry.score;
        sort_layer_scores[c] = entry.sorted;
        sort_layer_indices[c] = entry.index;
        if (c < layer.top_k) {
            cache_topk_indices[c] = cumu_count + entry.index;
            parent_indices_in_layer[c] = entry.index / layer.top_k;
            parents.write(entry.index / layer.top_k);
        }
    }
}

// Hidden rows of the best K, as 16-bit words whatever they hold. A parent of several is read once.
inline void gather_stream(Channel<std::int32_t, Config::MAX_TOP_K>& parents, const Layer& layer,
                          std::int32_t row_words, In<std::uint16_t> input_hidden,
                          Out<std::uint16_t> output_hidden) {
    static std::uint16_t row[Config::MAX_HIDDEN_WORDS];
    std::int32_t parent_of[Config::MAX_TOP_K] = {};
take_parents:
    for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
        if (i >= layer.top_k) {
            break;
        }
        parent_of[i] = parents.read();
    }
gather_parent:
    for (std::int32_t parent = 0; parent < Config::MAX_WIDTH; ++parent) {
        if (parent >= layer.width) {
            break;
        }
        bool is_loaded = false;
    scatter_child:
        for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
            if (i >= layer.top_k) {
                break;
            }
            if (parent_of[i] != parent) {
                continue;
            }
            if (!is_loaded) {
                load(input_hidden + place(parent, row_words, 0), row_words, row);
                is_loaded = true;
            }
            store(row, row_words, output_hidden + place(i, row_words, 0));
        }
    }
}

// One request as a stream: score, sort, emit, gather; every channel has one writer and one reader.
inline void score_request(In<float> probas, In<float> last, const Layer& layer,
                          std::int32_t row_words, std::int32_t cumu_count,
                          In<std::uint16_t> input_hidden, Out<float> curr_layer_scores,
                          Out<float> sort_layer_scores, Out<std::int64_t> sort_layer_indices,
                          Out<std::int64_t> cache_topk_indices,
                          Out<std::int64_t> parent_indices_in_layer,
                          Out<std::uint16_t> output_hidden) {
#pragma HLS DATAFLOW
    Channel<float, Config::MAX_CANDIDATES> scores;
    Channel<Entry, Config::MAX_CANDIDATES> entries;
    Channel<std::int32_t, Config::MAX_TOP_K> parents;
    score_stream(probas, last, layer, scores);
    sort_stream(scores, layer, entries);
    emit_stream(entries, layer, cumu_count, curr_layer_scores, sort_layer_scores,
                sort_layer_indices, cache_topk_indices, parent_indices_in_layer, parents);
    gather_stream(parents, layer, row_words, input_hidden, output_hidden);
}

// The first token of a layer that the map does not have, then the map's own fault.
inline Refusal check_tokens(const std::int64_t (&tokens)[Config::MAX_CANDIDATES],
                            const Layer& layer, std::int32_t VD, const TokenMap& map) {
    Refusal refusal;
    check_range(refusal, Status::OUT_OF_RANGE, tokens, layer.n, VD);
    if (!map.is_injective) {
        refuse(refusal, Status::NOT_INJECTIVE, map.repeated);
    }
    return refusal;
}

inline void draft_tree_layer_score_index_gen_op(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
    std::int32_t E, std::int32_t cumu_count, std::int32_t has_hot_token_id,
    In<float> topk_probas, In<std::int64_t> topk_tokens, In<float> last_layer_scores,
    In<std::uint16_t> input_hidden, In<std::int64_t> hot_token_id, Out<float> curr_layer_scores,
    Out<float> sort_layer_scores, Out<std::int64_t> sort_layer_indices,
    Out<std::int64_t> cache_topk_indices, Out<std::int64_t> parent_indices_in_layer,
    Out<std::uint16_t> output_hidden, Out<std::int64_t> mapped_tokens, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    static TokenMap map;
#pragma HLS BIND_STORAGE variable=map type=ram_2p impl=uram
    const Layer layer = {W, K, W * K};
    const std::int32_t row_words = H * (E / 2);
    const bool has_map = has_hot_token_id != 0;
    if (has_map) {
        load_map(hot_token_id, VD, map);
    }
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t first = place(b, layer.n, 0);
        const std::int64_t best = place(b, K, 0);
        std::int64_t tokens[Config::MAX_CANDIDATES] = {};
        load(topk_tokens + first, layer.n, tokens);
        const Refusal refusal = has_map ? check_tokens(tokens, layer, VD, map) : Refusal{};
        tell(refusal, b, status, detail);
        if (is_refused(refusal)) {
            fill<float>(curr_layer_scores + first, layer.n, 0.0F);
            fill<float>(sort_layer_scores + first, layer.n, 0.0F);
            fill<std::int64_t>(sort_layer_indices + first, layer.n, -1);
            fill<std::int64_t>(cache_topk_indices + best, K, -1);
            fill<std::int64_t>(parent_indices_in_layer + best, K, -1);
            fill<std::uint16_t>(output_hidden + best * row_words, place(K, row_words, 0), 0);
            fill<std::int64_t>(mapped_tokens + first, layer.n, -1);
            continue;
        }
        score_request(topk_probas + first, last_layer_scores + place(b, W, 0), layer, row_words,
                      cumu_count, input_hidden + place(b, W, 0) * row_words,
                      curr_layer_scores + first, sort_layer_scores + first,
                      sort_layer_indices + first, cache_topk_indices + best,
                      parent_indices_in_layer + best, output_hidden + best * row_words);
    map_tokens:
        for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
            if (c >= layer.n) {
                break;
            }
            mapped_tokens[first + c] = has_map ? map.ids[tokens[c]] : tokens[c];
        }
    }
}

// ---- K2 ----

// What a layer's refusals are decided by, loaded once.
inline void load_layer(In<std::int64_t> tokens, In<std::int64_t> order,
                       In<std::int64_t> frontier, const Layer& layer, StoredLayer& stored) {
    load(tokens, layer.n, stored.tokens);
    load(order, layer.n, stored.order);
    load(frontier, layer.width, stored.frontier);
}

// The same checks without the writes: a host that raises errors asks first.
inline void update_cumu_draft_state_check(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t /*N*/, std::int32_t /*M*/,
    std::int32_t /*F*/, std::int32_t cumu_count, std::int32_t /*verify_num*/,
    std::int32_t /*fed_count*/, std::int32_t /*compat*/, In<std::int64_t> /*cumu_tokens*/,
    In<float> /*cumu_scores*/, In<std::int64_t> /*cumu_deltas*/, In<std::int64_t> /*prev_indexs*/,
    In<std::int64_t> /*next_indexs*/, In<std::int64_t> /*side_indexs*/, In<float> /*sort_scores*/,
    In<float> /*curr_layer_scores*/, In<std::int64_t> topk_tokens, In<float> /*sort_layer_scores*/,
    In<std::int64_t> sort_layer_indices, In<std::int64_t> frontier_indexs,
    In<std::uint8_t> /*input_tree_mask*/, Out<std::int32_t> status, Out<std::int64_t> detail) {
    const Layer layer = {W, K, W * K};
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        StoredLayer stored = {};
        load_layer(topk_tokens + place(b, layer.n, 0), sort_layer_indices + place(b, layer.n, 0),
                   frontier_indexs + place(b, W, 0), layer, stored);
        const Refusal refusal = check_layer(stored, layer, cumu_count);
        tell(refusal, b, status, detail);
    }
}

inline void update_cumu_draft_state(
    std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
    std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
    std::int32_t compat, Out<std::int64_t> cumu_tokens, Out<float> cumu_scores,
    Out<std::int64_t> cumu_deltas, Out<std::int64_t> prev_indexs, Out<std::int64_t> next_indexs,
    Out<std::int64_t> side_indexs, Out<float> sort_scores, In<float> curr_layer_scores,
    In<std::int64_t> topk_tokens, In<float> sort_layer_scores,
    In<std::int64_t> sort_layer_indices, In<std::int64_t> frontier_indexs,
    In<std::uint8_t> input_tree_mask, Out<float> output_scores, Out<std::int64_t> output_tokens,
    Out<float> work_scores, Out<std::uint8_t> output_tree_mask, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    static std::uint8_t masks[Config::MAX_WIDTH * Config::MAX_FED];
    const Layer layer = {W, K, W * K};
    const std::int32_t old_count = lower(verify_num, cumu_count);
    const std::int32_t new_count = lower(verify_num, cumu_count + layer.n);
    const std::int32_t work_count = old_count + K;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t first = place(b, layer.n, 0);
        const std::int64_t best = place(b, K, 0);
        const std::int64_t nodes = place(b, N, 0);
        const Out<float> work = work_scores + place(b, work_count, 0);
        const Out<std::uint8_t> mask = output_tree_mask + place(best, F, 0);
        StoredLayer stored = {};
        load_layer(topk_tokens + first, sort_layer_indices + first,
                   frontier_indexs + place(b, W, 0), layer, stored);
        const Refusal refusal = check_layer(stored, layer, cumu_count);
        tell(refusal, b, status, detail);
        if (is_refused(refusal)) {
            fill<float>(output_scores + best, K, 0.0F);
            fill<std::int64_t>(output_tokens + best, K, -1);
            fill<float>(work, work_count, 0.0F);
            fill<std::uint8_t>(mask, place(K, F, 0), 0);
            continue;
        }
        load(curr_layer_scores + first, layer.n, stored.scores);
        load(sort_layer_scores + first, layer.n, stored.sorted);
        load(input_tree_mask + place(place(b, W, 0), F, 0), W * F, masks);
        Running running = {};
        load(sort_scores + place(b, M, 0), old_count, running.scores);
    store_node:
        for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
            if (c >= layer.n) {
                break;
            }
            // A parent's depth is read once, with its first child.
            const std::int32_t t = c / K;
            if (c % K == 0) {
                stored.depths[t] = cumu_deltas[nodes + stored.frontier[t]];
                next_indexs[nodes + stored.frontier[t]] = cumu_count + c;
            }
            const Node node = node_of(stored, layer, c, cumu_count, compat != 0);
            const std::int64_t at = nodes + cumu_count + c;
            cumu_tokens[at] = node.token;
            cumu_scores[at] = node.score;
            cumu_deltas[at] = node.depth;
            prev_indexs[at] = node.parent;
            next_indexs[at] = NO_NODE;
            side_indexs[at] = node.next_sibling;
        }
    emit_masks:
        for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
            if (i >= K) {
                break;
            }
            const std::int64_t parent = stored.order[i] / K;
        mask_column:
            for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
                if (f >= F) {
                    break;
                }
                const bool is_self = f == fed_count + i;
                mask[place(i, F, f)] = is_self ? 1 : masks[place(parent, F, f)];
            }
        }
    emit_frontier:
        for (std::int32_t i = 0; i < Config::MAX_TOP_K; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= K) {
                break;
            }
            output_scores[best + i] = stored.sorted[i];
            output_tokens[best + i] = stored.tokens[stored.order[i]];
            work[old_count + i] = stored.sorted[i];
        }
        store(running.scores, old_count, work);
        merge_scores(running, old_count, stored.sorted, layer.n);
        store(running.scores, new_count, sort_scores + place(b, M, 0));
    }
}

// ---- K3 ----

inline void calculate_work_deltas(std::int32_t B, std::int32_t C, std::int32_t node_top_k,
                                  std::int32_t verify_num, In<float> work_scores, Out<float> G) {
    // Sums over requests are exact, so their order does not matter; each is rounded once.
    Exact gains[Config::MAX_TOP_K + 1] = {};
#pragma HLS ARRAY_PARTITION variable=gains complete
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        float scores[Config::MAX_WORK] = {};
        load(work_scores + place(b, C, 0), C, scores);
        weigh_new(scores, C - node_top_k, node_top_k, verify_num, gains);
    }
emit_gains:
    for (std::int32_t k = 0; k < Config::MAX_TOP_K + 1; ++k) {
        if (k > node_top_k) {
            break;
        }
        G[k] = mean_of(gains[k], static_cast<std::uint32_t>(higher(B, 1)));
    }
}

}  // namespace aerie
