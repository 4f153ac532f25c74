// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family verdict: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "verdict.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* verdict_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t convert_logits_to_probas(
        std::int32_t B, std::int32_t R, std::int32_t V, const float* logits,
        const float* temperature, const std::int32_t* qo_indptr, float* target_probas,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[6];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE m_axi port=logits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=temperature offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=target_probas offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::convert_logits_to_probas(B, R, V);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 6);
    aerie::convert_logits_to_probas(
        B, R, V, aerie::metered(logits, meters[0]), aerie::metered(temperature, meters[1]),
        aerie::metered(qo_indptr, meters[2]), aerie::metered(target_probas, meters[3]),
        aerie::metered(status, meters[4]), aerie::metered(detail, meters[5]));
    return 0;
}

extern "C" std::int32_t draft_tree_reject_sample(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t tree_depth,
        std::int32_t has_target_probas, std::int32_t has_coins, std::int32_t has_target_tokens,
        const std::int32_t* qo_indptr, const std::int64_t* draft_tokens,
        const std::int64_t* first_child_row, const std::int64_t* next_sibling_row,
        const float* target_probas, const float* coins, const std::int64_t* target_tokens,
        std::int64_t* accept_index, std::int64_t* accept_count, std::int64_t* bonus_token,
        std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[12];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE s_axilite port=tree_depth
#pragma HLS INTERFACE s_axilite port=has_target_probas
#pragma HLS INTERFACE s_axilite port=has_coins
#pragma HLS INTERFACE s_axilite port=has_target_tokens
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=first_child_row offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=next_sibling_row offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=target_probas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=coins offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=target_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=accept_index offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=accept_count offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=bonus_token offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_tree_reject_sample(B, R, V, tree_depth);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 12);
    aerie::draft_tree_reject_sample(
        B, R, V, tree_depth, has_target_probas, has_coins, has_target_tokens,
        aerie::metered(qo_indptr, meters[0]), aerie::metered(draft_tokens, meters[1]),
        aerie::metered(first_child_row, meters[2]), aerie::metered(next_sibling_row, meters[3]),
        aerie::metered(target_probas, meters[4]), aerie::metered(coins, meters[5]),
        aerie::metered(target_tokens, meters[6]), aerie::metered(accept_index, meters[7]),
        aerie::metered(accept_count, meters[8]), aerie::metered(bonus_token, meters[9]),
        aerie::metered(status, meters[10]), aerie::metered(detail, meters[11]));
    return 0;
}

extern "C" std::int32_t sample_target_tokens(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t has_seed,
        std::int32_t has_sample_index, std::int32_t has_top_k, std::int32_t has_top_p,
        std::int32_t has_min_p, std::int32_t has_repetition_penalty,
        std::int32_t has_presence_penalty, std::int32_t has_frequency_penalty,
        std::int32_t has_prompt_counts, std::int32_t has_output_counts,
        std::int32_t has_logit_bias, std::int32_t has_draft_tokens,
        std::int32_t has_ancestor_bits, std::int32_t has_stop_tokens,
        std::int32_t has_floor_position, const float* logits, const std::int64_t* positions,
        const float* temperature, const std::int32_t* qo_indptr, const std::int64_t* seed,
        const std::int64_t* sample_index, const std::int64_t* top_k, const float* top_p,
        const float* min_p, const float* repetition_penalty, const float* presence_penalty,
        const float* frequency_penalty, const std::int32_t* prompt_counts,
        const std::int32_t* output_counts, const float* logit_bias,
        const std::int64_t* draft_tokens, const std::uint32_t* ancestor_bits,
        const std::int64_t* stop_tokens, const std::int64_t* floor_position,
        std::int64_t* target_tokens, std::int32_t* status, std::int64_t* detail) {
    static aerie::Meter meters[22];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=has_seed
#pragma HLS INTERFACE s_axilite port=has_sample_index
#pragma HLS INTERFACE s_axilite port=has_top_k
#pragma HLS INTERFACE s_axilite port=has_top_p
#pragma HLS INTERFACE s_axilite port=has_min_p
#pragma HLS INTERFACE s_axilite port=has_repetition_penalty
#pragma HLS INTERFACE s_axilite port=has_presence_penalty
#pragma HLS INTERFACE s_axilite port=has_frequency_penalty
#pragma HLS INTERFACE s_axilite port=has_prompt_counts
#pragma HLS INTERFACE s_axilite port=has_output_counts
#pragma HLS INTERFACE s_axilite port=has_logit_bias
#pragma HLS INTERFACE s_axilite port=has_draft_tokens
#pragma HLS INTERFACE s_axilite port=has_ancestor_bits
#pragma HLS INTERFACE s_axilite port=has_stop_tokens
#pragma HLS INTERFACE s_axilite port=has_floor_position
#pragma HLS INTERFACE m_axi port=logits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=temperature offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=qo_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seed offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sample_index offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=top_k offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=top_p offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=min_p offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=repetition_penalty offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=presence_penalty offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=frequency_penalty offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=prompt_counts offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=output_counts offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=logit_bias offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=draft_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=ancestor_bits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=stop_tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=floor_position offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=target_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=status offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=detail offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::sample_target_tokens(B, R, V, S);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 22);
    aerie::sample_target_tokens(
        B, R, V, S, has_seed, has_sample_index, has_top_k, has_top_p, has_min_p,
        has_repetition_penalty, has_presence_penalty, has_frequency_penalty, has_prompt_counts,
        has_output_counts, has_logit_bias, has_draft_tokens, has_ancestor_bits, has_stop_tokens,
        has_floor_position, aerie::metered(logits, meters[0]),
        aerie::metered(positions, meters[1]), aerie::metered(temperature, meters[2]),
        aerie::metered(qo_indptr, meters[3]), aerie::metered(seed, meters[4]),
        aerie::metered(sample_index, meters[5]), aerie::metered(top_k, meters[6]),
        aerie::metered(top_p, meters[7]), aerie::metered(min_p, meters[8]),
        aerie::metered(repetition_penalty, meters[9]),
        aerie::metered(presence_penalty, meters[10]),
        aerie::metered(frequency_penalty, meters[11]), aerie::metered(prompt_counts, meters[12]),
        aerie::metered(output_counts, meters[13]), aerie::metered(logit_bias, meters[14]),
        aerie::metered(draft_tokens, meters[15]), aerie::metered(ancestor_bits, meters[16]),
        aerie::metered(stop_tokens, meters[17]), aerie::metered(floor_position, meters[18]),
        aerie::metered(target_tokens, meters[19]), aerie::metered(status, meters[20]),
        aerie::metered(detail, meters[21]));
    return 0;
}
