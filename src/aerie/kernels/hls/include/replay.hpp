// K11 to K13: a batch into the static buffers of a captured graph, and the slots still active.
#pragma once

#include "buckets.hpp"
#include "config.hpp"
#include "dma.hpp"
#include "numeric.hpp"
#include "ports.hpp"
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

inline void draft_replay_input_operator(
    std::int32_t B, std::int32_t /*C*/, std::int32_t H, std::int32_t E, std::int32_t tree_width,
    const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t seq_len_fill,
    In<std::int64_t> input_ids, In<std::int64_t> positions,
    In<std::int32_t> out_cache_loc, In<std::uint16_t> hidden, In<std::int64_t> seq_len,
    In<std::int64_t> req_pool_indices, Out<std::int64_t> static_input_ids,
    Out<std::int64_t> static_positions, Out<std::int32_t> static_out_cache_loc,
    Out<std::uint16_t> static_hidden, Out<std::int64_t> static_seq_len,
    Out<std::int64_t> static_req_pool_indices, Out<std::int32_t> bucket) {
    const In<std::uint8_t> sources[] = {
        input_ids.bytes(), positions.bytes(), out_cache_loc.bytes(),
        hidden.bytes(),    seq_len.bytes(),   req_pool_indices.bytes()};
    const Out<std::uint8_t> targets[] = {
        static_input_ids.bytes(), static_positions.bytes(), static_out_cache_loc.bytes(),
        static_hidden.bytes(),    static_seq_len.bytes(),
        static_req_pool_indices.bytes()};
    Moves moves;
    bucket[0] = describe_draft_replay(moves, B, tree_width, H * E, buckets, n_buckets,
                                      seq_len_fill);
    run_moves(moves, sources, targets);
}

// ---- K12 ----

// Lengths of all requests on chip, and whether they make a batch of R rows.
struct Lengths {
    std::int64_t rows[Config::MAX_BATCH];
    std::int64_t total;
};

inline void load_lengths(In<std::int64_t> extend_len, std::int32_t B, Lengths& lengths) {
    lengths.total = 0;
    load(extend_len, B, lengths.rows);
sum_lengths:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= B) {
            break;
        }
        lengths.total = wrapping_sum(lengths.total, lengths.rows[b]);
    }
}

// Status words of the batch; returns whether any request is refused.
inline bool check_lengths(const Lengths& lengths, std::int32_t B, std::int32_t R,
                          Out<std::int32_t> status, Out<std::int64_t> detail) {
    bool is_any = false;
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= B) {
            break;
        }
        Refusal refusal;
        if (lengths.rows[b] < 1 || lengths.rows[b] > R) {
            refuse(refusal, Status::OUT_OF_RANGE, lengths.rows[b]);
        }
        if (lengths.total != R) {
            refuse(refusal, Status::BROKEN_LAYOUT, lengths.total);
        }
        tell(refusal, b, status, detail);
        is_any = is_any || is_refused(refusal);
    }
    return is_any;
}

inline void extend_replay_input_operator_check(
    std::int32_t B, std::int32_t R, std::int32_t /*C*/, std::int32_t /*T*/, std::int32_t /*H*/,
    std::int32_t /*E*/, const std::int32_t* /*batch_buckets*/, std::int32_t /*n_batch_buckets*/,
    const std::int32_t* /*row_buckets*/, std::int32_t /*n_row_buckets*/,
    std::int32_t /*seq_len_fill*/, In<std::int64_t> /*input_ids*/, In<std::int64_t> /*positions*/,
    In<std::int32_t> /*out_cache_loc*/, In<std::uint16_t> /*hidden*/, In<std::int64_t> extend_len,
    In<std::int64_t> /*seq_len*/, In<std::int64_t> /*req_pool_indices*/,
    In<std::int64_t> /*static_input_ids*/, In<std::int64_t> /*static_positions*/,
    In<std::int32_t> /*static_out_cache_loc*/, In<std::uint16_t> /*static_hidden*/,
    In<std::int64_t> /*static_extend_len*/, In<std::int64_t> /*static_seq_len*/,
    In<std::int64_t> /*static_req_pool_indices*/, In<std::int32_t> /*static_qo_indptr*/,
    Out<std::int32_t> status, Out<std::int64_t> detail) {
    Lengths lengths = {};
    load_lengths(extend_len, B, lengths);
    check_lengths(lengths, B, R, status, detail);
}

// First row of each request, padding requests of one row included.
inline void emit_indptr(const Lengths& lengths, std::int32_t B, std::int32_t bucket,
                        Out<std::int32_t> static_qo_indptr) {
    std::int64_t first = 0;
    static_qo_indptr[0] = 0;
emit_first:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE II=1
        if (b >= bucket) {
            break;
        }
        first += b < B ? lengths.rows[b] : 1;
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
    std::int32_t B, std::int32_t R, std::int32_t /*C*/, std::int32_t /*T*/, std::int32_t H,
    std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
    const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
    In<std::int64_t> input_ids, In<std::int64_t> positions,
    In<std::int32_t> out_cache_loc, In<std::uint16_t> hidden,
    In<std::int64_t> extend_len, In<std::int64_t> seq_len,
    In<std::int64_t> req_pool_indices, Out<std::int64_t> static_input_ids,
    Out<std::int64_t> static_positions, Out<std::int32_t> static_out_cache_loc,
    Out<std::uint16_t> static_hidden, Out<std::int64_t> static_extend_len,
    Out<std::int64_t> static_seq_len, Out<std::int64_t> static_req_pool_indices,
    Out<std::int32_t> static_qo_indptr, Out<std::int32_t> bucket,
    Out<std::int32_t> row_bucket, Out<std::int32_t> status, Out<std::int64_t> detail) {
    Lengths lengths = {};
    load_lengths(extend_len, B, lengths);
    const bool is_any_refused = check_lengths(lengths, B, R, status, detail);
    const std::int32_t chosen = smallest_bucket(batch_buckets, n_batch_buckets, B);
    const std::int32_t all_rows = smallest_bucket(row_buckets, n_row_buckets, R + chosen - B);
    bucket[0] = chosen;
    row_bucket[0] = all_rows;
    if (is_any_refused) {
        return;
    }
    const In<std::uint8_t> sources[] = {
        input_ids.bytes(),  positions.bytes(), out_cache_loc.bytes(), hidden.bytes(),
        extend_len.bytes(), seq_len.bytes(),   req_pool_indices.bytes()};
    const Out<std::uint8_t> targets[] = {
        static_input_ids.bytes(),  static_positions.bytes(),
        static_out_cache_loc.bytes(), static_hidden.bytes(),
        static_extend_len.bytes(), static_seq_len.bytes(),
        static_req_pool_indices.bytes()};
    Moves moves;
    describe_extend_replay(moves, B, R, chosen, all_rows, H * E, seq_len_fill);
    run_moves(moves, sources, targets);
    emit_indptr(lengths, B, chosen, static_qo_indptr);
}

// ---- K13 ----

inline void build_active_slots(std::int32_t S, std::int32_t T, std::int32_t has_accept_count,
                               std::int32_t has_draft_tokens, std::int32_t has_ancestor_bits,
                               In<std::uint8_t> finished, In<std::int64_t> seq_len,
                               In<std::int64_t> length_limit,
                               In<std::uint8_t> eos_terminated, Out<std::int64_t> accept_count,
                               Out<std::int64_t> draft_tokens, Out<std::uint32_t> ancestor_bits,
                               Out<std::int32_t> active_slots, Out<std::int32_t> active_inverse,
                               Out<std::int32_t> active_count) {
    std::int32_t count = 0;
slots:
    for (std::int32_t slot = 0; slot < Config::MAX_SLOTS; ++slot) {
        if (slot >= S) {
            break;
        }
        const std::uint8_t has_finished = finished[slot];
        const std::uint8_t has_ended = eos_terminated[slot];
        const std::int64_t length = seq_len[slot];
        const std::int64_t limit = length_limit[slot];
        const bool is_dead = has_finished != 0 || has_ended != 0 || length >= limit;
        active_inverse[slot] = is_dead ? -1 : count;
        if (!is_dead) {
            active_slots[count] = slot;
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
    fill<std::int32_t>(active_slots + count, S - count, -1);
    active_count[0] = count;
}

}  // namespace aerie
