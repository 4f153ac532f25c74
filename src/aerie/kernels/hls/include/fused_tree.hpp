// K1 to K7 in two regions: the levels of a draft with its layout, and the verdict with its commit.
//
// Between levels, and between the two, everything stays on chip: scores, links, running order,
// frontiers and rows. What crosses a port is what a neighbour outside needs.
#pragma once

#include "channel.hpp"
#include "commit.hpp"
#include "config.hpp"
#include "exact.hpp"
#include "layer.hpp"
#include "layout.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"
#include "verdict.hpp"
#include "walk.hpp"

namespace aerie {

// ---- chip state ----

// The nodes of one request, as narrow as their values are.
struct ChipNodes {
    std::int64_t tokens[Config::FUSED_NODES];
    float scores[Config::FUSED_NODES];
    std::uint8_t depths[Config::FUSED_NODES];
    std::int16_t parents[Config::FUSED_NODES];
};

// The slots a level grows from. Hidden rows are not moved: a slot remembers whose row it reads.
struct ChipFrontier {
    std::int32_t nodes[Config::MAX_TOP_K];
    float scores[Config::MAX_TOP_K];
    std::int32_t parent_slots[Config::MAX_TOP_K];
};

struct ChipRequest {
    ChipNodes nodes;
    ChipFrontier frontiers[2];  // of this level and of the next, taking turns
    Running running;
    Refusal refusal;
    Tree rows;
    Rows flat;  // where they are in the batch
};

struct ChipState {
    ChipRequest requests[Config::MAX_BATCH];
};

inline ChipState& chip_state() {
    static ChipState state;
#pragma HLS BIND_STORAGE variable=state type=ram_2p impl=uram
    return state;
}

// ---- F1: levels ----

struct Candidate {
    float proba;
    std::int64_t token;
};

struct Scored {
    float score;
    std::int64_t token;
};

// A candidate in both orders: its own place, and who has its rank.
struct Ranked {
    float score;
    std::int64_t token;
    float sorted;
    std::int32_t index;
};

// From ports, or from what a head has left on chip.
template <typename Probas, typename Tokens>
inline void read_level(const Probas& probas, const Tokens& tokens, const Layer& layer,
                       Channel<Candidate, Config::MAX_CANDIDATES>& out) {
read_candidate:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        out.write(Candidate{probas[c], tokens[c]});
    }
}

inline void score_level(Channel<Candidate, Config::MAX_CANDIDATES>& in, const Layer& layer,
                        const ChipFrontier& frontier,
                        Channel<Scored, Config::MAX_CANDIDATES>& out) {
score_candidate:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        const Candidate candidate = in.read();
        const float parent = frontier.scores[c / layer.top_k];
        out.write(Scored{path_score(candidate.proba, parent), candidate.token});
    }
}

inline void sort_level(Channel<Scored, Config::MAX_CANDIDATES>& in, const Layer& layer,
                       Channel<Ranked, Config::MAX_CANDIDATES>& out) {
    float scores[Config::MAX_CANDIDATES] = {};
    std::int64_t tokens[Config::MAX_CANDIDATES] = {};
    std::int32_t order[Config::MAX_CANDIDATES] = {};
#pragma HLS ARRAY_PARTITION variable=scores complete
#pragma HLS ARRAY_PARTITION variable=order complete
take_scored:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        const Scored scored = in.read();
        scores[c] = scored.score;
        tokens[c] = scored.token;
    }
    sort_descending(scores, layer.n, order);
give_ranked:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        out.write(Ranked{scores[c], tokens[c], scores[order[c]], order[c]});
    }
}

// Store the candidates as nodes, hand the best on as the next frontier, pass their scores on.
inline void store_level(Channel<Ranked, Config::MAX_CANDIDATES>& in, const Layer& layer,
                        std::int32_t count, std::uint8_t depth, const ChipFrontier& frontier,
                        ChipNodes& nodes, ChipFrontier& next, Refusal& refusal,
                        Channel<float, Config::MAX_CANDIDATES>& sorted) {
    std::int64_t siblings[Config::MAX_TOP_K] = {};
store_ranked:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        const Ranked ranked = in.read();
        const std::int32_t slot = c / layer.top_k;
        const std::int32_t place_in_slot = c % layer.top_k;
        siblings[place_in_slot] = ranked.token;
        if (place_in_slot == layer.top_k - 1) {
            const std::int32_t twin = smallest_twin(siblings, layer.top_k);
            if (twin != -1) {
                refuse(refusal, Status::DUPLICATE_SIBLING, siblings[twin]);
            }
        }
        nodes.tokens[count + c] = ranked.token;
        nodes.scores[count + c] = ranked.score;
        nodes.depths[count + c] = depth;
        nodes.parents[count + c] = static_cast<std::int16_t>(frontier.nodes[slot]);
        if (c < layer.top_k) {
            next.nodes[c] = count + ranked.index;
            next.scores[c] = ranked.sorted;
            next.parent_slots[c] = ranked.index / layer.top_k;
        }
        sorted.write(ranked.sorted);
    }
}

// The running order takes the layer in; before that, what its best bring is weighed (K3).
inline void merge_level(Channel<float, Config::MAX_CANDIDATES>& sorted, const Layer& layer,
                        std::int32_t count, std::int32_t verify_num, Running& running,
                        Exact (&gains)[Config::MAX_TOP_K + 1]) {
    float scores[Config::MAX_CANDIDATES] = {};
    float work[Config::MAX_WORK] = {};
    const std::int32_t old_count = lower(verify_num, count);
take_sorted:
    for (std::int32_t c = 0; c < Config::MAX_CANDIDATES; ++c) {
#pragma HLS PIPELINE II=1
        if (c >= layer.n) {
            break;
        }
        scores[c] = sorted.read();
    }
join_runs:
    for (std::int32_t i = 0; i < Config::MAX_WORK; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= old_count + layer.top_k) {
            break;
        }
        work[i] = i < old_count ? running.scores[i] : scores[i - old_count];
    }
    weigh_new(work, old_count, layer.top_k, verify_num, gains);
    merge_scores(running, old_count, scores, layer.n);
}

// One level of one request: every channel has one writer and one reader, and the two frontiers
// take turns.
template <typename Probas, typename Tokens>
inline void grow_level(const Probas& probas, const Tokens& tokens, const Layer& layer,
                       std::int32_t count, std::uint8_t depth, std::int32_t verify_num,
                       const ChipFrontier& frontier, ChipFrontier& next, ChipNodes& nodes,
                       Running& running, Refusal& refusal,
                       Exact (&gains)[Config::MAX_TOP_K + 1]) {
#pragma HLS DATAFLOW
    Channel<Candidate, Config::MAX_CANDIDATES> candidates;
    Channel<Scored, Config::MAX_CANDIDATES> scored;
    Channel<Ranked, Config::MAX_CANDIDATES> ranked;
    Channel<float, Config::MAX_CANDIDATES> sorted;
    read_level(probas, tokens, layer, candidates);
    score_level(candidates, layer, frontier, scored);
    sort_level(scored, layer, ranked);
    store_level(ranked, layer, count, depth, frontier, nodes, next, refusal, sorted);
    merge_level(sorted, layer, count, verify_num, running, gains);
}

inline void plant(ChipRequest& request, std::int64_t root_token) {
    request.refusal = Refusal{};
    request.nodes.tokens[0] = root_token;
    request.nodes.scores[0] = 1.0F;
    request.nodes.depths[0] = 0;
    request.nodes.parents[0] = -1;
    request.frontiers[0].nodes[0] = 0;
    request.frontiers[0].scores[0] = 1.0F;
    request.running.scores[0] = 1.0F;
}

// The best `most` nodes by (score, id), none without a score, ascending by id. The running order
// knows the score at which the choice ends; among equals the lower ids are taken.
inline void choose_nodes(const ChipRequest& request, std::int32_t count, std::int32_t most,
                         Chosen& chosen) {
    const std::int32_t n = lower(most, count);
    const float least = request.running.scores[n - 1];
    std::int32_t above = 0;
count_above:
    for (std::int32_t node = 0; node < Config::FUSED_NODES; ++node) {
#pragma HLS PIPELINE II=1
        if (node >= count) {
            break;
        }
        above += request.nodes.scores[node] > least ? 1 : 0;
    }
    std::int32_t ties = n - above;
    chosen.count = 0;
choose_node:
    for (std::int32_t node = 0; node < Config::FUSED_NODES; ++node) {
#pragma HLS PIPELINE II=1
        if (node >= count) {
            break;
        }
        const float score = request.nodes.scores[node];
        const bool is_tie = score == least && ties > 0;
        ties -= is_tie ? 1 : 0;
        const bool is_chosen = (score > least || is_tie) && score > 0.0F;
        chosen.row_of[node] = is_chosen ? chosen.count : -1;
        if (is_chosen) {
            chosen.nodes[chosen.count] = node;
            chosen.parents[chosen.count] = request.nodes.parents[node];
            chosen.tokens[chosen.count] = request.nodes.tokens[node];
            ++chosen.count;
        }
    }
}

// Rows of a request into the chip state: what the verdict will walk.
inline void keep_rows(const Chosen& chosen, const Links& links, std::int64_t first,
                      ChipRequest& request) {
    request.flat = Rows{static_cast<std::int32_t>(first), chosen.count};
    request.rows.count = chosen.count;
keep_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= chosen.count) {
            break;
        }
        request.rows.tokens[row] = chosen.tokens[row];
        request.rows.first_child[row] = links.first_child[row];
        request.rows.next_sibling[row] = links.next_sibling[row];
    }
}

// Where the next request's rows, slots and mask bytes go, and what was asked for in all.
struct LayoutHeads {
    std::int64_t rows;
    std::int64_t slots;
    std::int64_t bytes;
    std::int64_t asked_rows;
    std::int64_t asked_slots;
    std::int64_t asked_bytes;
};

struct LayoutCapacity {
    std::int32_t rows;
    std::int32_t slots;
    std::int32_t bytes;
};

// K10c's refusal, then K4's, in their order.
inline void check_layout(Refusal& refusal, LayoutHeads& heads, const LayoutCapacity& capacity,
                         std::int32_t n_rows, std::int64_t columns, std::int64_t n_bytes) {
    heads.asked_rows += n_rows;
    if (heads.asked_rows > capacity.rows) {
        refuse(refusal, Status::SLOT_CAPACITY, heads.asked_rows);
    }
    if (is_refused(refusal)) {
        return;
    }
    heads.asked_slots += columns;
    heads.asked_bytes += n_bytes;
    if (heads.asked_slots > capacity.slots) {
        refuse(refusal, Status::KV_CAPACITY, heads.asked_slots);
    }
    if (heads.asked_bytes > capacity.bytes) {
        refuse(refusal, Status::MASK_CAPACITY, heads.asked_bytes);
    }
}

// What a draft hands to the target.
struct LayoutPorts {
    Out<std::int32_t> qo_indptr;
    Out<std::int64_t> draft_tokens;
    Out<std::int64_t> positions;
    Out<std::uint32_t> ancestor_bits;
    Out<std::int32_t> kv_indptr;
    Out<std::int32_t> kv_indices;
    Out<std::int32_t> mask_indptr;
    Out<std::uint8_t> packed_mask;
    Out<std::int32_t> status;
    Out<std::int64_t> detail;
};

// The request-to-slot table.
struct SlotTable {
    In<std::int32_t> slots;
    std::int32_t n_rows;
    std::int32_t width;
};

// Gains of a level, rounded once.
inline void emit_level_gains(const Exact (&gains)[Config::MAX_TOP_K + 1], std::int32_t K,
                             std::int32_t B, Out<float> G) {
emit_gain:
    for (std::int32_t k = 0; k < Config::MAX_TOP_K + 1; ++k) {
        if (k > K) {
            break;
        }
        G[k] = mean_of(gains[k], static_cast<std::uint32_t>(higher(B, 1)));
    }
}

// One request's rows, slots and mask.
inline void lay_out_request(ChipRequest& request, std::int64_t prefix, std::int64_t pool_row,
                            std::int32_t count, std::int32_t verify_num, const SlotTable& table,
                            const LayoutCapacity& capacity, LayoutHeads& heads,
                            const LayoutPorts& ports) {
    static Chosen chosen;
    static Links links;
    Refusal refusal = request.refusal;
    chosen.count = 0;
    if (!is_refused(refusal)) {
        choose_nodes(request, count, verify_num, chosen);
        check_table(refusal, pool_row, prefix, chosen.count, table.n_rows, table.width);
    }
    const std::int64_t columns = is_refused(refusal) ? 0 : prefix + chosen.count;
    const std::int64_t n_bytes = bytes_of_bits(chosen.count * columns);
    if (!is_refused(refusal)) {
        check_layout(refusal, heads, capacity, chosen.count, columns, n_bytes);
    }
    request.refusal = refusal;
    request.flat = Rows{};
    request.rows.count = 0;
    if (is_refused(refusal)) {
        return;
    }
    link_rows(chosen, links);
    keep_rows(chosen, links, heads.rows, request);
emit_rows:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= chosen.count) {
            break;
        }
        const std::int64_t flat = heads.rows + row;
        ports.draft_tokens[flat] = chosen.tokens[row];
        ports.positions[flat] = prefix + request.nodes.depths[chosen.nodes[row]];
    emit_words:
        for (std::int32_t word = 0; word < 4; ++word) {
            ports.ancestor_bits[place(flat, 4, word)] = links.ancestors[row].word[word];
        }
    }
    copy_slots(table.slots + place(pool_row, table.width, 0), columns,
               ports.kv_indices + heads.slots);
    pack_mask(links.ancestors, chosen.count, prefix, n_bytes, ports.packed_mask + heads.bytes);
    heads.rows += chosen.count;
    heads.slots += columns;
    heads.bytes += n_bytes;
}

// Rows, slot lists and masks of the whole batch, and what no request needed of them.
inline void lay_out_batch(ChipState& chip, std::int32_t B, std::int32_t count,
                          std::int32_t verify_num, In<std::int64_t> seq_len,
                          In<std::int64_t> req_pool_indices, const SlotTable& table,
                          const LayoutCapacity& capacity, const LayoutPorts& ports) {
    LayoutHeads heads = {0, 0, 0, 0, 0, 0};
    ports.qo_indptr[0] = 0;
    ports.kv_indptr[0] = 0;
    ports.mask_indptr[0] = 0;
lay_out:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        ChipRequest& request = chip.requests[b];
        lay_out_request(request, seq_len[b], req_pool_indices[b], count, verify_num, table,
                        capacity, heads, ports);
        tell(request.refusal, b, ports.status, ports.detail);
        ports.qo_indptr[b + 1] = static_cast<std::int32_t>(heads.rows);
        ports.kv_indptr[b + 1] = static_cast<std::int32_t>(heads.slots);
        ports.mask_indptr[b + 1] = static_cast<std::int32_t>(heads.bytes);
    }
    const std::int64_t unused = capacity.rows - heads.rows;
    fill<std::int64_t>(ports.draft_tokens + heads.rows, unused, -1);
    fill<std::int64_t>(ports.positions + heads.rows, unused, 0);
    fill<std::uint32_t>(ports.ancestor_bits + place(heads.rows, 4, 0), place(unused, 4, 0), 0);
    fill<std::int32_t>(ports.kv_indices + heads.slots, capacity.slots - heads.slots, -1);
    fill<std::uint8_t>(ports.packed_mask + heads.bytes, capacity.bytes - heads.bytes, 0);
}

inline void plant_batch(ChipState& chip, std::int32_t B, In<std::int64_t> root_tokens) {
plant_roots:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        plant(chip.requests[b], root_tokens[b]);
    }
}

inline void fused_growth(
    std::int32_t B, std::int32_t D, std::int32_t W, std::int32_t P, std::int32_t L,
    std::int32_t K, std::int32_t verify_num, std::int32_t row_capacity, std::int32_t kv_capacity,
    std::int32_t mask_capacity, In<std::int32_t> widths, In<float> level_probas,
    In<std::int64_t> level_tokens, In<std::int64_t> root_tokens, In<std::int64_t> seq_len,
    In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices, Out<float> G,
    Out<std::int32_t> qo_indptr, Out<std::int64_t> draft_tokens, Out<std::int64_t> positions,
    Out<std::uint32_t> ancestor_bits, Out<std::int32_t> kv_indptr, Out<std::int32_t> kv_indices,
    Out<std::int32_t> mask_indptr, Out<std::uint8_t> packed_mask, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    ChipState& chip = chip_state();
    plant_batch(chip, B, root_tokens);
    std::int32_t count = 1;
levels:
    for (std::int32_t d = 0; d < Config::MAX_LEVELS; ++d) {
        if (d >= D) {
            break;
        }
        const std::int32_t width = widths[d];
        const Layer layer = {width, K, width * K};
        Exact gains[Config::MAX_TOP_K + 1] = {};
    grow_requests:
        for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
            if (b >= B) {
                break;
            }
            ChipRequest& request = chip.requests[b];
            if (is_refused(request.refusal)) {
                continue;
            }
            const std::int64_t first = place(place(d, B, b), W * K, 0);
            grow_level(level_probas + first, level_tokens + first, layer, count,
                       static_cast<std::uint8_t>(d + 1), verify_num, request.frontiers[d % 2],
                       request.frontiers[(d + 1) % 2], request.nodes, request.running,
                       request.refusal, gains);
        }
        emit_level_gains(gains, K, B, G + place(d, K + 1, 0));
        count += layer.n;
    }
    lay_out_batch(chip, B, count, verify_num, seq_len, req_pool_indices,
                  SlotTable{req_to_token, P, L},
                  LayoutCapacity{row_capacity, kv_capacity, mask_capacity},
                  LayoutPorts{qo_indptr, draft_tokens, positions, ancestor_bits, kv_indptr,
                              kv_indices, mask_indptr, packed_mask, status, detail});
}

// ---- F2: verdict and commit ----

// Which way a walk goes: by coins, by the argmax of each row, or nowhere, for a coin is bad.
enum class Rule { coins, argmax, none };

// Walk one request while its rows of logits stream past once.
inline Path judge_request(Refusal& refusal, const Tree& tree, In<float> logits, std::int32_t V,
                          float temperature, Rule rule, const Coins& coins,
                          std::int32_t tree_depth, std::int32_t first) {
    static ScaledRow scaled;
#pragma HLS BIND_STORAGE variable=scaled type=ram_2p impl=uram
    std::int64_t wanted[Config::MAX_VERIFY] = {};
    Tossing tossing = begin_tossing();
judge_rows:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        const RowState state = load_scaled(logits + place(row, V, 0), V, temperature, scaled);
        judge_row(refusal, state, first + row);
        wanted[row] = scaled.best;
        const bool is_current = !tossing.has_ended && tossing.path.rows[tossing.path.depth] == row;
        if (!is_refused(refusal) && rule == Rule::coins && is_current) {
            const std::int32_t best = scaled.best;
            to_probabilities(scaled, V, temperature);
            toss_row(tossing, tree, row, scaled.scores, V, best, coins, tree_depth);
        }
    }
    if (rule == Rule::argmax && !is_refused(refusal) && tree.count > 0) {
        walk_matching(tree, wanted, tree_depth, tossing.path);
    }
    if (tossing.path.depth < 0) {
        refuse(refusal, Status::TOO_DEEP, tree_depth + 1);
    }
    return tossing.path;
}

inline void fused_verdict(
    std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t P,
    std::int32_t L, std::int32_t D, std::int32_t has_coins, std::int32_t has_qo_indptr,
    std::int32_t /*has_draft_tokens*/, std::int32_t /*has_first_child_row*/,
    std::int32_t /*has_next_sibling_row*/, In<float> logits, In<float> temperature,
    In<float> coins, In<std::int32_t> qo_indptr, In<std::int64_t> draft_tokens,
    In<std::int64_t> first_child_row, In<std::int64_t> next_sibling_row, In<std::int64_t> seq_len,
    In<std::int64_t> length_limit, In<std::int64_t> stop_tokens, In<std::int32_t> req_to_token,
    In<std::int64_t> req_pool_indices, Out<std::int64_t> out_tokens, Out<std::int32_t> out_indptr,
    Out<std::int64_t> out_rows, Out<std::int32_t> rows_indptr, Out<std::int64_t> new_seq_len,
    Out<std::uint8_t> finished, Out<std::int64_t> unfinished, Out<std::int32_t> unfinished_count,
    Out<std::int32_t> kv_src, Out<std::int32_t> kv_dst, Out<std::int32_t> move_count,
    Out<std::int32_t> free, Out<std::int32_t> free_count, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    static Run run;
    ChipState& chip = chip_state();
    const CommitPorts ports = {out_tokens, out_indptr, out_rows, rows_indptr, new_seq_len,
                               finished, unfinished, unfinished_count, kv_src, kv_dst,
                               move_count, free, free_count, status, detail};
    const bool is_given = has_qo_indptr != 0;
    Heads heads = begin_commit(ports);
    RowPointers pointers = is_given ? begin_rows(qo_indptr) : RowPointers{0, 0};
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        ChipRequest& request = chip.requests[b];
        const float heat = temperature[b];
        const std::int64_t prefix = seq_len[b];
        const std::int64_t pool_row = req_pool_indices[b];
        Refusal refusal = is_given ? Refusal{} : request.refusal;
        if (is_given) {
            request.flat =
                next_rows(refusal, pointers, qo_indptr[b + 1], R, Config::MAX_VERIFY);
            load_tree(draft_tokens, first_child_row, next_sibling_row, request.flat,
                      request.rows);
        }
        const Rows rows = request.flat;
        Coins own_coins = {};
        load(coins + place(b, D + 2, 0), has_coins != 0 ? D + 2 : 0, own_coins.toss);
        if (!is_temperature(heat) || (has_coins == 0 && !is_greedy(heat))) {
            refuse(refusal, Status::BAD_PARAMETER, 0);
        }
        check_walk(refusal, request.rows);
        check_vocabulary(refusal, request.rows, V);
        const std::int32_t bad_coin = has_coins != 0 ? find_bad_coin(own_coins, D + 2) : -1;
        const Rule rule = has_coins == 0   ? Rule::argmax
                          : bad_coin == -1 ? Rule::coins
                                           : Rule::none;
        check_table(refusal, pool_row, prefix, rows.count, P, L);
        Path path = {};
        if (!is_refused(refusal)) {
            path = judge_request(refusal, request.rows, logits + place(rows.first, V, 0), V, heat,
                                 rule, own_coins, D, rows.first);
        }
        if (bad_coin != -1) {
            refuse(refusal, Status::BAD_PARAMETER, bad_coin);
        }
        std::int64_t new_length = prefix;
        bool is_last = false;
        if (!is_refused(refusal) && rows.count > 0) {
        keep_path:
            for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
                run.path[k] = path.rows[k];
            }
            load(stop_tokens + place(b, S, 0), S, run.stops);
            load(req_to_token + place(pool_row, L, prefix), rows.count, run.slots);
            const Committing own = {b, rows, path.depth, path.bonus, prefix, length_limit[b], S};
            new_length = commit_run(own, run, request.rows.tokens, heads, ports, is_last);
        }
        end_request(refusal, b, new_length, is_last, heads, ports);
    }
    end_commit(heads, ports, B, place(B, D + 1, 0), R);
}

}  // namespace aerie
