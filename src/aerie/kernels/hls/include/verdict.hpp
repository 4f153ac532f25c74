// K5 and K6: probabilities of the target, the walk through the tree, the target's own tokens.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"
#include "sampling.hpp"
#include "softmax.hpp"
#include "walk.hpp"

namespace aerie {

// What a row of scores may not be: NaN or +inf anywhere, or -inf everywhere.
struct RowState {
    bool is_finite;
    bool has_token;
};

inline void look_at(RowState& state, float score) {
    state.is_finite = state.is_finite && !is_nan(score) && score != INFINITE;
    state.has_token = state.has_token || score > -INFINITE;
}

// NaN anywhere in a request comes before a masked row, whichever is met first.
inline void judge_row(Refusal& refusal, const RowState& state, std::int32_t flat) {
    constexpr std::int32_t MASKED = static_cast<std::int32_t>(Status::ALL_MASKED);
    if (!state.is_finite && (refusal.status == 0 || refusal.status == MASKED)) {
        refusal.status = static_cast<std::int32_t>(Status::NOT_FINITE);
        refusal.detail = flat;
    } else if (!state.has_token) {
        refuse(refusal, Status::ALL_MASKED, flat);
    }
}

// ---- K5 ----

// One row on chip, divided by the temperature, and its largest score.
struct ScaledRow {
    float scores[Config::MAX_VOCAB];
    float largest;
    std::int32_t best;
};

inline RowState load_scaled(In<float> logits, std::int32_t V, float temperature, ScaledRow& row) {
    RowState state = {true, false};
    row.largest = -INFINITE;
    row.best = 0;
load_logit:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        const float logit = logits[v];
        const float t = is_greedy(temperature) ? logit : logit / temperature;
        row.scores[v] = t;
        row.best = t > row.largest ? v : row.best;
        row.largest = t > row.largest ? t : row.largest;
        look_at(state, t);
    }
    return state;
}

// A row's scores to probabilities where they lie: one-hot if greedy, else two passes of exp by
// table, one for the sum and one for the quotients.
inline void to_probabilities(ScaledRow& row, std::int32_t V, float temperature) {
    std::uint64_t sum = 0;
sum_powers:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        sum += summand(power_of_e(row.scores[v] - row.largest));
    }
    const Reciprocal reciprocal = reciprocal_of(sum);
make_quotients:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        const float share = quotient(power_of_e(row.scores[v] - row.largest), reciprocal);
        row.scores[v] = is_greedy(temperature) ? (v == row.best ? 1.0F : 0.0F) : share;
    }
}

inline void convert_logits_to_probas(std::int32_t B, std::int32_t R, std::int32_t V,
                                     In<float> logits, In<float> temperature,
                                     In<std::int32_t> qo_indptr, Out<float> target_probas,
                                     Out<std::int32_t> status, Out<std::int64_t> detail) {
    static ScaledRow scaled;
#pragma HLS BIND_STORAGE variable=scaled type=ram_2p impl=uram
    RowPointers pointers = begin_rows(qo_indptr);
    std::int64_t covered = 0;  // rows up to here are written
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const float heat = temperature[b];
        const Rows rows = next_rows(refusal, pointers, qo_indptr[b + 1], R, R);
        if (!is_temperature(heat)) {
            refuse(refusal, Status::BAD_PARAMETER, 0);
        }
        const bool is_read = !is_refused(refusal);
        std::int64_t written = rows.first;
        if (is_read && rows.count > 0) {
            fill<float>(target_probas + place(covered, V, 0), place(rows.first - covered, V, 0),
                        0.0F);
            covered = rows.first;
        }
    convert_rows:
        for (std::int32_t row = 0; row < Config::MAX_ROWS; ++row) {
            if (row >= rows.count || !is_read) {
                break;
            }
            const std::int64_t line = place(rows.first + row, V, 0);
            const RowState state = load_scaled(logits + line, V, heat, scaled);
            judge_row(refusal, state, rows.first + row);
            if (!is_refused(refusal)) {
                to_probabilities(scaled, V, heat);
                store(scaled.scores, V, target_probas + line);
                ++written;
            }
        }
        // A request that fails late takes its rows back; one without rows has written none.
        if (!is_refused(refusal) && rows.count > 0) {
            covered = written;
        }
        tell(refusal, b, status, detail);
    }
    fill<float>(target_probas + place(covered, V, 0), place(R - covered, V, 0), 0.0F);
}

// ---- K6 ----

// What the rule of coins asks of tokens: the root's was decided in an earlier round.
inline void check_vocabulary(Refusal& refusal, const Tree& tree, std::int32_t V) {
check_token:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= tree.count) {
            break;
        }
        if (row > 0 && (tree.tokens[row] < 0 || tree.tokens[row] >= V)) {
            refuse(refusal, Status::OUT_OF_RANGE, tree.tokens[row]);
        }
    }
}

// The column of the first coin outside [0, 1), or -1.
inline std::int32_t find_bad_coin(const Coins& coins, std::int32_t n_coins) {
    std::int32_t found = -1;
check_coin:
    for (std::int32_t column = 0; column < Config::MAX_RUN + 1; ++column) {
#pragma HLS PIPELINE II=1
        if (column >= n_coins) {
            break;
        }
        const bool is_good = coins.toss[column] >= 0.0F && coins.toss[column] < 1.0F;
        found = found == -1 && !is_good ? column : found;
    }
    return found;
}

// A row of probabilities to the chip, with its argmax; whether all are finite and not negative.
inline bool load_probas(In<float> probas, std::int32_t V, float (&row)[Config::MAX_VOCAB],
                        std::int32_t& best) {
    bool is_good = true;
    best = 0;
    float largest = 0.0F;
load_proba:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        const float p = probas[v];
        row[v] = p;
        is_good = is_good && is_finite(p) && p >= 0.0F;
        best = p > largest ? v : best;
        largest = p > largest ? p : largest;
    }
    return is_good;
}

// Walk by coins while the rows stream past once, all of them: a fault in a row that the walk does
// not visit refuses the request all the same.
inline Path walk_tossing(Refusal& refusal, const Tree& tree, In<float> probas, std::int32_t V,
                         const Coins& coins, std::int32_t tree_depth) {
    static float row_probas[Config::MAX_VOCAB];
#pragma HLS BIND_STORAGE variable=row_probas type=ram_2p impl=uram
    Tossing tossing = begin_tossing();
    const std::int32_t bad_coin = find_bad_coin(coins, tree_depth + 2);
toss_rows:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        std::int32_t best = 0;
        if (!load_probas(probas + place(row, V, 0), V, row_probas, best)) {
            refuse(refusal, Status::NOT_FINITE, row);
        }
        if (!is_refused(refusal) && bad_coin == -1) {
            toss_row(tossing, tree, row, row_probas, V, best, coins, tree_depth);
        }
    }
    if (bad_coin != -1) {
        refuse(refusal, Status::BAD_PARAMETER, bad_coin);
    }
    return tossing.path;
}

inline void draft_tree_reject_sample(
    std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t tree_depth,
    std::int32_t has_target_probas, std::int32_t /*has_coins*/, std::int32_t /*has_target_tokens*/,
    In<std::int32_t> qo_indptr, In<std::int64_t> draft_tokens, In<std::int64_t> first_child_row,
    In<std::int64_t> next_sibling_row, In<float> target_probas, In<float> coins,
    In<std::int64_t> target_tokens, Out<std::int64_t> accept_index, Out<std::int64_t> accept_count,
    Out<std::int64_t> bonus_token, Out<std::int32_t> status, Out<std::int64_t> detail) {
    // The card gives probabilities with coins, or target tokens, and never both.
    const bool is_tossing = has_target_probas != 0;
    const std::int32_t n_coins = tree_depth + 2;
    RowPointers pointers = begin_rows(qo_indptr);
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Path path = {};
        Refusal refusal;
        Tree tree = {};
        const Rows rows = next_rows(refusal, pointers, qo_indptr[b + 1], R, Config::MAX_VERIFY);
        load_tree(draft_tokens, first_child_row, next_sibling_row, rows, tree);
        check_walk(refusal, tree);
        if (is_tossing) {
            check_vocabulary(refusal, tree, V);
        }
        if (!is_refused(refusal) && is_tossing) {
            Coins own = {};
            load(coins + place(b, n_coins, 0), n_coins, own.toss);
            path = walk_tossing(refusal, tree, target_probas + place(rows.first, V, 0), V, own,
                                tree_depth);
        } else if (!is_refused(refusal) && rows.count > 0) {
            std::int64_t wanted[Config::MAX_VERIFY] = {};
            load(target_tokens + rows.first, rows.count, wanted);
            walk_matching(tree, wanted, tree_depth, path);
        }
        if (path.depth < 0) {
            refuse(refusal, Status::TOO_DEEP, tree_depth + 1);
        }
        const bool has_path = !is_refused(refusal) && rows.count > 0;
        tell(refusal, b, status, detail);
        accept_count[b] = has_path ? path.depth : 0;
        bonus_token[b] = has_path ? path.bonus : -1;
    emit_path:
        for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
            if (k > tree_depth) {
                break;
            }
            accept_index[place(b, tree_depth + 1, k)] =
                has_path && k <= path.depth ? path.rows[k] : NONE;
        }
    }
}

// ---- sample_target_tokens ----

// Path tokens of one request's rows, or none.
struct Paths {
    std::int64_t tokens[Config::MAX_VERIFY];
    Ancestors ancestors[Config::MAX_VERIFY];
    std::int32_t count;
    bool is_given;
};

// Row 0 is committed: its token is in the counts already.
inline bool is_on_path(const Paths& paths, std::int32_t row, std::int32_t j) {
    return paths.is_given && j > 0 && is_ancestor(paths.ancestors[row], j);
}

inline void check_paths(Refusal& refusal, const Paths& paths, std::int32_t V) {
check_path_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= paths.count) {
            break;
        }
    check_path_token:
        for (std::int32_t j = 0; j < Config::MAX_VERIFY; ++j) {
#pragma HLS PIPELINE II=1
            if (j >= paths.count) {
                break;
            }
            const std::int64_t token = paths.tokens[j];
            if (is_on_path(paths, row, j) && (token < 0 || token >= V)) {
                refuse(refusal, Status::OUT_OF_RANGE, token);
            }
        }
    }
}

// Add `step` to the count of every token on a row's path.
inline void count_path(const Paths& paths, std::int32_t row, std::int32_t step,
                       std::int32_t (&on_path)[Config::MAX_VOCAB]) {
count_path_token:
    for (std::int32_t j = 0; j < Config::MAX_VERIFY; ++j) {
#pragma HLS PIPELINE
        if (j >= paths.count) {
            break;
        }
        if (is_on_path(paths, row, j)) {
            on_path[paths.tokens[j]] += step;
        }
    }
}

// Mark the stop tokens of a row whose next token stands before the floor, or take the marks back.
inline void mark_stops(const Sampler& sampler, const Tables& tables, std::int32_t V,
                       std::int64_t position, std::uint8_t mark,
                       std::uint8_t (&is_barred)[Config::MAX_VOCAB]) {
    if (!is_short(sampler, position)) {
        return;
    }
mark_stop:
    for (std::int32_t s = 0; s < Config::MAX_STOPS; ++s) {
#pragma HLS PIPELINE
        if (s >= sampler.n_stops) {
            break;
        }
        const std::int64_t token = tables.stop_tokens[s];
        if (token >= 0 && token < V) {
            is_barred[token] = mark;
        }
    }
}

// Scores of one row into the buffer, and what they are.
inline RowState adjust_row(const Sampler& sampler, const Tables& tables, In<float> logits,
                           std::int32_t V, const Paths& paths, std::int32_t row,
                           std::int64_t position, RowBuffers& buffers) {
    // All zero between calls: a path is counted, used and taken back, and so are stop tokens.
    static std::int32_t on_path[Config::MAX_VOCAB];
    static std::uint8_t is_barred[Config::MAX_VOCAB];
    RowState state = {true, false};
    count_path(paths, row, 1, on_path);
    mark_stops(sampler, tables, V, position, 1, is_barred);
adjust_each:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        buffers.scores[v] =
            adjusted(sampler, tables, logits[v], v, on_path[v], is_barred[v] != 0);
        look_at(state, buffers.scores[v]);
    }
    count_path(paths, row, -1, on_path);
    mark_stops(sampler, tables, V, position, 0, is_barred);
    return state;
}

inline void sample_target_tokens(
    std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t has_seed,
    std::int32_t has_sample_index, std::int32_t has_top_k, std::int32_t has_top_p,
    std::int32_t has_min_p, std::int32_t has_repetition_penalty,
    std::int32_t has_presence_penalty, std::int32_t has_frequency_penalty,
    std::int32_t has_prompt_counts, std::int32_t has_output_counts, std::int32_t has_logit_bias,
    std::int32_t has_draft_tokens, std::int32_t /*has_ancestor_bits*/,
    std::int32_t has_stop_tokens, std::int32_t /*has_floor_position*/, In<float> logits,
    In<std::int64_t> positions, In<float> temperature, In<std::int32_t> qo_indptr,
    In<std::int64_t> seed, In<std::int64_t> sample_index, In<std::int64_t> top_k, In<float> top_p,
    In<float> min_p, In<float> repetition_penalty, In<float> presence_penalty,
    In<float> frequency_penalty, In<std::int32_t> prompt_counts, In<std::int32_t> output_counts,
    In<float> logit_bias, In<std::int64_t> draft_tokens, In<std::uint32_t> ancestor_bits,
    In<std::int64_t> stop_tokens, In<std::int64_t> floor_position,
    Out<std::int64_t> target_tokens, Out<std::int32_t> status, Out<std::int64_t> detail) {
    static RowBuffers buffers;
    static Tables tables;
    static Paths paths;
#pragma HLS BIND_STORAGE variable=buffers type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=tables type=ram_2p impl=uram
    RowPointers pointers = begin_rows(qo_indptr);
    std::int64_t covered = 0;  // rows up to here are written
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const Sampler sampler = {temperature[b],
                                 has_seed != 0,
                                 has_seed != 0 ? seed[b] : 0,
                                 has_sample_index != 0 ? sample_index[b] : 0,
                                 has_top_k != 0 ? top_k[b] : 0,
                                 has_top_p != 0 ? top_p[b] : 1.0F,
                                 has_min_p != 0 ? min_p[b] : 0.0F,
                                 has_repetition_penalty != 0 ? repetition_penalty[b] : 1.0F,
                                 has_presence_penalty != 0 ? presence_penalty[b] : 0.0F,
                                 has_frequency_penalty != 0 ? frequency_penalty[b] : 0.0F,
                                 has_prompt_counts != 0,
                                 has_output_counts != 0,
                                 has_logit_bias != 0,
                                 has_stop_tokens != 0 ? S : 0,
                                 has_stop_tokens != 0 ? floor_position[b] : 0};
        Refusal refusal;
        const Rows rows = next_rows(refusal, pointers, qo_indptr[b + 1], R, Config::MAX_VERIFY);
        // The card gives tokens with their ancestor bits.
        paths.count = rows.count;
        paths.is_given = has_draft_tokens != 0;
        if (paths.is_given) {
            load(draft_tokens + rows.first, rows.count, paths.tokens);
            load_ancestors(ancestor_bits, rows, paths.ancestors);
        }
        if (!is_possible(sampler)) {
            refuse(refusal, Status::BAD_PARAMETER, 0);
        }
        check_paths(refusal, paths, V);
        const bool is_read = !is_refused(refusal) && rows.count > 0;
        if (is_read) {
            const std::int64_t table = place(b, V, 0);
            load(prompt_counts + table, sampler.has_prompt_counts ? V : 0, tables.prompt_counts);
            load(output_counts + table, sampler.has_output_counts ? V : 0, tables.output_counts);
            load(logit_bias + table, sampler.has_logit_bias ? V : 0, tables.logit_bias);
            load(stop_tokens + place(b, S, 0), sampler.n_stops, tables.stop_tokens);
        }
        std::int64_t chosen[Config::MAX_VERIFY] = {};
    choose_rows:
        for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
            if (row >= rows.count || !is_read) {
                break;
            }
            const std::int32_t flat = rows.first + row;
            const std::int64_t position = positions[flat];
            const RowState state = adjust_row(sampler, tables, logits + place(flat, V, 0), V,
                                              paths, row, position, buffers);
            judge_row(refusal, state, flat);
            if (!is_refused(refusal)) {
                chosen[row] = choose_token(buffers, V, sampler, position);
            }
        }
        tell(refusal, b, status, detail);
        if (!is_refused(refusal) && rows.count > 0) {
            fill<std::int64_t>(target_tokens + covered, rows.first - covered, -1);
            store(chosen, rows.count, target_tokens + rows.first);
            covered = rows.first + rows.count;
        }
    }
    fill<std::int64_t>(target_tokens + covered, R - covered, -1);
}

}  // namespace aerie
