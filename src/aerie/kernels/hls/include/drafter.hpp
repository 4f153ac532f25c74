// A draft head kernel by kernel: every operation reads its rows from memory and writes them back.
#pragma once

#include "config.hpp"
#include "drafter_ops.hpp"
#include "half.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"
#include "verdict.hpp"

namespace aerie {

// Rows of the kernel that is running: each by itself has the chip to itself.
inline float* first_buffer() {
    static RowBuffer buffer;
    return buffer.data;
}

inline float* second_buffer() {
    static RowBuffer buffer;
    return buffer.data;
}

// A norm's weight on chip.
struct NormWeight {
    float values[Config::MAX_DRAFT_WIDTH];
};

inline void draft_embed_rows(std::int32_t R, std::int32_t H, std::int32_t /*VT*/,
                             In<std::int64_t> tokens, In<std::uint16_t> embedding,
                             Out<std::uint16_t> rows) {
embed_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        const std::int64_t token = tokens[r];
    embed_word:
        for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= H) {
                break;
            }
            rows[place(r, H, i)] = embedding[place(token, H, i)];
        }
    }
}

inline void draft_linear_half(std::int32_t R, std::int32_t I, std::int32_t O,
                              In<std::uint16_t> x, In<std::uint16_t> weight,
                              Out<std::uint16_t> y) {
    load_rows(x, R, I, first_buffer());
    multiply(first_buffer(), R, I, O, HalfWeights{weight, Config::MAX_GROUP}, ToPort{y});
}

inline void draft_linear_q4(std::int32_t R, std::int32_t I, std::int32_t /*NW*/,
                            std::int32_t /*NS*/, std::int32_t O, In<std::uint16_t> x,
                            In<std::uint8_t> weight, In<std::uint16_t> weight_scale,
                            Out<std::uint16_t> y) {
    load_rows(x, R, I, first_buffer());
    multiply(first_buffer(), R, I, O, PortWeights{weight, weight_scale, Config::MAX_GROUP},
             ToPort{y});
}

inline void draft_logits(std::int32_t R, std::int32_t H, std::int32_t V, In<std::uint16_t> x,
                         In<std::uint16_t> weight, Out<float> logits) {
    load_rows(x, R, H, first_buffer());
    multiply(first_buffer(), R, H, V, HalfWeights{weight, Config::MAX_GROUP}, ToLogits{logits});
}

// The embedding and the hidden state side by side, each normed.
inline void draft_join_norms(std::int32_t R, std::int32_t H, In<std::uint16_t> embedded,
                             In<std::uint16_t> hidden, In<float> embedding_norm,
                             In<float> hidden_norm, In<float> eps, Out<std::uint16_t> joined) {
    static NormWeight norms[2];
    static float parts[2][Config::MAX_DRAFT_WIDTH];
    static float normed[2 * Config::MAX_DRAFT_WIDTH];
    load(embedding_norm, H, norms[0].values);
    load(hidden_norm, H, norms[1].values);
    const float least = eps[0];
join_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        load_rows(embedded + place(r, H, 0), 1, H, parts[0]);
        load_rows(hidden + place(r, H, 0), 1, H, parts[1]);
        normalise(parts[0], norms[0].values, H, least, normed);
        normalise(parts[1], norms[1].values, H, least, normed + H);
        store_rows(normed, 1, 2 * H, joined + place(r, 2 * H, 0));
    }
}

// The residual stream after an addition, and its norm.
inline void draft_add_norm(std::int32_t R, std::int32_t H, In<std::uint16_t> residual,
                           In<std::uint16_t> added, In<float> norm, In<float> eps,
                           Out<std::uint16_t> total, Out<std::uint16_t> normed) {
    static NormWeight weight;
    static float parts[2][Config::MAX_DRAFT_WIDTH];
    static float sum[Config::MAX_DRAFT_WIDTH];
    load(norm, H, weight.values);
    const float least = eps[0];
add_norm_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        load_rows(residual + place(r, H, 0), 1, H, parts[0]);
        load_rows(added + place(r, H, 0), 1, H, parts[1]);
        add_row(parts[0], parts[1], H, sum);
        store_rows(sum, 1, H, total + place(r, H, 0));
        normalise(sum, weight.values, H, least, parts[0]);
        store_rows(parts[0], 1, H, normed + place(r, H, 0));
    }
}

inline void draft_gate(std::int32_t R, std::int32_t GU, In<std::uint16_t> gate_up,
                       Out<std::uint16_t> gated) {
gate_rows:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        load_rows(gate_up + place(r, GU, 0), 1, GU, first_buffer());
        gate_row(first_buffer(), GU / 2, second_buffer());
        store_rows(second_buffer(), 1, GU / 2, gated + place(r, GU / 2, 0));
    }
}

// A row's cosine and sine, from a table by position.
struct Angles {
    float cosine[Config::MAX_HEAD_DIM];
    float sine[Config::MAX_HEAD_DIM];
};

inline void load_angles(In<float> cosines, In<float> sines, std::int64_t position,
                        std::int32_t half, Angles& angles) {
    load(cosines + place(position, half, 0), half, angles.cosine);
    load(sines + place(position, half, 0), half, angles.sine);
}

// Rotate queries and keys; keys and values go to their slots of the draft's cache.
inline void draft_rotate_store(std::int32_t R, std::int32_t C, std::int32_t /*S*/,
                               std::int32_t /*NP*/, std::int32_t HD, std::int32_t NQ,
                               In<std::uint16_t> qkv, In<std::int64_t> positions,
                               In<std::int32_t> slots, In<float> cosines, In<float> sines,
                               Out<std::uint16_t> keys, Out<std::uint16_t> values,
                               Out<std::uint16_t> queries) {
    Angles angles = {};
    const std::int32_t Q = NQ - 2 * C;
    const std::int32_t head_dim = 2 * HD;
rotate_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        float* row = first_buffer();
        load_rows(qkv + place(r, NQ, 0), 1, NQ, row);
        load_angles(cosines, sines, positions[r], HD, angles);
        rotate_heads(row, Q / head_dim, head_dim, angles.cosine, angles.sine);
        rotate_heads(row + Q, C / head_dim, head_dim, angles.cosine, angles.sine);
        const std::int64_t slot = slots[r];
        store_rows(row, 1, Q, queries + place(r, Q, 0));
        store_rows(row + Q, 1, C, keys + place(slot, C, 0));
        store_rows(row + Q + C, 1, C, values + place(slot, C, 0));
    }
}

// Which columns a row of one request sees: a run of the prefix, and nodes of the tree.
struct Sight {
    std::int64_t first;
    std::int64_t end;
    Ancestors tree;
};

// Rows of one request over the columns of its table row, each key and value read once for all.
inline void attend_request(const float* queries, std::int32_t n_rows,
                           const Sight (&sights)[Config::MAX_VERIFY], std::int64_t tree_start,
                           std::int32_t n_fed, In<std::int32_t> slots, In<std::uint16_t> keys,
                           In<std::uint16_t> values, const HeadSizes& heads, float* out) {
    static Attending attending[Config::MAX_VERIFY];
    static float key[Config::MAX_DRAFT_WIDTH];
    static float value[Config::MAX_DRAFT_WIDTH];
    const std::int32_t width = heads.n_kv_heads * heads.head_dim;
    const std::int32_t q_width = heads.n_heads * heads.head_dim;
    const float scale = 1.0F / square_root(static_cast<float>(heads.head_dim));
    std::int64_t first = tree_start;
    std::int64_t end = 0;
find_span:
    for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
        if (r >= n_rows) {
            break;
        }
        begin_attending(attending[r], heads);
        first = sights[r].first < first ? sights[r].first : first;
        end = sights[r].end > end ? sights[r].end : end;
    }
attend_columns:
    for (std::int32_t step = 0; step < Config::MAX_TABLE_WIDTH; ++step) {
        const std::int64_t column = first + step;
        // The prefix, then whatever the draft has fed behind it.
        if (column >= (n_fed > 0 ? tree_start + n_fed : end)) {
            break;
        }
        const std::int64_t slot = slots[column];
        load_rows(keys + place(slot, width, 0), 1, width, key);
        load_rows(values + place(slot, width, 0), 1, width, value);
    attend_rows:
        for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
            if (r >= n_rows) {
                break;
            }
            const std::int64_t node = column - tree_start;
            const bool is_prefix = column >= sights[r].first && column < sights[r].end;
            const bool is_node =
                node >= 0 && node < n_fed &&
                is_ancestor(sights[r].tree, static_cast<std::int32_t>(node));
            if (is_prefix || is_node) {
                attend_position(attending[r], queries + place(r, q_width, 0), key, value, heads,
                                scale);
            }
        }
    }
finish_rows:
    for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
        if (r >= n_rows) {
            break;
        }
        finish_attending(attending[r], heads, out + place(r, q_width, 0));
    }
}

// Columns a row of position p sees of the prefix: those before `end`, the last `window` of them.
inline Sight sight_of(std::int64_t position, std::int64_t end, std::int32_t window) {
    const std::int64_t oldest = window > 0 ? position - window + 1 : 0;
    return Sight{oldest > 0 ? oldest : 0, end, Ancestors{{0U, 0U, 0U, 0U}}};
}

inline void draft_attend(std::int32_t B, std::int32_t /*R*/, std::int32_t C, std::int32_t /*S*/,
                         std::int32_t F, std::int32_t /*P*/, std::int32_t L, std::int32_t Q,
                         std::int32_t head_dim, std::int32_t window, std::int32_t n_fed,
                         std::int32_t has_tree_mask, In<std::uint16_t> queries,
                         In<std::int32_t> row_indptr, In<std::int64_t> positions,
                         In<std::int64_t> seq_len, In<std::uint8_t> tree_mask,
                         In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices,
                         In<std::uint16_t> keys, In<std::uint16_t> values,
                         Out<std::uint16_t> attended) {
    static Sight sights[Config::MAX_VERIFY];
    const HeadSizes heads = {Q / head_dim, C / head_dim, head_dim};
    std::int32_t first = row_indptr[0];
attend_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int32_t end = row_indptr[b + 1];
        const std::int32_t n_rows = end - first;
        const std::int64_t length = seq_len[b];
    see_rows:
        for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
            if (r >= n_rows) {
                break;
            }
            const std::int64_t position = positions[first + r];
            // A row of the prefix sees up to itself, a row of the tree all of the prefix.
            const std::int64_t seen = has_tree_mask != 0 ? length : position + 1;
            sights[r] = sight_of(position, seen, window);
        see_nodes:
            for (std::int32_t f = 0; f < Config::MAX_VERIFY; ++f) {
                if (f >= n_fed || has_tree_mask == 0) {
                    break;
                }
                if (tree_mask[place(first + r, F, f)] != 0) {
                    sights[r].tree.word[f / 32] |= 1U << (f % 32);
                }
            }
        }
        load_rows(queries + place(first, Q, 0), n_rows, Q, first_buffer());
        attend_request(first_buffer(), n_rows, sights, length, n_fed,
                       req_to_token + place(req_pool_indices[b], L, 0), keys, values, heads,
                       second_buffer());
        store_rows(second_buffer(), n_rows, Q, attended + place(first, Q, 0));
        first = end;
    }
}

// Softmax of draft logits, row by row, as K5 does it at temperature 1.
inline void draft_softmax(std::int32_t R, std::int32_t V, In<float> logits, Out<float> probas) {
    static ScaledRow scaled;
softmax_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        load_scaled(logits + place(r, V, 0), V, 1.0F, scaled);
        to_probabilities(scaled, V, 1.0F);
        store(scaled.scores, V, probas + place(r, V, 0));
    }
}

inline void draft_top_k(std::int32_t R, std::int32_t V, std::int32_t K, In<float> probas,
                        Out<float> topk_probas, Out<std::int64_t> topk_tokens) {
top_row:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= R) {
            break;
        }
        Top top = {};
    top_token:
        for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
            if (v >= V) {
                break;
            }
            offer(top, K, probas[place(r, V, v)], v);
        }
    emit_top:
        for (std::int32_t k = 0; k < Config::MAX_TOP_K; ++k) {
            if (k >= K) {
                break;
            }
            topk_probas[place(r, K, k)] = top.scores[k];
            topk_tokens[place(r, K, k)] = top.ids[k];
        }
    }
}

}  // namespace aerie
