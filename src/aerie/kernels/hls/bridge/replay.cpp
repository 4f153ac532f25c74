// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family replay: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "replay.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* replay_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t draft_replay_input_operator(
        std::int32_t B, std::int32_t C, std::int32_t H, std::int32_t E, std::int32_t tree_width,
        const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* seq_len, const std::int64_t* req_pool_indices,
        std::int64_t* static_input_ids, std::int64_t* static_positions,
        std::int32_t* static_out_cache_loc, std::uint16_t* static_hidden,
        std::int64_t* static_seq_len, std::int64_t* static_req_pool_indices, std::int32_t* bucket) {
    static aerie::Meter meters[13];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=E
#pragma HLS INTERFACE s_axilite port=tree_width
#pragma HLS INTERFACE m_axi port=buckets offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=n_buckets
#pragma HLS INTERFACE s_axilite port=seq_len_fill
#pragma HLS INTERFACE m_axi port=input_ids offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_input_ids offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_positions offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_out_cache_loc offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_hidden offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_seq_len offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_req_pool_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=bucket offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_replay_input_operator(
        B, C, H, E, tree_width, buckets, n_buckets, seq_len_fill);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 13);
    aerie::draft_replay_input_operator(
        B, C, H, E, tree_width, buckets, n_buckets, seq_len_fill,
        aerie::metered(input_ids, meters[0]), aerie::metered(positions, meters[1]),
        aerie::metered(out_cache_loc, meters[2]), aerie::metered(hidden, meters[3]),
        aerie::metered(seq_len, meters[4]), aerie::metered(req_pool_indices, meters[5]),
        aerie::metered(static_input_ids, meters[6]), aerie::metered(static_positions, meters[7]),
        aerie::metered(static_out_cache_loc, meters[8]), aerie::metered(static_hidden, meters[9]),
        aerie::metered(static_seq_len, meters[10]),
        aerie::metered(static_req_pool_indices, meters[11]), aerie::metered(bucket, meters[12]));
    return 0;
}

extern "C" std::int32_t extend_replay_input_operator(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
        std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
        const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* extend_len, const std::int64_t* seq_len,
        const std::int64_t* req_pool_indices, std::int64_t* static_input_ids,
        std::int64_t* static_positions, std::int32_t* static_out_cache_loc,
        std::uint16_t* static_hidden, std::int64_t* static_extend_len,
        std::int64_t* static_seq_len, std::int64_t* static_req_pool_indices,
        std::int32_t* static_qo_indptr, std::int32_t* bucket, std::int32_t* row_bucket,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[19];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=T
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=E
#pragma HLS INTERFACE m_axi port=batch_buckets offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=n_batch_buckets
#pragma HLS INTERFACE m_axi port=row_buckets offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=n_row_buckets
#pragma HLS INTERFACE s_axilite port=seq_len_fill
#pragma HLS INTERFACE m_axi port=input_ids offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=extend_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_input_ids offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_positions offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_out_cache_loc offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_hidden offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_extend_len offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_seq_len offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_req_pool_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=static_qo_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=bucket offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=row_bucket offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::extend_replay_input_operator(
        B, R, C, T, H, E, batch_buckets, n_batch_buckets, row_buckets, n_row_buckets,
        seq_len_fill);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 19);
    aerie::extend_replay_input_operator(
        B, R, C, T, H, E, batch_buckets, n_batch_buckets, row_buckets, n_row_buckets,
        seq_len_fill, aerie::metered(input_ids, meters[0]), aerie::metered(positions, meters[1]),
        aerie::metered(out_cache_loc, meters[2]), aerie::metered(hidden, meters[3]),
        aerie::metered(extend_len, meters[4]), aerie::metered(seq_len, meters[5]),
        aerie::metered(req_pool_indices, meters[6]), aerie::metered(static_input_ids, meters[7]),
        aerie::metered(static_positions, meters[8]),
        aerie::metered(static_out_cache_loc, meters[9]),
        aerie::metered(static_hidden, meters[10]), aerie::metered(static_extend_len, meters[11]),
        aerie::metered(static_seq_len, meters[12]),
        aerie::metered(static_req_pool_indices, meters[13]),
        aerie::metered(static_qo_indptr, meters[14]), aerie::metered(bucket, meters[15]),
        aerie::metered(row_bucket, meters[16]), aerie::metered(status, meters[17]),
        aerie::metered(detail, meters[18]));
    return 0;
}

extern "C" std::int32_t extend_replay_input_operator_check(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
        std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
        const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* extend_len, const std::int64_t* seq_len,
        const std::int64_t* req_pool_indices, const std::int64_t* static_input_ids,
        const std::int64_t* static_positions, const std::int32_t* static_out_cache_loc,
        const std::uint16_t* static_hidden, const std::int64_t* static_extend_len,
        const std::int64_t* static_seq_len, const std::int64_t* static_req_pool_indices,
        const std::int32_t* static_qo_indptr, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[17];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=T
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=E
#pragma HLS INTERFACE m_axi port=batch_buckets offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=n_batch_buckets
#pragma HLS INTERFACE m_axi port=row_buckets offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=n_row_buckets
#pragma HLS INTERFACE s_axilite port=seq_len_fill
#pragma HLS INTERFACE m_axi port=input_ids offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=extend_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_input_ids offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_extend_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=static_qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::extend_replay_input_operator(
        B, R, C, T, H, E, batch_buckets, n_batch_buckets, row_buckets, n_row_buckets,
        seq_len_fill);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 17);
    aerie::extend_replay_input_operator_check(
        B, R, C, T, H, E, batch_buckets, n_batch_buckets, row_buckets, n_row_buckets,
        seq_len_fill, aerie::metered(input_ids, meters[0]), aerie::metered(positions, meters[1]),
        aerie::metered(out_cache_loc, meters[2]), aerie::metered(hidden, meters[3]),
        aerie::metered(extend_len, meters[4]), aerie::metered(seq_len, meters[5]),
        aerie::metered(req_pool_indices, meters[6]), aerie::metered(static_input_ids, meters[7]),
        aerie::metered(static_positions, meters[8]),
        aerie::metered(static_out_cache_loc, meters[9]),
        aerie::metered(static_hidden, meters[10]), aerie::metered(static_extend_len, meters[11]),
        aerie::metered(static_seq_len, meters[12]),
        aerie::metered(static_req_pool_indices, meters[13]),
        aerie::metered(static_qo_indptr, meters[14]), aerie::metered(status, meters[15]),
        aerie::metered(detail, meters[16]));
    return 0;
}

extern "C" std::int32_t build_active_slots(
        std::int32_t S, std::int32_t T, std::int32_t has_accept_count,
        std::int32_t has_draft_tokens, std::int32_t has_ancestor_bits,
        const std::uint8_t* finished, const std::int64_t* seq_len,
        const std::int64_t* length_limit, const std::uint8_t* eos_terminated,
        std::int64_t* accept_count, std::int64_t* draft_tokens, std::uint32_t* ancestor_bits,
        std::int32_t* active_slots, std::int32_t* active_inverse, std::int32_t* active_count) {
    static aerie::Meter meters[10];
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=T
#pragma HLS INTERFACE s_axilite port=has_accept_count
#pragma HLS INTERFACE s_axilite port=has_draft_tokens
#pragma HLS INTERFACE s_axilite port=has_ancestor_bits
#pragma HLS INTERFACE m_axi port=finished offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=length_limit offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=eos_terminated offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=accept_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=ancestor_bits offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=active_slots offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=active_inverse offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=active_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::build_active_slots(S, T);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 10);
    aerie::build_active_slots(
        S, T, has_accept_count, has_draft_tokens, has_ancestor_bits,
        aerie::metered(finished, meters[0]), aerie::metered(seq_len, meters[1]),
        aerie::metered(length_limit, meters[2]), aerie::metered(eos_terminated, meters[3]),
        aerie::metered(accept_count, meters[4]), aerie::metered(draft_tokens, meters[5]),
        aerie::metered(ancestor_bits, meters[6]), aerie::metered(active_slots, meters[7]),
        aerie::metered(active_inverse, meters[8]), aerie::metered(active_count, meters[9]));
    return 0;
}
