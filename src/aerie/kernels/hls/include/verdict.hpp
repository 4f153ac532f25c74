// K5 and K6: probabilities of the target, the walk through the tree, the target's own tokens.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"
#include "sampling.hpp"
#include "walk.hpp"

namespace aerie {

// ---- K5 ----

inline float scaled(float logit, float temperature) {
    return is_greedy(temperature) ? logit : logit / temperature;
}

// What a row of scores may not be: NaN or +inf anywhere, or -inf everywhere.
struct RowState {
    bool is_finite;
    bool has_token;
};

inline void look_at(RowState& state, float score) {
    state.is_finite = state.is_finite && !is_nan(score) && score != INFINITE;
    state.has_token = state.has_token || score > -INFINITE;
}

inline RowState look_at_row(const float* logits, std::int32_t V, float temperature) {
    RowState state = {true, false};
look_at_logit:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        look_at(state, scaled(logits[v], temperature));
    }
    return state;
}

// NaN anywhere in a request comes before a masked row: two passes over its states.
inline void judge_rows(Refusal& refusal, const RowState* states, const Rows& rows) {
judge_finite:
    for (std::int32_t row = 0; row < Config::MAX_ROWS; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= rows.count) {
            break;
        }
        if (!states[row].is_finite) {
            refuse(refusal, Status::NOT_FINITE, rows.first + row);
        }
    }
judge_masked:
    for (std::int32_t row = 0; row < Config::MAX_ROWS; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= rows.count) {
            break;
        }
        if (!states[row].has_token) {
            refuse(refusal, Status::ALL_MASKED, rows.first + row);
        }
    }
}

inline void emit_one_hot(const float* logits, std::int32_t V, float* probas) {
    const std::int32_t best = argmax(logits, V);
emit_hot:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        probas[v] = v == best ? 1.0F : 0.0F;
    }
}

// Three passes over the row: the largest, the sum in double, the quotients.
inline void emit_softmax(const float* logits, std::int32_t V, float temperature, float* probas) {
    static double raised[Config::MAX_VOCAB];
#pragma HLS BIND_STORAGE variable=raised type=ram_2p impl=uram
    float largest = -INFINITE;
find_largest:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        const float t = scaled(logits[v], temperature);
        largest = t > largest ? t : largest;
    }
    double sum = 0.0;
sum_raised:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
        if (v >= V) {
            break;
        }
        const float d = scaled(logits[v], temperature) - largest;
        raised[v] = exponential(static_cast<double>(d));
        sum += raised[v];
    }
emit_quotients:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        probas[v] = static_cast<float>(raised[v] / sum);
    }
}

inline void convert_logits_to_probas(std::int32_t B, std::int32_t R, std::int32_t V,
                                     const float* logits, const float* temperature,
                                     const std::int32_t* qo_indptr, float* target_probas,
                                     std::int32_t* status, std::int64_t* detail) {
    static RowState states[Config::MAX_ROWS];
    fill<float>(target_probas, place(R, V, 0), 0.0F);
    std::int32_t highest = Config::INT32_LOWEST;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const Rows rows = request_rows(refusal, qo_indptr, b, highest, R, R);
        highest = higher(highest, qo_indptr[b]);
        if (!is_temperature(temperature[b])) {
            refuse(refusal, Status::BAD_PARAMETER, 0);
        }
        if (!is_refused(refusal)) {
        look_at_rows:
            for (std::int32_t row = 0; row < Config::MAX_ROWS; ++row) {
                if (row >= rows.count) {
                    break;
                }
                const float* line = logits + place(rows.first + row, V, 0);
                states[row] = look_at_row(line, V, temperature[b]);
            }
            judge_rows(refusal, states, rows);
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (is_refused(refusal)) {
            continue;
        }
    emit_rows:
        for (std::int32_t row = 0; row < Config::MAX_ROWS; ++row) {
            if (row >= rows.count) {
                break;
            }
            const std::int64_t line = place(rows.first + row, V, 0);
            if (is_greedy(temperature[b])) {
                emit_one_hot(logits + line, V, target_probas + line);
            } else {
                emit_softmax(logits + line, V, temperature[b], target_probas + line);
            }
        }
    }
}

// ---- K6 ----

// What the rule of coins asks beyond the tree: known tokens, probabilities, coins in [0, 1).
inline void check_coins(Refusal& refusal, const Tree& tree, const float* probas, std::int32_t V,
                        const float* coins, std::int32_t n_coins) {
check_token:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        // The root's token was decided in an earlier round and is not looked up.
        if (row > 0 && (tree.tokens[row] < 0 || tree.tokens[row] >= V)) {
            refuse(refusal, Status::OUT_OF_RANGE, tree.tokens[row]);
        }
    }
check_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
    check_proba:
        for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
            if (v >= V) {
                break;
            }
            const float p = probas[place(row, V, v)];
            if (!is_finite(p) || p < 0.0F) {
                refuse(refusal, Status::NOT_FINITE, row);
            }
        }
    }
check_coin:
    for (std::int32_t column = 0; column < Config::MAX_RUN + 1; ++column) {
#pragma HLS PIPELINE II=1
        if (column >= n_coins) {
            break;
        }
        if (!(coins[column] >= 0.0F && coins[column] < 1.0F)) {
            refuse(refusal, Status::BAD_PARAMETER, column);
        }
    }
}

inline void draft_tree_reject_sample(
    std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t tree_depth,
    std::int32_t has_target_probas, std::int32_t /*has_coins*/, std::int32_t /*has_target_tokens*/,
    const std::int32_t* qo_indptr, const std::int64_t* draft_tokens,
    const std::int64_t* first_child_row, const std::int64_t* next_sibling_row,
    const float* target_probas, const float* coins, const std::int64_t* target_tokens,
    std::int64_t* accept_index, std::int64_t* accept_count, std::int64_t* bonus_token,
    std::int32_t* status, std::int64_t* detail) {
    // The card gives probabilities with coins, or target tokens, and never both.
    const bool is_tossing = has_target_probas != 0;
    const std::int32_t n_coins = tree_depth + 2;
    fill<std::int64_t>(accept_index, place(B, tree_depth + 1, 0), -1);
    fill<std::int64_t>(accept_count, B, 0);
    fill<std::int64_t>(bonus_token, B, -1);
    std::int32_t highest = Config::INT32_LOWEST;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Path path = {};
        Refusal refusal;
        const Rows rows = request_rows(refusal, qo_indptr, b, highest, R, Config::MAX_VERIFY);
        highest = higher(highest, qo_indptr[b]);
        const Tree tree = {draft_tokens + rows.first, first_child_row + rows.first,
                           next_sibling_row + rows.first, rows.count};
        check_walk(refusal, tree);
        if (is_tossing) {
            check_coins(refusal, tree, target_probas + place(rows.first, V, 0), V,
                        coins + place(b, n_coins, 0), n_coins);
        }
        if (!is_refused(refusal) && rows.count > 0) {
            if (is_tossing) {
                walk_tossing(tree, target_probas + place(rows.first, V, 0), V,
                             coins + place(b, n_coins, 0), tree_depth, path);
            } else {
                walk_matching(tree, target_tokens + rows.first, tree_depth, path);
            }
            if (path.depth < 0) {
                refuse(refusal, Status::TOO_DEEP, tree_depth + 1);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (is_refused(refusal) || rows.count == 0) {
            continue;
        }
        accept_count[b] = path.depth;
        bonus_token[b] = path.bonus;
    emit_path:
        for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
            if (k > path.depth) {
                break;
            }
            accept_index[place(b, tree_depth + 1, k)] = path.rows[k];
        }
    }
}

// ---- sample_target_tokens ----

// Path tokens of one request's rows, or none.
struct Paths {
    const std::int64_t* tokens;
    const std::uint32_t* ancestor_bits;
    Rows rows;
    bool is_given;
};

inline bool is_on_path(const Paths& paths, std::int32_t row, std::int32_t j) {
    return paths.is_given && is_ancestor(paths.ancestor_bits, paths.rows.first + row, j);
}

inline void check_paths(Refusal& refusal, const Paths& paths, std::int32_t V) {
check_path_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= paths.rows.count) {
            break;
        }
    check_path_token:
        for (std::int32_t j = 0; j < Config::MAX_VERIFY; ++j) {
#pragma HLS PIPELINE II=1
            if (j >= paths.rows.count) {
                break;
            }
            // Row 0 is committed: its token is in the counts already.
            if (j > 0 && is_on_path(paths, row, j)) {
                const std::int64_t token = paths.tokens[paths.rows.first + j];
                if (token < 0 || token >= V) {
                    refuse(refusal, Status::OUT_OF_RANGE, token);
                }
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
        if (j >= paths.rows.count) {
            break;
        }
        if (j > 0 && is_on_path(paths, row, j)) {
            on_path[paths.tokens[paths.rows.first + j]] += step;
        }
    }
}

// Mark the stop tokens of a row whose next token stands before the floor, or take the marks back.
inline void mark_stops(const Sampler& sampler, std::int32_t V, std::int64_t position,
                       std::uint8_t mark, std::uint8_t (&is_barred)[Config::MAX_VOCAB]) {
    if (!is_short(sampler, position)) {
        return;
    }
mark_stop:
    for (std::int32_t s = 0; s < Config::MAX_STOPS; ++s) {
#pragma HLS PIPELINE
        if (s >= sampler.n_stops) {
            break;
        }
        const std::int64_t token = sampler.stop_tokens[s];
        if (token >= 0 && token < V) {
            is_barred[token] = mark;
        }
    }
}

// Scores of one row into the buffer, and what they are.
inline RowState adjust_row(const Sampler& sampler, const float* logits, std::int32_t V,
                           const Paths& paths, std::int32_t row, std::int64_t position,
                           RowBuffers& buffers) {
    // All zero between calls: a path is counted, used and taken back, and so are stop tokens.
    static std::int32_t on_path[Config::MAX_VOCAB];
    static std::uint8_t is_barred[Config::MAX_VOCAB];
    RowState state = {true, false};
    count_path(paths, row, 1, on_path);
    mark_stops(sampler, V, position, 1, is_barred);
adjust_each:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        buffers.scores[v] = adjusted(sampler, logits[v], v, on_path[v], is_barred[v] != 0);
        look_at(state, buffers.scores[v]);
    }
    count_path(paths, row, -1, on_path);
    mark_stops(sampler, V, position, 0, is_barred);
    return state;
}

inline void sample_target_tokens(
    std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t has_seed,
    std::int32_t has_sample_index, std::int32_t has_top_k, std::int32_t has_top_p,
    std::int32_t has_min_p, std::int32_t has_repetition_penalty,
    std::int32_t has_presence_penalty, std::int32_t has_frequency_penalty,
    std::int32_t has_prompt_counts, std::int32_t has_output_counts, std::int32_t has_logit_bias,
    std::int32_t has_draft_tokens, std::int32_t /*has_ancestor_bits*/,
    std::int32_t has_stop_tokens, std::int32_t /*has_floor_position*/, const float* logits,
    const std::int64_t* positions, const float* temperature, const std::int32_t* qo_indptr,
    const std::int64_t* seed, const std::int64_t* sample_index, const std::int64_t* top_k,
    const float* top_p, const float* min_p, const float* repetition_penalty,
    const float* presence_penalty, const float* frequency_penalty,
    const std::int32_t* prompt_counts, const std::int32_t* output_counts,
    const float* logit_bias, const std::int64_t* draft_tokens,
    const std::uint32_t* ancestor_bits, const std::int64_t* stop_tokens,
    const std::int64_t* floor_position, std::int64_t* target_tokens, std::int32_t* status,
    std::int64_t* detail) {
    static RowBuffers buffers;
    static RowState states[Config::MAX_VERIFY];
#pragma HLS BIND_STORAGE variable=buffers type=ram_2p impl=uram
    fill<std::int64_t>(target_tokens, R, -1);
    std::int32_t highest = Config::INT32_LOWEST;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t table = place(b, V, 0);
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
                                 has_prompt_counts != 0 ? prompt_counts + table : nullptr,
                                 has_output_counts != 0 ? output_counts + table : nullptr,
                                 has_logit_bias != 0 ? logit_bias + table : nullptr,
                                 has_stop_tokens != 0 ? stop_tokens + place(b, S, 0) : nullptr,
                                 has_stop_tokens != 0 ? S : 0,
                                 has_stop_tokens != 0 ? floor_position[b] : 0};
        Refusal refusal;
        const Rows rows = request_rows(refusal, qo_indptr, b, highest, R, Config::MAX_VERIFY);
        highest = higher(highest, qo_indptr[b]);
        // The card gives tokens with their ancestor bits.
        const Paths paths = {draft_tokens, ancestor_bits, rows, has_draft_tokens != 0};
        if (!is_possible(sampler)) {
            refuse(refusal, Status::BAD_PARAMETER, 0);
        }
        check_paths(refusal, paths, V);
        if (!is_refused(refusal)) {
        look_at_rows:
            for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
                if (row >= rows.count) {
                    break;
                }
                const float* line = logits + place(rows.first + row, V, 0);
                const std::int64_t position = positions[rows.first + row];
                states[row] = adjust_row(sampler, line, V, paths, row, position, buffers);
            }
            judge_rows(refusal, states, rows);
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (is_refused(refusal)) {
            continue;
        }
    choose_rows:
        for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
            if (row >= rows.count) {
                break;
            }
            const std::int32_t flat = rows.first + row;
            const float* line = logits + place(flat, V, 0);
            adjust_row(sampler, line, V, paths, row, positions[flat], buffers);
            target_tokens[flat] = choose_token(buffers, V, sampler, positions[flat]);
        }
    }
}

}  // namespace aerie
