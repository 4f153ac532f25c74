// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family fused: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "fused.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* fused_meters() { return aerie::latest_call(); }
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

extern "C" std::int32_t fused_draft(
        std::int32_t B, std::int32_t R, std::int32_t TH, std::int32_t H, std::int32_t C,
        std::int32_t VT, std::int32_t S, std::int32_t NP, std::int32_t HD, std::int32_t D,
        std::int32_t P, std::int32_t L, std::int32_t NN, std::int32_t N0, std::int32_t N1,
        std::int32_t N2, std::int32_t N3, std::int32_t N4, std::int32_t N5, std::int32_t N6,
        std::int32_t N7, std::int32_t N8, std::int32_t N9, std::int32_t N10, std::int32_t N11,
        std::int32_t N12, std::int32_t N13, std::int32_t N14, std::int32_t N15, std::int32_t K,
        std::int32_t verify_num, std::int32_t row_capacity, std::int32_t kv_capacity,
        std::int32_t mask_capacity, std::int32_t Q, std::int32_t M, std::int32_t V,
        std::int32_t window, std::int32_t head_kind, std::int32_t RK, std::int32_t n_candidates,
        std::int32_t has_fc, std::int32_t has_fc_q4, std::int32_t has_fc_q4_scale,
        std::int32_t has_qkv, std::int32_t has_qkv_scale, std::int32_t has_output,
        std::int32_t has_output_scale, std::int32_t has_head, std::int32_t has_head_q4,
        std::int32_t has_head_q4_scale, std::int32_t has_sketch_in,
        std::int32_t has_sketch_in_scale, std::int32_t has_sketch_out,
        std::int32_t has_sketch_out_scale, const std::uint16_t* features,
        const std::int64_t* new_tokens, const std::int64_t* new_positions,
        const std::int32_t* row_indptr, const std::int32_t* widths,
        const std::int64_t* root_tokens, const std::int64_t* seq_len,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const float* gain_floor, const std::uint16_t* embedding, const std::uint16_t* fc,
        const std::uint8_t* fc_q4, const std::uint16_t* fc_q4_scale, const float* norms,
        const float* eps, const float* cosines, const float* sines, const std::uint8_t* qkv,
        const std::uint16_t* qkv_scale, const std::uint8_t* output,
        const std::uint16_t* output_scale, const std::uint8_t* gate_up,
        const std::uint16_t* gate_up_scale, const std::uint8_t* down,
        const std::uint16_t* down_scale, const std::uint16_t* head, const std::uint8_t* head_q4,
        const std::uint16_t* head_q4_scale, const std::uint8_t* sketch_in,
        const std::uint16_t* sketch_in_scale, const std::uint8_t* sketch_out,
        const std::uint16_t* sketch_out_scale, std::uint16_t* keys, std::uint16_t* values,
        std::int32_t* used_widths, std::int32_t* rescored, float* G, std::int32_t* qo_indptr,
        std::int64_t* draft_tokens, std::int64_t* positions, std::uint32_t* ancestor_bits,
        std::int32_t* kv_indptr, std::int32_t* kv_indices, std::int32_t* mask_indptr,
        std::uint8_t* packed_mask, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[48];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=TH
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=VT
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=NP
#pragma HLS INTERFACE s_axilite port=HD
#pragma HLS INTERFACE s_axilite port=D
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=NN
#pragma HLS INTERFACE s_axilite port=N0
#pragma HLS INTERFACE s_axilite port=N1
#pragma HLS INTERFACE s_axilite port=N2
#pragma HLS INTERFACE s_axilite port=N3
#pragma HLS INTERFACE s_axilite port=N4
#pragma HLS INTERFACE s_axilite port=N5
#pragma HLS INTERFACE s_axilite port=N6
#pragma HLS INTERFACE s_axilite port=N7
#pragma HLS INTERFACE s_axilite port=N8
#pragma HLS INTERFACE s_axilite port=N9
#pragma HLS INTERFACE s_axilite port=N10
#pragma HLS INTERFACE s_axilite port=N11
#pragma HLS INTERFACE s_axilite port=N12
#pragma HLS INTERFACE s_axilite port=N13
#pragma HLS INTERFACE s_axilite port=N14
#pragma HLS INTERFACE s_axilite port=N15
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE s_axilite port=verify_num
#pragma HLS INTERFACE s_axilite port=row_capacity
#pragma HLS INTERFACE s_axilite port=kv_capacity
#pragma HLS INTERFACE s_axilite port=mask_capacity
#pragma HLS INTERFACE s_axilite port=Q
#pragma HLS INTERFACE s_axilite port=M
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE s_axilite port=window
#pragma HLS INTERFACE s_axilite port=head_kind
#pragma HLS INTERFACE s_axilite port=RK
#pragma HLS INTERFACE s_axilite port=n_candidates
#pragma HLS INTERFACE s_axilite port=has_fc
#pragma HLS INTERFACE s_axilite port=has_fc_q4
#pragma HLS INTERFACE s_axilite port=has_fc_q4_scale
#pragma HLS INTERFACE s_axilite port=has_qkv
#pragma HLS INTERFACE s_axilite port=has_qkv_scale
#pragma HLS INTERFACE s_axilite port=has_output
#pragma HLS INTERFACE s_axilite port=has_output_scale
#pragma HLS INTERFACE s_axilite port=has_head
#pragma HLS INTERFACE s_axilite port=has_head_q4
#pragma HLS INTERFACE s_axilite port=has_head_q4_scale
#pragma HLS INTERFACE s_axilite port=has_sketch_in
#pragma HLS INTERFACE s_axilite port=has_sketch_in_scale
#pragma HLS INTERFACE s_axilite port=has_sketch_out
#pragma HLS INTERFACE s_axilite port=has_sketch_out_scale
#pragma HLS INTERFACE m_axi port=features offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=new_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=new_positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=row_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=widths offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=root_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=gain_floor offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=embedding offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=fc offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=fc_q4 offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=fc_q4_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=norms offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=eps offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=cosines offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sines offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qkv offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qkv_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=gate_up offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=gate_up_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=down offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=down_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=head offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=head_q4 offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=head_q4_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sketch_in offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sketch_in_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sketch_out offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sketch_out_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=keys offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=values offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=used_widths offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=rescored offset=slave bundle=gmem_out
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
    const std::int32_t bound = aerie::bounds::fused_draft(
        B, R, TH, H, C, VT, S, NP, HD, D, P, L, NN, N0, N1, N2, N3, N4, N5, N6, N7, N8, N9, N10,
        N11, N12, N13, N14, N15, K, verify_num, row_capacity, kv_capacity, mask_capacity, Q, M, V,
        window, head_kind, RK, n_candidates);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 48);
    aerie::fused_draft(
        B, R, TH, H, C, VT, S, NP, HD, D, P, L, NN, N0, N1, N2, N3, N4, N5, N6, N7, N8, N9, N10,
        N11, N12, N13, N14, N15, K, verify_num, row_capacity, kv_capacity, mask_capacity, Q, M, V,
        window, head_kind, RK, n_candidates, has_fc, has_fc_q4, has_fc_q4_scale, has_qkv,
        has_qkv_scale, has_output, has_output_scale, has_head, has_head_q4, has_head_q4_scale,
        has_sketch_in, has_sketch_in_scale, has_sketch_out, has_sketch_out_scale,
        aerie::metered(features, meters[0]), aerie::metered(new_tokens, meters[1]),
        aerie::metered(new_positions, meters[2]), aerie::metered(row_indptr, meters[3]),
        aerie::metered(widths, meters[4]), aerie::metered(root_tokens, meters[5]),
        aerie::metered(seq_len, meters[6]), aerie::metered(req_to_token, meters[7]),
        aerie::metered(req_pool_indices, meters[8]), aerie::metered(gain_floor, meters[9]),
        aerie::metered(embedding, meters[10]), aerie::metered(fc, meters[11]),
        aerie::metered(fc_q4, meters[12]), aerie::metered(fc_q4_scale, meters[13]),
        aerie::metered(norms, meters[14]), aerie::metered(eps, meters[15]),
        aerie::metered(cosines, meters[16]), aerie::metered(sines, meters[17]),
        aerie::metered(qkv, meters[18]), aerie::metered(qkv_scale, meters[19]),
        aerie::metered(output, meters[20]), aerie::metered(output_scale, meters[21]),
        aerie::metered(gate_up, meters[22]), aerie::metered(gate_up_scale, meters[23]),
        aerie::metered(down, meters[24]), aerie::metered(down_scale, meters[25]),
        aerie::metered(head, meters[26]), aerie::metered(head_q4, meters[27]),
        aerie::metered(head_q4_scale, meters[28]), aerie::metered(sketch_in, meters[29]),
        aerie::metered(sketch_in_scale, meters[30]), aerie::metered(sketch_out, meters[31]),
        aerie::metered(sketch_out_scale, meters[32]), aerie::metered(keys, meters[33]),
        aerie::metered(values, meters[34]), aerie::metered(used_widths, meters[35]),
        aerie::metered(rescored, meters[36]), aerie::metered(G, meters[37]),
        aerie::metered(qo_indptr, meters[38]), aerie::metered(draft_tokens, meters[39]),
        aerie::metered(positions, meters[40]), aerie::metered(ancestor_bits, meters[41]),
        aerie::metered(kv_indptr, meters[42]), aerie::metered(kv_indices, meters[43]),
        aerie::metered(mask_indptr, meters[44]), aerie::metered(packed_mask, meters[45]),
        aerie::metered(status, meters[46]), aerie::metered(detail, meters[47]));
    return 0;
}

extern "C" std::int32_t fused_load_attention(
        std::int32_t NW, std::int32_t NS, std::int32_t NO, std::int32_t NP,
        const std::uint8_t* qkv, const std::uint16_t* qkv_scale, const std::uint8_t* output,
        const std::uint16_t* output_scale) {
    static aerie::Meter meters[4];
#pragma HLS INTERFACE s_axilite port=NW
#pragma HLS INTERFACE s_axilite port=NS
#pragma HLS INTERFACE s_axilite port=NO
#pragma HLS INTERFACE s_axilite port=NP
#pragma HLS INTERFACE m_axi port=qkv offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qkv_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::fused_load_attention(NW, NS, NO, NP);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 4);
    aerie::fused_load_attention(
        NW, NS, NO, NP, aerie::metered(qkv, meters[0]), aerie::metered(qkv_scale, meters[1]),
        aerie::metered(output, meters[2]), aerie::metered(output_scale, meters[3]));
    return 0;
}
