// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family growth: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "growth.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* growth_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t draft_tree_layer_score_index_gen_op(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
        std::int32_t E, std::int32_t cumu_count, std::int32_t has_hot_token_id,
        const float* topk_probas, const std::int64_t* topk_tokens, const float* last_layer_scores,
        const std::uint16_t* input_hidden, const std::int64_t* hot_token_id,
        float* curr_layer_scores, float* sort_layer_scores, std::int64_t* sort_layer_indices,
        std::int64_t* cache_topk_indices, std::int64_t* parent_indices_in_layer,
        std::uint16_t* output_hidden, std::int64_t* mapped_tokens, std::int32_t* status,
        std::int64_t* detail) {
    static aerie::Meter meters[14];
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
    aerie::begin_call(meters, 14);
    aerie::draft_tree_layer_score_index_gen_op(
        B, W, K, H, VD, E, cumu_count, has_hot_token_id, aerie::metered(topk_probas, meters[0]),
        aerie::metered(topk_tokens, meters[1]), aerie::metered(last_layer_scores, meters[2]),
        aerie::metered(input_hidden, meters[3]), aerie::metered(hot_token_id, meters[4]),
        aerie::metered(curr_layer_scores, meters[5]),
        aerie::metered(sort_layer_scores, meters[6]),
        aerie::metered(sort_layer_indices, meters[7]),
        aerie::metered(cache_topk_indices, meters[8]),
        aerie::metered(parent_indices_in_layer, meters[9]),
        aerie::metered(output_hidden, meters[10]), aerie::metered(mapped_tokens, meters[11]),
        aerie::metered(status, meters[12]), aerie::metered(detail, meters[13]));
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
    static aerie::Meter meters[19];
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
    aerie::begin_call(meters, 19);
    aerie::update_cumu_draft_state(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat,
        aerie::metered(cumu_tokens, meters[0]), aerie::metered(cumu_scores, meters[1]),
        aerie::metered(cumu_deltas, meters[2]), aerie::metered(prev_indexs, meters[3]),
        aerie::metered(next_indexs, meters[4]), aerie::metered(side_indexs, meters[5]),
        aerie::metered(sort_scores, meters[6]), aerie::metered(curr_layer_scores, meters[7]),
        aerie::metered(topk_tokens, meters[8]), aerie::metered(sort_layer_scores, meters[9]),
        aerie::metered(sort_layer_indices, meters[10]),
        aerie::metered(frontier_indexs, meters[11]), aerie::metered(input_tree_mask, meters[12]),
        aerie::metered(output_scores, meters[13]), aerie::metered(output_tokens, meters[14]),
        aerie::metered(work_scores, meters[15]), aerie::metered(output_tree_mask, meters[16]),
        aerie::metered(status, meters[17]), aerie::metered(detail, meters[18]));
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
    static aerie::Meter meters[15];
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
    aerie::begin_call(meters, 15);
    aerie::update_cumu_draft_state_check(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat,
        aerie::metered(cumu_tokens, meters[0]), aerie::metered(cumu_scores, meters[1]),
        aerie::metered(cumu_deltas, meters[2]), aerie::metered(prev_indexs, meters[3]),
        aerie::metered(next_indexs, meters[4]), aerie::metered(side_indexs, meters[5]),
        aerie::metered(sort_scores, meters[6]), aerie::metered(curr_layer_scores, meters[7]),
        aerie::metered(topk_tokens, meters[8]), aerie::metered(sort_layer_scores, meters[9]),
        aerie::metered(sort_layer_indices, meters[10]),
        aerie::metered(frontier_indexs, meters[11]), aerie::metered(input_tree_mask, meters[12]),
        aerie::metered(status, meters[13]), aerie::metered(detail, meters[14]));
    return 0;
}

extern "C" std::int32_t calculate_work_deltas(
        std::int32_t B, std::int32_t C, std::int32_t node_top_k, std::int32_t verify_num,
        const float* work_scores, float* G) {
    static aerie::Meter meters[2];
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
    aerie::begin_call(meters, 2);
    aerie::calculate_work_deltas(
        B, C, node_top_k, verify_num, aerie::metered(work_scores, meters[0]),
        aerie::metered(G, meters[1]));
    return 0;
}
