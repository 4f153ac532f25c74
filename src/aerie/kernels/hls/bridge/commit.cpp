// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family commit: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "commit.hpp"

extern "C" std::int32_t update_verify_result(
        std::int32_t B, std::int32_t D, std::int32_t R, std::int32_t S, std::int32_t P,
        std::int32_t L, const std::int64_t* accept_index, const std::int64_t* accept_count,
        const std::int64_t* bonus_token, const std::int64_t* draft_tokens,
        const std::int32_t* qo_indptr, const std::int64_t* seq_len,
        const std::int64_t* length_limit, const std::int64_t* stop_tokens,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        std::int64_t* out_tokens, std::int32_t* out_indptr, std::int64_t* out_rows,
        std::int32_t* rows_indptr, std::int64_t* new_seq_len, std::uint8_t* finished,
        std::int64_t* unfinished, std::int32_t* unfinished_count, std::int32_t* kv_src,
        std::int32_t* kv_dst, std::int32_t* move_count, std::int32_t* free,
        std::int32_t* free_count, std::int32_t* status, std::int64_t* detail) {
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=D
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE m_axi port=accept_index offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=accept_count offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=bonus_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
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
    const std::int32_t bound = aerie::bounds::update_verify_result(B, D, R, S, P, L);
    if (bound != 0) {
        return bound;
    }
    aerie::update_verify_result(
        B, D, R, S, P, L, accept_index, accept_count, bonus_token, draft_tokens, qo_indptr,
        seq_len, length_limit, stop_tokens, req_to_token, req_pool_indices, out_tokens,
        out_indptr, out_rows, rows_indptr, new_seq_len, finished, unfinished, unfinished_count,
        kv_src, kv_dst, move_count, free, free_count, status, detail);
    return 0;
}
