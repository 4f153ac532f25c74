// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family commit: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "commit.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* commit_meters() { return aerie::latest_call(); }
#endif

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
    static aerie::Meter meters[25];
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
    aerie::begin_call(meters, 25);
    aerie::update_verify_result(
        B, D, R, S, P, L, aerie::metered(accept_index, meters[0]),
        aerie::metered(accept_count, meters[1]), aerie::metered(bonus_token, meters[2]),
        aerie::metered(draft_tokens, meters[3]), aerie::metered(qo_indptr, meters[4]),
        aerie::metered(seq_len, meters[5]), aerie::metered(length_limit, meters[6]),
        aerie::metered(stop_tokens, meters[7]), aerie::metered(req_to_token, meters[8]),
        aerie::metered(req_pool_indices, meters[9]), aerie::metered(out_tokens, meters[10]),
        aerie::metered(out_indptr, meters[11]), aerie::metered(out_rows, meters[12]),
        aerie::metered(rows_indptr, meters[13]), aerie::metered(new_seq_len, meters[14]),
        aerie::metered(finished, meters[15]), aerie::metered(unfinished, meters[16]),
        aerie::metered(unfinished_count, meters[17]), aerie::metered(kv_src, meters[18]),
        aerie::metered(kv_dst, meters[19]), aerie::metered(move_count, meters[20]),
        aerie::metered(free, meters[21]), aerie::metered(free_count, meters[22]),
        aerie::metered(status, meters[23]), aerie::metered(detail, meters[24]));
    return 0;
}
