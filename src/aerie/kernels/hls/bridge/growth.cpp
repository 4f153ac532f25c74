// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family growth: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "growth.hpp"

extern "C" std::int32_t draft_tree_layer_score_index_gen_op(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
        std::int32_t E, std::int32_t cumu_count, std::int32_t has_hot_token_id,
        const float* topk_probas, const std::int64_t* topk_tokens, const float* last_layer_scores,
        const std::uint16_t* input_hidden, const std::int64_t* hot_token_id,
        float* curr_layer_scores, float* sort_layer_scores, std::int64_t* sort_layer_indices,
        std::int64_t* cache_topk_indices, std::int64_t* parent_indices_in_layer,
        std::uint16_t* output_hidden, std::int64_t* mapped_tokens, std::int32_t* status,
        std::int64_t* detail) {
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=W
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=VD
#pragma HLS INTERFACE s_axilite port=E
#pragma HLS INTERFACE s_axilite port=cumu_count
#pragma HLS INTERFACE s_axilite port=has_hot_token_id
#pragma HLS INTERFACE m_axi port=topk_probas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=topk_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=last_layer_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=input_hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hot_token_id offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=curr_layer_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=sort_layer_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=sort_layer_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=cache_topk_indices offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=parent_indices_in_layer offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=output_hidden offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=mapped_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_tree_layer_score_index_gen_op(
        B, W, K, H, VD, E, cumu_count);
    if (bound != 0) {
        return bound;
    }
    aerie::draft_tree_layer_score_index_gen_op(
        B, W, K, H, VD, E, cumu_count, has_hot_token_id, topk_probas, topk_tokens,
        last_layer_scores, input_hidden, hot_token_id, curr_layer_scores, sort_layer_scores,
        sort_layer_indices, cache_topk_indices, parent_indices_in_layer, output_hidden,
        mapped_tokens, status, detail);
    return 0;
}

extern "C" std::int32_t update_cumu_draft_state(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
        std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
        std::int32_t compat, std::int64_t* cumu_tokens, float* cumu_scores,
        std::int64_t* cumu_deltas, std::int64_t* prev_indexs, std::int64_t* next_indexs,
        std::int64_t* side_indexs, float* sort_scores, const float* curr_layer_scores,
        const std::int64_t* topk_tokens, const float* sort_layer_scores,
        const std::int64_t* sort_layer_indices, const std::int64_t* frontier_indexs,
        const std::uint8_t* input_tree_mask, float* output_scores, std::int64_t* output_tokens,
        float* work_scores, std::uint8_t* output_tree_mask, std::int32_t* status,
        std::int64_t* detail) {
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=W
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE s_axilite port=N
#pragma HLS INTERFACE s_axilite port=M
#pragma HLS INTERFACE s_axilite port=F
#pragma HLS INTERFACE s_axilite port=cumu_count
#pragma HLS INTERFACE s_axilite port=verify_num
#pragma HLS INTERFACE s_axilite port=fed_count
#pragma HLS INTERFACE s_axilite port=compat
#pragma HLS INTERFACE m_axi port=cumu_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=cumu_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=cumu_deltas offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=prev_indexs offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=next_indexs offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=side_indexs offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=sort_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=curr_layer_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=topk_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sort_layer_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sort_layer_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=frontier_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=input_tree_mask offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=output_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=work_scores offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=output_tree_mask offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::update_cumu_draft_state(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat);
    if (bound != 0) {
        return bound;
    }
    aerie::update_cumu_draft_state(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat, cumu_tokens, cumu_scores,
        cumu_deltas, prev_indexs, next_indexs, side_indexs, sort_scores, curr_layer_scores,
        topk_tokens, sort_layer_scores, sort_layer_indices, frontier_indexs, input_tree_mask,
        output_scores, output_tokens, work_scores, output_tree_mask, status, detail);
    return 0;
}

extern "C" std::int32_t update_cumu_draft_state_check(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
        std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
        std::int32_t compat, const std::int64_t* cumu_tokens, const float* cumu_scores,
        const std::int64_t* cumu_deltas, const std::int64_t* prev_indexs,
        const std::int64_t* next_indexs, const std::int64_t* side_indexs,
        const float* sort_scores, const float* curr_layer_scores, const std::int64_t* topk_tokens,
        const float* sort_layer_scores, const std::int64_t* sort_layer_indices,
        const std::int64_t* frontier_indexs, const std::uint8_t* input_tree_mask,
        std::int32_t* status, std::int64_t* detail) {
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=W
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE s_axilite port=N
#pragma HLS INTERFACE s_axilite port=M
#pragma HLS INTERFACE s_axilite port=F
#pragma HLS INTERFACE s_axilite port=cumu_count
#pragma HLS INTERFACE s_axilite port=verify_num
#pragma HLS INTERFACE s_axilite port=fed_count
#pragma HLS INTERFACE s_axilite port=compat
#pragma HLS INTERFACE m_axi port=cumu_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=cumu_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=cumu_deltas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=prev_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=next_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=side_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sort_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=curr_layer_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=topk_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sort_layer_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sort_layer_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=frontier_indexs offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=input_tree_mask offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::update_cumu_draft_state(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat);
    if (bound != 0) {
        return bound;
    }
    aerie::update_cumu_draft_state_check(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat, cumu_tokens, cumu_scores,
        cumu_deltas, prev_indexs, next_indexs, side_indexs, sort_scores, curr_layer_scores,
        topk_tokens, sort_layer_scores, sort_layer_indices, frontier_indexs, input_tree_mask,
        status, detail);
    return 0;
}

extern "C" std::int32_t calculate_work_deltas(
        std::int32_t B, std::int32_t C, std::int32_t node_top_k, std::int32_t verify_num,
        const float* work_scores, float* G) {
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=node_top_k
#pragma HLS INTERFACE s_axilite port=verify_num
#pragma HLS INTERFACE m_axi port=work_scores offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=G offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::calculate_work_deltas(B, C, node_top_k, verify_num);
    if (bound != 0) {
        return bound;
    }
    aerie::calculate_work_deltas(B, C, node_top_k, verify_num, work_scores, G);
    return 0;
}
