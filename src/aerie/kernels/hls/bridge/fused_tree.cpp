// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family fused_tree: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "fused_tree.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* fused_tree_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t fused_growth(
        std::int32_t B, std::int32_t D, std::int32_t W, std::int32_t P, std::int32_t L,
        std::int32_t K, std::int32_t verify_num, std::int32_t row_capacity,
        std::int32_t kv_capacity, std::int32_t mask_capacity, const std::int32_t* widths,
        const float* level_probas, const std::int64_t* level_tokens,
        const std::int64_t* root_tokens, const std::int64_t* seq_len,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices, float* G,
        std::int32_t* qo_indptr, std::int64_t* draft_tokens, std::int64_t* positions,
        std::uint32_t* ancestor_bits, std::int32_t* kv_indptr, std::int32_t* kv_indices,
        std::int32_t* mask_indptr, std::uint8_t* packed_mask, std::int32_t* status,
        std::int64_t* detail) {
    static aerie::Meter meters[18];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=D
#pragma HLS INTERFACE s_axilite port=W
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE s_axilite port=verify_num
#pragma HLS INTERFACE s_axilite port=row_capacity
#pragma HLS INTERFACE s_axilite port=kv_capacity
#pragma HLS INTERFACE s_axilite port=mask_capacity
#pragma HLS INTERFACE m_axi port=widths offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=level_probas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=level_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=root_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=G offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=ancestor_bits offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=mask_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=packed_mask offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::fused_growth(
        B, D, W, P, L, K, verify_num, row_capacity, kv_capacity, mask_capacity);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 18);
    aerie::fused_growth(
        B, D, W, P, L, K, verify_num, row_capacity, kv_capacity, mask_capacity,
        aerie::metered(widths, meters[0]), aerie::metered(level_probas, meters[1]),
        aerie::metered(level_tokens, meters[2]), aerie::metered(root_tokens, meters[3]),
        aerie::metered(seq_len, meters[4]), aerie::metered(req_to_token, meters[5]),
        aerie::metered(req_pool_indices, meters[6]), aerie::metered(G, meters[7]),
        aerie::metered(qo_indptr, meters[8]), aerie::metered(draft_tokens, meters[9]),
        aerie::metered(positions, meters[10]), aerie::metered(ancestor_bits, meters[11]),
        aerie::metered(kv_indptr, meters[12]), aerie::metered(kv_indices, meters[13]),
        aerie::metered(mask_indptr, meters[14]), aerie::metered(packed_mask, meters[15]),
        aerie::metered(status, meters[16]), aerie::metered(detail, meters[17]));
    return 0;
}

extern "C" std::int32_t fused_verdict(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t P,
        std::int32_t L, std::int32_t D, std::int32_t has_coins, std::int32_t has_qo_indptr,
        std::int32_t has_draft_tokens, std::int32_t has_first_child_row,
        std::int32_t has_next_sibling_row, const float* logits, const float* temperature,
        const float* coins, const std::int32_t* qo_indptr, const std::int64_t* draft_tokens,
        const std::int64_t* first_child_row, const std::int64_t* next_sibling_row,
        const std::int64_t* seq_len, const std::int64_t* length_limit,
        const std::int64_t* stop_tokens, const std::int32_t* req_to_token,
        const std::int64_t* req_pool_indices, std::int64_t* out_tokens, std::int32_t* out_indptr,
        std::int64_t* out_rows, std::int32_t* rows_indptr, std::int64_t* new_seq_len,
        std::uint8_t* finished, std::int64_t* unfinished, std::int32_t* unfinished_count,
        std::int32_t* kv_src, std::int32_t* kv_dst, std::int32_t* move_count, std::int32_t* free,
        std::int32_t* free_count, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[27];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=D
#pragma HLS INTERFACE s_axilite port=has_coins
#pragma HLS INTERFACE s_axilite port=has_qo_indptr
#pragma HLS INTERFACE s_axilite port=has_draft_tokens
#pragma HLS INTERFACE s_axilite port=has_first_child_row
#pragma HLS INTERFACE s_axilite port=has_next_sibling_row
#pragma HLS INTERFACE m_axi port=logits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=temperature offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=coins offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=first_child_row offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=next_sibling_row offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=length_limit offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=stop_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=out_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=out_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=out_rows offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=rows_indptr offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=new_seq_len offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=finished offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=unfinished offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=unfinished_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_src offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=kv_dst offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=move_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=free offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=free_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::fused_verdict(B, R, V, S, P, L, D);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 27);
    aerie::fused_verdict(
        B, R, V, S, P, L, D, has_coins, has_qo_indptr, has_draft_tokens, has_first_child_row,
        has_next_sibling_row, aerie::metered(logits, meters[0]),
        aerie::metered(temperature, meters[1]), aerie::metered(coins, meters[2]),
        aerie::metered(qo_indptr, meters[3]), aerie::metered(draft_tokens, meters[4]),
        aerie::metered(first_child_row, meters[5]), aerie::metered(next_sibling_row, meters[6]),
        aerie::metered(seq_len, meters[7]), aerie::metered(length_limit, meters[8]),
        aerie::metered(stop_tokens, meters[9]), aerie::metered(req_to_token, meters[10]),
        aerie::metered(req_pool_indices, meters[11]), aerie::metered(out_tokens, meters[12]),
        aerie::metered(out_indptr, meters[13]), aerie::metered(out_rows, meters[14]),
        aerie::metered(rows_indptr, meters[15]), aerie::metered(new_seq_len, meters[16]),
        aerie::metered(finished, meters[17]), aerie::metered(unfinished, meters[18]),
        aerie::metered(unfinished_count, meters[19]), aerie::metered(kv_src, meters[20]),
        aerie::metered(kv_dst, meters[21]), aerie::metered(move_count, meters[22]),
        aerie::metered(free, meters[23]), aerie::metered(free_count, meters[24]),
        aerie::metered(status, meters[25]), aerie::metered(detail, meters[26]));
    return 0;
}
