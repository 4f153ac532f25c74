// Generated from the cards: python -m aerie.kernels.hls.generate

// C functions of the family drafter: host scalars checked, then the kernel.
#include "bounds.hpp"
#include "drafter.hpp"
#include "ports.hpp"

#ifndef __SYNTHESIS__
// Counters of the arrays of the last call, in its order.
extern "C" const aerie::Meter* drafter_meters() { return aerie::latest_call(); }
#endif

extern "C" std::int32_t draft_embed_rows(
        std::int32_t R, std::int32_t H, std::int32_t VT, const std::int64_t* tokens,
        const std::uint16_t* embedding, std::uint16_t* rows) {
    static aerie::Meter meters[3];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=VT
#pragma HLS INTERFACE m_axi port=tokens offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=embedding offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=rows offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_embed_rows(R, H, VT);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 3);
    aerie::draft_embed_rows(
        R, H, VT, aerie::metered(tokens, meters[0]), aerie::metered(embedding, meters[1]),
        aerie::metered(rows, meters[2]));
    return 0;
}

extern "C" std::int32_t draft_linear_half(
        std::int32_t R, std::int32_t I, std::int32_t O, const std::uint16_t* x,
        const std::uint16_t* weight, std::uint16_t* y) {
    static aerie::Meter meters[3];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=I
#pragma HLS INTERFACE s_axilite port=O
#pragma HLS INTERFACE m_axi port=x offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=weight offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=y offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_linear_half(R, I, O);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 3);
    aerie::draft_linear_half(
        R, I, O, aerie::metered(x, meters[0]), aerie::metered(weight, meters[1]),
        aerie::metered(y, meters[2]));
    return 0;
}

extern "C" std::int32_t draft_linear_q4(
        std::int32_t R, std::int32_t I, std::int32_t NW, std::int32_t NS, std::int32_t O,
        const std::uint16_t* x, const std::uint8_t* weight, const std::uint16_t* weight_scale,
        std::uint16_t* y) {
    static aerie::Meter meters[4];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=I
#pragma HLS INTERFACE s_axilite port=NW
#pragma HLS INTERFACE s_axilite port=NS
#pragma HLS INTERFACE s_axilite port=O
#pragma HLS INTERFACE m_axi port=x offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=weight offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=weight_scale offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=y offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_linear_q4(R, I, NW, NS, O);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 4);
    aerie::draft_linear_q4(
        R, I, NW, NS, O, aerie::metered(x, meters[0]), aerie::metered(weight, meters[1]),
        aerie::metered(weight_scale, meters[2]), aerie::metered(y, meters[3]));
    return 0;
}

extern "C" std::int32_t draft_logits(
        std::int32_t R, std::int32_t H, std::int32_t V, const std::uint16_t* x,
        const std::uint16_t* weight, float* logits) {
    static aerie::Meter meters[3];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE m_axi port=x offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=weight offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=logits offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_logits(R, H, V);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 3);
    aerie::draft_logits(
        R, H, V, aerie::metered(x, meters[0]), aerie::metered(weight, meters[1]),
        aerie::metered(logits, meters[2]));
    return 0;
}

extern "C" std::int32_t draft_join_norms(
        std::int32_t R, std::int32_t H, const std::uint16_t* embedded,
        const std::uint16_t* hidden, const float* embedding_norm, const float* hidden_norm,
        const float* eps, std::uint16_t* joined) {
    static aerie::Meter meters[6];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE m_axi port=embedded offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hidden offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=embedding_norm offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=hidden_norm offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=eps offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=joined offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_join_norms(R, H);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 6);
    aerie::draft_join_norms(
        R, H, aerie::metered(embedded, meters[0]), aerie::metered(hidden, meters[1]),
        aerie::metered(embedding_norm, meters[2]), aerie::metered(hidden_norm, meters[3]),
        aerie::metered(eps, meters[4]), aerie::metered(joined, meters[5]));
    return 0;
}

extern "C" std::int32_t draft_add_norm(
        std::int32_t R, std::int32_t H, const std::uint16_t* residual, const std::uint16_t* added,
        const float* norm, const float* eps, std::uint16_t* total, std::uint16_t* normed) {
    static aerie::Meter meters[6];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=H
#pragma HLS INTERFACE m_axi port=residual offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=added offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=norm offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=eps offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=total offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=normed offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_add_norm(R, H);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 6);
    aerie::draft_add_norm(
        R, H, aerie::metered(residual, meters[0]), aerie::metered(added, meters[1]),
        aerie::metered(norm, meters[2]), aerie::metered(eps, meters[3]),
        aerie::metered(total, meters[4]), aerie::metered(normed, meters[5]));
    return 0;
}

extern "C" std::int32_t draft_gate(
        std::int32_t R, std::int32_t GU, const std::uint16_t* gate_up, std::uint16_t* gated) {
    static aerie::Meter meters[2];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=GU
#pragma HLS INTERFACE m_axi port=gate_up offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=gated offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_gate(R, GU);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 2);
    aerie::draft_gate(
        R, GU, aerie::metered(gate_up, meters[0]), aerie::metered(gated, meters[1]));
    return 0;
}

extern "C" std::int32_t draft_rotate_store(
        std::int32_t R, std::int32_t C, std::int32_t S, std::int32_t NP, std::int32_t HD,
        std::int32_t NQ, const std::uint16_t* qkv, const std::int64_t* positions,
        const std::int32_t* slots, const float* cosines, const float* sines, std::uint16_t* keys,
        std::uint16_t* values, std::uint16_t* queries) {
    static aerie::Meter meters[8];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=NP
#pragma HLS INTERFACE s_axilite port=HD
#pragma HLS INTERFACE s_axilite port=NQ
#pragma HLS INTERFACE m_axi port=qkv offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=slots offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=cosines offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=sines offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=keys offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=values offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=queries offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_rotate_store(R, C, S, NP, HD, NQ);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 8);
    aerie::draft_rotate_store(
        R, C, S, NP, HD, NQ, aerie::metered(qkv, meters[0]), aerie::metered(positions, meters[1]),
        aerie::metered(slots, meters[2]), aerie::metered(cosines, meters[3]),
        aerie::metered(sines, meters[4]), aerie::metered(keys, meters[5]),
        aerie::metered(values, meters[6]), aerie::metered(queries, meters[7]));
    return 0;
}

extern "C" std::int32_t draft_attend(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t S, std::int32_t F,
        std::int32_t P, std::int32_t L, std::int32_t Q, std::int32_t head_dim,
        std::int32_t window, std::int32_t n_fed, std::int32_t has_tree_mask,
        const std::uint16_t* queries, const std::int32_t* row_indptr,
        const std::int64_t* positions, const std::int64_t* seq_len, const std::uint8_t* tree_mask,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::uint16_t* keys, const std::uint16_t* values, std::uint16_t* attended) {
    static aerie::Meter meters[10];
#pragma HLS INTERFACE s_axilite port=B
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=C
#pragma HLS INTERFACE s_axilite port=S
#pragma HLS INTERFACE s_axilite port=F
#pragma HLS INTERFACE s_axilite port=P
#pragma HLS INTERFACE s_axilite port=L
#pragma HLS INTERFACE s_axilite port=Q
#pragma HLS INTERFACE s_axilite port=head_dim
#pragma HLS INTERFACE s_axilite port=window
#pragma HLS INTERFACE s_axilite port=n_fed
#pragma HLS INTERFACE s_axilite port=has_tree_mask
#pragma HLS INTERFACE m_axi port=queries offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=row_indptr offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=positions offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=seq_len offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=tree_mask offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_to_token offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=req_pool_indices offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=keys offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=values offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=attended offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_attend(
        B, R, C, S, F, P, L, Q, head_dim, window, n_fed);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 10);
    aerie::draft_attend(
        B, R, C, S, F, P, L, Q, head_dim, window, n_fed, has_tree_mask,
        aerie::metered(queries, meters[0]), aerie::metered(row_indptr, meters[1]),
        aerie::metered(positions, meters[2]), aerie::metered(seq_len, meters[3]),
        aerie::metered(tree_mask, meters[4]), aerie::metered(req_to_token, meters[5]),
        aerie::metered(req_pool_indices, meters[6]), aerie::metered(keys, meters[7]),
        aerie::metered(values, meters[8]), aerie::metered(attended, meters[9]));
    return 0;
}

extern "C" std::int32_t draft_softmax(
        std::int32_t R, std::int32_t V, const float* logits, float* probas) {
    static aerie::Meter meters[2];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE m_axi port=logits offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=probas offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_softmax(R, V);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 2);
    aerie::draft_softmax(
        R, V, aerie::metered(logits, meters[0]), aerie::metered(probas, meters[1]));
    return 0;
}

extern "C" std::int32_t draft_top_k(
        std::int32_t R, std::int32_t V, std::int32_t K, const float* probas, float* topk_probas,
        std::int64_t* topk_tokens) {
    static aerie::Meter meters[3];
#pragma HLS INTERFACE s_axilite port=R
#pragma HLS INTERFACE s_axilite port=V
#pragma HLS INTERFACE s_axilite port=K
#pragma HLS INTERFACE m_axi port=probas offset=slave bundle=gmem_in
#pragma HLS INTERFACE m_axi port=topk_probas offset=slave bundle=gmem_out
#pragma HLS INTERFACE m_axi port=topk_tokens offset=slave bundle=gmem_out
#pragma HLS INTERFACE s_axilite port=return
    const std::int32_t bound = aerie::bounds::draft_top_k(R, V, K);
    if (bound != 0) {
        return bound;
    }
    aerie::begin_call(meters, 3);
    aerie::draft_top_k(
        R, V, K, aerie::metered(probas, meters[0]), aerie::metered(topk_probas, meters[1]),
        aerie::metered(topk_tokens, meters[2]));
    return 0;
}
