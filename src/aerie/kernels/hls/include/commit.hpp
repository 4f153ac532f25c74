// K7: clip the accepted runs, compact the batch, plan the KV moves.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"
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

// What one request brings to its commit, on chip.
struct Run {
    std::int64_t path[Config::MAX_RUN];  // root and accepted rows
    std::int64_t stops[Config::MAX_STOPS];
    std::int32_t slots[Config::MAX_VERIFY];  // of the tree's rows
    std::int64_t emitted[Config::MAX_RUN];
};

// Root and accepted rows must ascend from row 0 and lie within the request.
inline void check_path(Refusal& refusal, const std::int64_t (&accept_index)[Config::MAX_RUN],
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

inline bool is_stop(const std::int64_t (&stops)[Config::MAX_STOPS], std::int32_t S,
                    std::int64_t token) {
    bool found = false;
match_stop:
    for (std::int32_t s = 0; s < Config::MAX_STOPS; ++s) {
#pragma HLS UNROLL
        // -1 fills unused entries and stops nothing.
        found = found || (s < S && stops[s] == token && token >= 0);
    }
    return found;
}

// Accepted tokens then the bonus, cut after the first stop token or when the room is used up.
// Tokens of the rows come from a port or lie on chip. Returns how many are emitted; `is_last` says
// whether that ends the request.
template <typename Tokens>
inline std::int32_t emit_tokens(Run& run, std::int32_t accepted, const Tokens& tokens,
                                std::int64_t bonus, std::int32_t S, std::int64_t room,
                                bool& is_last) {
    std::int32_t n = 0;
    bool has_stopped = false;
emit_token:
    for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
        if (k > accepted || n >= room || has_stopped) {
            break;
        }
        run.emitted[n] = k < accepted ? tokens[run.path[k + 1]] : bonus;
        has_stopped = is_stop(run.stops, S, run.emitted[n]);
        ++n;
    }
    is_last = has_stopped || n >= room;
    return n;
}

// What a commit returns, and where each goes.
struct CommitPorts {
    Out<std::int64_t> out_tokens;
    Out<std::int32_t> out_indptr;
    Out<std::int64_t> out_rows;
    Out<std::int32_t> rows_indptr;
    Out<std::int64_t> new_seq_len;
    Out<std::uint8_t> finished;
    Out<std::int64_t> unfinished;
    Out<std::int32_t> unfinished_count;
    Out<std::int32_t> kv_src;
    Out<std::int32_t> kv_dst;
    Out<std::int32_t> move_count;
    Out<std::int32_t> free;
    Out<std::int32_t> free_count;
    Out<std::int32_t> status;
    Out<std::int64_t> detail;
};

// Moves of the kept rows into place, then the slots that hold nothing any more.
inline void emit_slots(const Run& run, std::int32_t kept, std::int32_t n_rows, Heads& heads,
                       const CommitPorts& ports) {
emit_move:
    for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
        if (k >= kept) {
            break;
        }
        if (run.path[k] != k) {
            ports.kv_src[heads.moves] = run.slots[run.path[k]];
            ports.kv_dst[heads.moves] = run.slots[k];
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
            ports.free[heads.freed] = run.slots[row];
            ++heads.freed;
        }
    }
}

// A request as its commit sees it.
struct Committing {
    std::int32_t request;
    Rows rows;
    std::int32_t accepted;
    std::int64_t bonus;
    std::int64_t prefix;
    std::int64_t limit;
    std::int32_t n_stops;
};

// Emit one request's run. Returns its length with KV; `is_last` says whether it ends.
template <typename Tokens>
inline std::int64_t commit_run(const Committing& own, Run& run, const Tokens& tokens, Heads& heads,
                               const CommitPorts& ports, bool& is_last) {
    // seq_len + 1 tokens are committed already; a limit may be any number.
    const std::int64_t limit = clamped(own.limit, -1, 1LL << 40);
    const std::int32_t emitted = emit_tokens(run, own.accepted, tokens, own.bonus, own.n_stops,
                                             limit - own.prefix - 1, is_last);
    // The bonus has no KV yet; the root always has.
    const std::int32_t kept = 1 + lower(emitted, own.accepted);
    store(run.emitted, emitted, ports.out_tokens + heads.tokens);
    heads.tokens += emitted;
    if (!is_last) {
        ports.unfinished[heads.unfinished] = own.request;
        ++heads.unfinished;
    emit_row:
        for (std::int32_t k = 0; k < Config::MAX_RUN; ++k) {
#pragma HLS PIPELINE II=1
            if (k >= kept) {
                break;
            }
            ports.out_rows[heads.rows] = own.rows.first + run.path[k];
            ++heads.rows;
        }
    }
    emit_slots(run, kept, own.rows.count, heads, ports);
    return own.prefix + kept;
}

inline Heads begin_commit(const CommitPorts& ports) {
    ports.out_indptr[0] = 0;
    ports.rows_indptr[0] = 0;
    return Heads{0, 0, 0, 0, 0};
}

// What became of a request, committed or not.
inline void end_request(const Refusal& refusal, std::int32_t b, std::int64_t new_length,
                        bool is_last, const Heads& heads, const CommitPorts& ports) {
    ports.new_seq_len[b] = new_length;
    ports.finished[b] = is_last ? 1 : 0;
    tell(refusal, b, ports.status, ports.detail);
    ports.out_indptr[b + 1] = heads.tokens;
    ports.rows_indptr[b + 1] = heads.rows;
}

// What no request needed of the lists, and how much of them they did.
inline void end_commit(const Heads& heads, const CommitPorts& ports, std::int32_t B,
                       std::int64_t runs, std::int32_t R) {
    fill<std::int64_t>(ports.out_tokens + heads.tokens, runs - heads.tokens, -1);
    fill<std::int64_t>(ports.out_rows + heads.rows, runs - heads.rows, -1);
    fill<std::int32_t>(ports.kv_src + heads.moves, runs - heads.moves, -1);
    fill<std::int32_t>(ports.kv_dst + heads.moves, runs - heads.moves, -1);
    fill<std::int64_t>(ports.unfinished + heads.unfinished, B - heads.unfinished, -1);
    fill<std::int32_t>(ports.free + heads.freed, R - heads.freed, -1);
    ports.unfinished_count[0] = heads.unfinished;
    ports.move_count[0] = heads.moves;
    ports.free_count[0] = heads.freed;
}

inline void update_verify_result(
    std::int32_t B, std::int32_t D, std::int32_t R, std::int32_t S, std::int32_t P,
    std::int32_t L, In<std::int64_t> accept_index, In<std::int64_t> accept_count,
    In<std::int64_t> bonus_token, In<std::int64_t> draft_tokens, In<std::int32_t> qo_indptr,
    In<std::int64_t> seq_len, In<std::int64_t> length_limit, In<std::int64_t> stop_tokens,
    In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices, Out<std::int64_t> out_tokens,
    Out<std::int32_t> out_indptr, Out<std::int64_t> out_rows, Out<std::int32_t> rows_indptr,
    Out<std::int64_t> new_seq_len, Out<std::uint8_t> finished, Out<std::int64_t> unfinished,
    Out<std::int32_t> unfinished_count, Out<std::int32_t> kv_src, Out<std::int32_t> kv_dst,
    Out<std::int32_t> move_count, Out<std::int32_t> free, Out<std::int32_t> free_count,
    Out<std::int32_t> status, Out<std::int64_t> detail) {
    static Run run;
    const CommitPorts ports = {out_tokens, out_indptr, out_rows, rows_indptr, new_seq_len,
                               finished, unfinished, unfinished_count, kv_src, kv_dst,
                               move_count, free, free_count, status, detail};
    Heads heads = begin_commit(ports);
    RowPointers pointers = begin_rows(qo_indptr);
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t prefix = seq_len[b];
        const std::int64_t pool_row = req_pool_indices[b];
        const std::int64_t n_accepted = accept_count[b];
        Refusal refusal;
        const Rows rows = next_rows(refusal, pointers, qo_indptr[b + 1], R, Config::MAX_VERIFY);
        load(accept_index + place(b, D + 1, 0), D + 1, run.path);
        check_path(refusal, run.path, n_accepted, D, rows.count);
        check_table(refusal, pool_row, prefix, rows.count, P, L);
        std::int64_t new_length = prefix;
        bool is_last = false;
        if (!is_refused(refusal) && rows.count > 0) {
            load(stop_tokens + place(b, S, 0), S, run.stops);
            load(req_to_token + place(pool_row, L, prefix), rows.count, run.slots);
            const Committing own = {b, rows, static_cast<std::int32_t>(n_accepted),
                                    bonus_token[b], prefix, length_limit[b], S};
            new_length = commit_run(own, run, draft_tokens + rows.first, heads, ports, is_last);
        }
        end_request(refusal, b, new_length, is_last, heads, ports);
    }
    end_commit(heads, ports, B, place(B, D + 1, 0), R);
}

}  // namespace aerie
