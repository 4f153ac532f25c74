// K7: clip the accepted runs, compact the batch, plan the KV moves.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// Where the next entry of each list of the batch goes.
struct Heads {
    std::int32_t tokens;
    std::int32_t rows;
    std::int32_t moves;
    std::int32_t freed;
    std::int32_t unfinished;
};

// Root and accepted rows must ascend from row 0 and lie within the request.
inline void check_path(Refusal& refusal, const std::int64_t* accept_index,
                       std::int64_t accept_count, std::int32_t D, std::int32_t n_rows) {
    if (accept_count < 0 || accept_count > D) {
        refuse(refusal, Status::TOO_DEEP, accept_count);
        return;
    }
    if (n_rows == 0) {
        return;
    }
    bool ascends = accept_index[0] == 0;
check_step:
    for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
        if (k >= accept_count) {
            break;
        }
        ascends = ascends && accept_index[k] < accept_index[k + 1];
    }
    if (!ascends || accept_index[accept_count] >= n_rows) {
        refuse(refusal, Status::BROKEN_TREE, accept_index[accept_count]);
    }
}

inline bool is_stop(const std::int64_t* stop_tokens, std::int32_t S, std::int64_t token) {
    bool found = false;
match_stop:
    for (std::int32_t s = 0; s < Config::MAX_STOPS; ++s) {
#pragma HLS PIPELINE II=1
        if (s >= S) {
            break;
        }
        // -1 fills unused entries and stops nothing.
        found = found || (stop_tokens[s] == token && token >= 0);
    }
    return found;
}

// Accepted tokens then the bonus, cut after the first stop token or when the room is used up.
// Returns how many; `is_last` says whether that ends the request.
inline std::int32_t emit_tokens(const std::int64_t* accept_index, std::int32_t accepted,
                                const std::int64_t* tokens, std::int64_t bonus,
                                const std::int64_t* stop_tokens, std::int32_t S,
                                std::int64_t room, std::int64_t* out, bool& is_last) {
    std::int32_t n = 0;
    bool has_stopped = false;
emit_token:
    for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
        if (k > accepted || n >= room || has_stopped) {
            break;
        }
        const std::int64_t token = k < accepted ? tokens[accept_index[k + 1]] : bonus;
        out[n] = token;
        ++n;
        has_stopped = is_stop(stop_tokens, S, token);
    }
    is_last = has_stopped || n >= room;
    return n;
}

// Moves of the kept rows into place, then the slots that hold nothing any more.
inline void emit_slots(const std::int64_t* accept_index, std::int32_t kept, std::int32_t n_rows,
                       const std::int32_t* slots, Heads& heads, std::int32_t* kv_src,
                       std::int32_t* kv_dst, std::int32_t* freed) {
emit_move:
    for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
        if (k >= kept) {
            break;
        }
        if (accept_index[k] != k) {
            kv_src[heads.moves] = slots[accept_index[k]];
            kv_dst[heads.moves] = slots[k];
            ++heads.moves;
        }
    }
emit_free:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= n_rows) {
            break;
        }
        if (row >= kept) {
            freed[heads.freed] = slots[row];
            ++heads.freed;
        }
    }
}

inline void update_verify_result(
    std::int32_t B, std::int32_t D, std::int32_t R, std::int32_t S, std::int32_t P,
    std::int32_t L, const std::int64_t* accept_index, const std::int64_t* accept_count,
    const std::int64_t* bonus_token, const std::int64_t* draft_tokens,
    const std::int32_t* qo_indptr, const std::int64_t* seq_len, const std::int64_t* length_limit,
    const std::int64_t* stop_tokens, const std::int32_t* req_to_token,
    const std::int64_t* req_pool_indices, std::int64_t* out_tokens, std::int32_t* out_indptr,
    std::int64_t* out_rows, std::int32_t* rows_indptr, std::int64_t* new_seq_len,
    std::uint8_t* finished, std::int64_t* unfinished, std::int32_t* unfinished_count,
    std::int32_t* kv_src, std::int32_t* kv_dst, std::int32_t* move_count, std::int32_t* free,
    std::int32_t* free_count, std::int32_t* status, std::int64_t* detail) {
    const std::int64_t runs = place(B, D + 1, 0);
    fill<std::int64_t>(out_tokens, runs, -1);
    fill<std::int64_t>(out_rows, runs, -1);
    fill<std::int32_t>(kv_src, runs, -1);
    fill<std::int32_t>(kv_dst, runs, -1);
    fill<std::int64_t>(unfinished, B, -1);
    fill<std::int32_t>(free, R, -1);
    Heads heads = {0, 0, 0, 0, 0};
    std::int32_t highest = Config::INT32_LOWEST;
    out_indptr[0] = 0;
    rows_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t* path = accept_index + place(b, D + 1, 0);
        Refusal refusal;
        const Rows rows = request_rows(refusal, qo_indptr, b, highest, R, Config::MAX_VERIFY);
        highest = higher(highest, qo_indptr[b]);
        check_path(refusal, path, accept_count[b], D, rows.count);
        check_table(refusal, req_pool_indices[b], seq_len[b], rows.count, P, L);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        new_seq_len[b] = seq_len[b];
        finished[b] = 0;
        if (!is_refused(refusal) && rows.count > 0) {
            const std::int32_t accepted = static_cast<std::int32_t>(accept_count[b]);
            // seq_len + 1 tokens are committed already; a limit may be any number.
            const std::int64_t limit = clamped(length_limit[b], -1, 1LL << 40);
            bool is_last = false;
            const std::int32_t emitted = emit_tokens(
                path, accepted, draft_tokens + rows.first, bonus_token[b],
                stop_tokens + place(b, S, 0), S, limit - seq_len[b] - 1,
                out_tokens + heads.tokens, is_last);
            // The bonus has no KV yet; the root always has.
            const std::int32_t kept = 1 + lower(emitted, accepted);
            heads.tokens += emitted;
            new_seq_len[b] = seq_len[b] + kept;
            finished[b] = is_last ? 1 : 0;
            if (!is_last) {
                unfinished[heads.unfinished] = b;
                ++heads.unfinished;
            emit_row:
                for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
                    if (k >= kept) {
                        break;
                    }
                    out_rows[heads.rows] = rows.first + path[k];
                    ++heads.rows;
                }
            }
            emit_slots(path, kept, rows.count,
                       req_to_token + place(req_pool_indices[b], L, seq_len[b]), heads, kv_src,
                       kv_dst, free);
        }
        out_indptr[b + 1] = heads.tokens;
        rows_indptr[b + 1] = heads.rows;
    }
    unfinished_count[0] = heads.unfinished;
    move_count[0] = heads.moves;
    free_count[0] = heads.freed;
}

}  // namespace aerie
