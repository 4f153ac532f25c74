// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family memory: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "memory.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* memory_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t compute_kv_indices(
        std::int32_t B, std::int32_t W, std::int32_t F, std::int32_t P, std::int32_t L,
        std::int32_t kv_capacity, std::int32_t has_tree_mask, std::int32_t has_fed_slots,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* seq_len, const std::uint8_t* tree_mask, const std::int32_t* fed_slots,
        std::int32_t* kv_indptr, std::int32_t* kv_indices, std::int32_t* status,
        std::int64_t* detail) {
    static aerie::Meter meters[9];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=W
#pragma HLS INTERFACE s_axilite port=F
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=kv_capacity
#pragma HLS INTERFACE s_axilite port=has_tree_mask
#pragma HLS INTERFACE s_axilite port=has_fed_slots
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=tree_mask offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=fed_slots offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=kv_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::compute_kv_indices(B, W, F, P, L, kv_capacity);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 9);
    aerie::compute_kv_indices(
        B, W, F, P, L, kv_capacity, has_tree_mask, has_fed_slots,
        aerie::metered(req_to_token, meters[0]), aerie::metered(req_pool_indices, meters[1]),
        aerie::metered(seq_len, meters[2]), aerie::metered(tree_mask, meters[3]),
        aerie::metered(fed_slots, meters[4]), aerie::metered(kv_indptr, meters[5]),
        aerie::metered(kv_indices, meters[6]), aerie::metered(status, meters[7]),
        aerie::metered(detail, meters[8]));
    return 0;
}

extern "C" std::int32_t assign_draft_cache_locs_operator(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
        std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[7];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=T
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=start offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=end offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::assign_draft_cache_locs_operator(B, P, L, T);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 7);
    aerie::assign_draft_cache_locs_operator(
        B, P, L, T, aerie::metered(req_to_token, meters[0]),
        aerie::metered(req_pool_indices, meters[1]), aerie::metered(start, meters[2]),
        aerie::metered(end, meters[3]), aerie::metered(out_cache_loc, meters[4]),
        aerie::metered(status, meters[5]), aerie::metered(detail, meters[6]));
    return 0;
}

extern "C" std::int32_t assign_draft_cache_locs_operator_check(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[7];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=T
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=start offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=end offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::assign_draft_cache_locs_operator(B, P, L, T);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 7);
    aerie::assign_draft_cache_locs_operator_check(
        B, P, L, T, aerie::metered(req_to_token, meters[0]),
        aerie::metered(req_pool_indices, meters[1]), aerie::metered(start, meters[2]),
        aerie::metered(end, meters[3]), aerie::metered(out_cache_loc, meters[4]),
        aerie::metered(status, meters[5]), aerie::metered(detail, meters[6]));
    return 0;
}

extern "C" std::int32_t assign_req_to_token_pool_operator(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C,
        std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[7];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=start offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=end offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::assign_req_to_token_pool_operator(B, P, L, C);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 7);
    aerie::assign_req_to_token_pool_operator(
        B, P, L, C, aerie::metered(req_to_token, meters[0]),
        aerie::metered(req_pool_indices, meters[1]), aerie::metered(start, meters[2]),
        aerie::metered(end, meters[3]), aerie::metered(out_cache_loc, meters[4]),
        aerie::metered(status, meters[5]), aerie::metered(detail, meters[6]));
    return 0;
}

extern "C" std::int32_t assign_req_to_token_pool_operator_check(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[7];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=start offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=end offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_cache_loc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::assign_req_to_token_pool_operator(B, P, L, C);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 7);
    aerie::assign_req_to_token_pool_operator_check(
        B, P, L, C, aerie::metered(req_to_token, meters[0]),
        aerie::metered(req_pool_indices, meters[1]), aerie::metered(start, meters[2]),
        aerie::metered(end, meters[3]), aerie::metered(out_cache_loc, meters[4]),
        aerie::metered(status, meters[5]), aerie::metered(detail, meters[6]));
    return 0;
}
