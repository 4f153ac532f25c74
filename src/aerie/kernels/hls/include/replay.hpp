// K11 to K13: a batch into the static buffers of a captured graph, and the slots still active.
#pragma once

#include "buckets.hpp"
#include "config.hpp"
#include "dma.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K11 ----

// What synthesis takes of K11: sizes in, a list of moves out. Buffers are numbered as in the card.
inline std::int32_t describe_draft_replay(Moves& moves, std::int32_t B, std::int32_t tree_width,
                                          std::int32_t row_bytes, const std::int32_t* buckets,
                                          std::int32_t n_buckets, std::int32_t seq_len_fill) {
    const std::int32_t bucket = smallest_bucket(buckets, n_buckets, B);
    const std::int64_t rows = place(B, tree_width, 0);
    const std::int64_t all_rows = place(bucket, tree_width, 0);
    moves.count = 0;
    list_padded(moves, 0, 8, rows, all_rows, 0);  // input_ids
    list_padded(moves, 1, 8, rows, all_rows, 0);  // positions
    list_padded(moves, 2, 4, rows, all_rows, 0);  // out_cache_loc
    list_padded(moves, 3, 1, rows * row_bytes, all_rows * row_bytes, 0);  // hidden
    list_padded(moves, 4, 8, B, bucket, seq_len_fill);  // seq_len
    list_padded(moves, 5, 8, B, bucket, 0);  // req_pool_indices
    return bucket;
}

inline const std::uint8_t* bytes_of(const void* buffer) {
    return static_cast<const std::uint8_t*>(buffer);
}

inline std::uint8_t* bytes_of(void* buffer) { return static_cast<std::uint8_t*>(buffer); }

inline void draft_replay_input_operator(
    std::int32_t B, std::int32_t /*C*/, std::int32_t H, std::int32_t E, std::int32_t tree_width,
    const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t seq_len_fill,
    const std::int64_t* input_ids, const std::int64_t* positions,
    const std::int32_t* out_cache_loc, const std::uint16_t* hidden, const std::int64_t* seq_len,
    const std::int64_t* req_pool_indices, std::int64_t* static_input_ids,
    std::int64_t* static_positions, std::int32_t* static_out_cache_loc,
    std::uint16_t* static_hidden, std::int64_t* static_seq_len,
    std::int64_t* static_req_pool_indices, std::int32_t* bucket) {
    const std::uint8_t* const sources[Config::MAX_MOVES] = {
        bytes_of(input_ids), bytes_of(positions), bytes_of(out_cache_loc),
        bytes_of(hidden),    bytes_of(seq_len),   bytes_of(req_pool_indices)};
    std::uint8_t* const targets[Config::MAX_MOVES] = {
        bytes_of(static_input_ids), bytes_of(static_positions), bytes_of(static_out_cache_loc),
        bytes_of(static_hidden),    bytes_of(static_seq_len),
        bytes_of(static_req_pool_indices)};
    Moves moves;
    bucket[0] = describe_draft_replay(moves, B, tree_width, H * E, buckets, n_buckets,
                                      seq_len_fill);
    run_moves(moves, sources, targets);
}

// ---- K12 ----

inline void extend_replay_input_operator_check(
    std::int32_t B, std::int32_t R, std::int32_t /*C*/, std::int32_t /*T*/, std::int32_t /*H*/,
    std::int32_t /*E*/, const std::int32_t* /*batch_buckets*/, std::int32_t /*n_batch_buckets*/,
    const std::int32_t* /*row_buckets*/, std::int32_t /*n_row_buckets*/,
    std::int32_t /*seq_len_fill*/, const std::int64_t* /*input_ids*/,
    const std::int64_t* /*positions*/, const std::int32_t* /*out_cache_loc*/,
    const std::uint16_t* /*hidden*/, const std::int64_t* extend_len,
    const std::int64_t* /*seq_len*/, const std::int64_t* /*req_pool_indices*/,
    const std::int64_t* /*static_input_ids*/, const std::int64_t* /*static_positions*/,
    const std::int32_t* /*static_out_cache_loc*/, const std::uint16_t* /*static_hidden*/,
    const std::int64_t* /*static_extend_len*/, const std::int64_t* /*static_seq_len*/,
    const std::int64_t* /*static_req_pool_indices*/, const std::int32_t* /*static_qo_indptr*/,
    std::int32_t* status, std::int64_t* detail) {
    std::int64_t total = 0;
sum_lengths:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= B) {
            break;
        }
        total = wrapping_sum(total, extend_len[b]);
    }
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= B) {
            break;
        }
        Refusal refusal;
        if (extend_len[b] < 1 || extend_len[b] > R) {
            refuse(refusal, Status::OUT_OF_RANGE, extend_len[b]);
        }
        if (total != R) {
            refuse(refusal, Status::BROKEN_LAYOUT, total);
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline bool is_any_refused(const std::int32_t* status, std::int32_t B) {
    bool found = false;
find_refused:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= B) {
            break;
        }
        found = found || status[b] != 0;
    }
    return found;
}

// First row of each request, padding requests of one row included.
inline void emit_indptr(const std::int64_t* extend_len, std::int32_t B, std::int32_t bucket,
                        std::int32_t* static_qo_indptr) {
    std::int64_t first = 0;
    static_qo_indptr[0] = 0;
emit_first:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= bucket) {
            break;
        }
        first += b < B ? extend_len[b] : 1;
        static_qo_indptr[b + 1] = static_cast<std::int32_t>(first);
    }
}

// What synthesis takes of K12: the moves of a batch whose lengths add up.
inline void describe_extend_replay(Moves& moves, std::int32_t B, std::int32_t R,
                                   std::int32_t bucket, std::int32_t row_bucket,
                                   std::int32_t row_bytes, std::int32_t seq_len_fill) {
    const std::int64_t row_size = row_bytes;
    moves.count = 0;
    list_padded(moves, 0, 8, R, row_bucket, 0);  // input_ids
    list_padded(moves, 1, 8, R, row_bucket, 0);  // positions
    list_padded(moves, 2, 4, R, row_bucket, 0);  // out_cache_loc
    list_padded(moves, 3, 1, R * row_size, row_bucket * row_size, 0);  // hidden
    list_padded(moves, 4, 8, B, bucket, 1);  // extend_len
    list_padded(moves, 5, 8, B, bucket, seq_len_fill);  // seq_len
    list_padded(moves, 6, 8, B, bucket, 0);  // req_pool_indices
}

inline void extend_replay_input_operator(
    std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
    std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
    const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
    const std::int64_t* input_ids, const std::int64_t* positions,
    const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
    const std::int64_t* extend_len, const std::int64_t* seq_len,
    const std::int64_t* req_pool_indices, std::int64_t* static_input_ids,
    std::int64_t* static_positions, std::int32_t* static_out_cache_loc,
    std::uint16_t* static_hidden, std::int64_t* static_extend_len, std::int64_t* static_seq_len,
    std::int64_t* static_req_pool_indices, std::int32_t* static_qo_indptr, std::int32_t* bucket,
    std::int32_t* row_bucket, std::int32_t* status, std::int64_t* detail) {
    extend_replay_input_operator_check(
        B, R, C, T, H, E, batch_buckets, n_batch_buckets, row_buckets, n_row_buckets,
        seq_len_fill, input_ids, positions, out_cache_loc, hidden, extend_len, seq_len,
        req_pool_indices, static_input_ids, static_positions, static_out_cache_loc,
        static_hidden, static_extend_len, static_seq_len, static_req_pool_indices,
        static_qo_indptr, status, detail);
    const std::int32_t chosen = smallest_bucket(batch_buckets, n_batch_buckets, B);
    const std::int32_t all_rows = smallest_bucket(row_buckets, n_row_buckets, R + chosen - B);
    bucket[0] = chosen;
    row_bucket[0] = all_rows;
    if (is_any_refused(status, B)) {
        return;
    }
    const std::uint8_t* const sources[Config::MAX_MOVES] = {
        bytes_of(input_ids),  bytes_of(positions), bytes_of(out_cache_loc), bytes_of(hidden),
        bytes_of(extend_len), bytes_of(seq_len),   bytes_of(req_pool_indices)};
    std::uint8_t* const targets[Config::MAX_MOVES] = {
        bytes_of(static_input_ids),  bytes_of(static_positions),
        bytes_of(static_out_cache_loc), bytes_of(static_hidden),
        bytes_of(static_extend_len), bytes_of(static_seq_len),
        bytes_of(static_req_pool_indices)};
    Moves moves;
    describe_extend_replay(moves, B, R, chosen, all_rows, H * E, seq_len_fill);
    run_moves(moves, sources, targets);
    emit_indptr(extend_len, B, chosen, static_qo_indptr);
}

// ---- K13 ----

inline void build_active_slots(std::int32_t S, std::int32_t T, std::int32_t has_accept_count,
                               std::int32_t has_draft_tokens, std::int32_t has_ancestor_bits,
                               const std::uint8_t* finished, const std::int64_t* seq_len,
                               const std::int64_t* length_limit,
                               const std::uint8_t* eos_terminated, std::int64_t* accept_count,
                               std::int64_t* draft_tokens, std::uint32_t* ancestor_bits,
                               std::int32_t* active_slots, std::int32_t* active_inverse,
                               std::int32_t* active_count) {
    fill<std::int32_t>(active_slots, S, -1);
    fill<std::int32_t>(active_inverse, S, -1);
    std::int32_t count = 0;
slots:
    for (std::int32_t slot = 0; slot < Config::MAX_SLOTS; ++slot) {
        if (slot >= S) {
            break;
        }
        const bool is_dead = finished[slot] != 0 || eos_terminated[slot] != 0 ||
                             seq_len[slot] >= length_limit[slot];
        if (!is_dead) {
            active_slots[count] = slot;
            active_inverse[slot] = count;
            ++count;
            continue;
        }
        if (has_accept_count != 0) {
            accept_count[slot] = 0;
        }
        if (has_draft_tokens != 0) {
            fill<std::int64_t>(draft_tokens + place(slot, T, 0), T, -1);
        }
        if (has_ancestor_bits != 0) {
            fill<std::uint32_t>(ancestor_bits + place(slot, T, 0) * 4, place(T, 4, 0), 0);
        }
    }
    active_count[0] = count;
}

}  // namespace aerie
