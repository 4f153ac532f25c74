// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family layout: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "layout.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* layout_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t fused_tree_mask_operator(
        std::int32_t B, std::int32_t R, std::int32_t P, std::int32_t L, std::int32_t kv_capacity,
        std::int32_t mask_capacity, const std::int32_t* req_to_token,
        const std::int64_t* req_pool_indices, const std::int64_t* seq_len,
        const std::int32_t* qo_indptr, const std::uint32_t* ancestor_bits,
        std::int32_t* kv_indptr, std::int32_t* kv_indices, std::int32_t* mask_indptr,
        std::uint8_t* packed_mask, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[11];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=kv_capacity
#pragma HLS INTERFACE s_axilite port=mask_capacity
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=ancestor_bits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=kv_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=mask_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=packed_mask offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::fused_tree_mask_operator(
        B, R, P, L, kv_capacity, mask_capacity);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 11);
    aerie::fused_tree_mask_operator(
        B, R, P, L, kv_capacity, mask_capacity, aerie::metered(req_to_token, meters[0]),
        aerie::metered(req_pool_indices, meters[1]), aerie::metered(seq_len, meters[2]),
        aerie::metered(qo_indptr, meters[3]), aerie::metered(ancestor_bits, meters[4]),
        aerie::metered(kv_indptr, meters[5]), aerie::metered(kv_indices, meters[6]),
        aerie::metered(mask_indptr, meters[7]), aerie::metered(packed_mask, meters[8]),
        aerie::metered(status, meters[9]), aerie::metered(detail, meters[10]));
    return 0;
}

extern "C" std::int32_t calculate_verify_kv_qo_ms(
        std::int32_t B, const std::int64_t* verify_count, const std::int64_t* seq_len,
        std::int32_t* qo_indptr, std::int32_t* kv_indptr, std::int32_t* mask_indptr,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[7];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE m_axi port=verify_count offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=mask_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::calculate_verify_kv_qo_ms(B);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 7);
    aerie::calculate_verify_kv_qo_ms(
        B, aerie::metered(verify_count, meters[0]), aerie::metered(seq_len, meters[1]),
        aerie::metered(qo_indptr, meters[2]), aerie::metered(kv_indptr, meters[3]),
        aerie::metered(mask_indptr, meters[4]), aerie::metered(status, meters[5]),
        aerie::metered(detail, meters[6]));
    return 0;
}

extern "C" std::int32_t update_node_data(
        std::int32_t B, std::int32_t N, std::int32_t row_capacity,
        const std::int64_t* cumu_tokens, const std::int64_t* cumu_deltas,
        const std::int64_t* prev_indexs, const std::int64_t* node_count,
        const std::uint8_t* selected, const std::int64_t* seq_len, std::int32_t* qo_indptr,
        std::int64_t* draft_tokens, std::int64_t* positions, std::int64_t* parent_row,
        std::int64_t* first_child_row, std::int64_t* next_sibling_row,
        std::uint32_t* ancestor_bits, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[15];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=N
#pragma HLS INTERFACE s_axilite port=row_capacity
#pragma HLS INTERFACE m_axi port=cumu_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=cumu_deltas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=prev_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=node_count offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=selected offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=parent_row offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=first_child_row offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=next_sibling_row offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=ancestor_bits offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::update_node_data(B, N, row_capacity);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 15);
    aerie::update_node_data(
        B, N, row_capacity, aerie::metered(cumu_tokens, meters[0]),
        aerie::metered(cumu_deltas, meters[1]), aerie::metered(prev_indexs, meters[2]),
        aerie::metered(node_count, meters[3]), aerie::metered(selected, meters[4]),
        aerie::metered(seq_len, meters[5]), aerie::metered(qo_indptr, meters[6]),
        aerie::metered(draft_tokens, meters[7]), aerie::metered(positions, meters[8]),
        aerie::metered(parent_row, meters[9]), aerie::metered(first_child_row, meters[10]),
        aerie::metered(next_sibling_row, meters[11]), aerie::metered(ancestor_bits, meters[12]),
        aerie::metered(status, meters[13]), aerie::metered(detail, meters[14]));
    return 0;
}
