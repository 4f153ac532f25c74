// Generated from the cards: python -m aerie.kernels.hls.generate

// Host scalars against the cards' bounds, in each kernel's order of codes.
#pragma once

#include "buckets.hpp"
#include "config.hpp"
#include "numeric.hpp"

namespace aerie {
namespace bounds {

inline std::int32_t draft_tree_layer_score_index_gen_op(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
        std::int32_t E, std::int32_t cumu_count) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (W < 1 || W > 10) {
        return 65;
    }
    if (K < 1 || K > 10) {
        return 66;
    }
    if (H < 0 || H > 8192) {
        return 67;
    }
    if (VD < 1 || VD > 262144) {
        return 68;
    }
    if (cumu_count < 1 || cumu_count > 4096) {
        return 69;
    }
    if (W*K > 100) {
        return 70;
    }
    if (W*K > 64) {
        return 71;
    }
    if (H > 4096) {
        return 72;
    }
    static_cast<void>(E);
    return 0;
}

inline std::int32_t update_cumu_draft_state(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
        std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
        std::int32_t compat) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (W < 1 || W > 10) {
        return 65;
    }
    if (K < 1 || K > 10) {
        return 66;
    }
    if (N < 1 || N > 4096) {
        return 67;
    }
    if (M < 1 || M > 128) {
        return 68;
    }
    if (F < 1 || F > 1024) {
        return 69;
    }
    if (cumu_count < 1 || cumu_count > 4096) {
        return 70;
    }
    if (verify_num < 1 || verify_num > 128) {
        return 71;
    }
    if (fed_count < 0 || fed_count > 1024) {
        return 72;
    }
    if (compat < 0 || compat > 1) {
        return 73;
    }
    if (W*K > 100) {
        return 74;
    }
    if (cumu_count + W*K > N) {
        return 75;
    }
    if (verify_num > M) {
        return 76;
    }
    if (fed_count + K > F) {
        return 77;
    }
    if (W*K > 64) {
        return 78;
    }
    return 0;
}

inline std::int32_t calculate_work_deltas(
        std::int32_t B, std::int32_t C, std::int32_t node_top_k, std::int32_t verify_num) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (C < 1 || C > 138) {
        return 65;
    }
    if (node_top_k < 1 || node_top_k > 10) {
        return 66;
    }
    if (verify_num < 1 || verify_num > 128) {
        return 67;
    }
    if (node_top_k > C) {
        return 68;
    }
    if (C - node_top_k > verify_num) {
        return 69;
    }
    return 0;
}

inline std::int32_t fused_tree_mask_operator(
        std::int32_t B, std::int32_t R, std::int32_t P, std::int32_t L, std::int32_t kv_capacity,
        std::int32_t mask_capacity) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (P < 0 || P > 65536) {
        return 66;
    }
    if (L < 0 || L > 2097152) {
        return 67;
    }
    if (kv_capacity < 0 || kv_capacity > 2147483647) {
        return 68;
    }
    if (mask_capacity < 0 || mask_capacity > 2147483647) {
        return 69;
    }
    return 0;
}

inline std::int32_t convert_logits_to_probas(std::int32_t B, std::int32_t R, std::int32_t V) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (V < 1 || V > 262144) {
        return 66;
    }
    return 0;
}

inline std::int32_t draft_tree_reject_sample(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t tree_depth) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (V < 1 || V > 262144) {
        return 66;
    }
    if (tree_depth < 0 || tree_depth > 127) {
        return 67;
    }
    return 0;
}

inline std::int32_t sample_target_tokens(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (V < 1 || V > 262144) {
        return 66;
    }
    if (S < 0 || S > 64) {
        return 67;
    }
    return 0;
}

inline std::int32_t update_verify_result(
        std::int32_t B, std::int32_t D, std::int32_t R, std::int32_t S, std::int32_t P,
        std::int32_t L) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (D < 0 || D > 127) {
        return 65;
    }
    if (R < 0 || R > 16384) {
        return 66;
    }
    if (S < 0 || S > 64) {
        return 67;
    }
    if (P < 0 || P > 65536) {
        return 68;
    }
    if (L < 0 || L > 2097152) {
        return 69;
    }
    return 0;
}

inline std::int32_t compute_kv_indices(
        std::int32_t B, std::int32_t W, std::int32_t F, std::int32_t P, std::int32_t L,
        std::int32_t kv_capacity) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (W < 1 || W > 10) {
        return 65;
    }
    if (F < 1 || F > 1024) {
        return 66;
    }
    if (P < 0 || P > 65536) {
        return 67;
    }
    if (L < 0 || L > 2097152) {
        return 68;
    }
    if (kv_capacity < 0 || kv_capacity > 2147483647) {
        return 69;
    }
    return 0;
}

inline std::int32_t calculate_verify_kv_qo_ms(std::int32_t B) {
    if (B < 0 || B > 128) {
        return 64;
    }
    return 0;
}

inline std::int32_t assign_draft_cache_locs_operator(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (P < 0 || P > 65536) {
        return 65;
    }
    if (L < 0 || L > 2097152) {
        return 66;
    }
    if (T < 0 || T > 1024) {
        return 67;
    }
    return 0;
}

inline std::int32_t assign_req_to_token_pool_operator(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (P < 0 || P > 65536) {
        return 65;
    }
    if (L < 0 || L > 2097152) {
        return 66;
    }
    if (C < 0 || C > 16777216) {
        return 67;
    }
    return 0;
}

inline std::int32_t update_node_data(std::int32_t B, std::int32_t N, std::int32_t row_capacity) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (N < 1 || N > 4096) {
        return 65;
    }
    if (row_capacity < 0 || row_capacity > 16384) {
        return 66;
    }
    return 0;
}

inline std::int32_t draft_replay_input_operator(
        std::int32_t B, std::int32_t C, std::int32_t H, std::int32_t E, std::int32_t tree_width,
        const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t seq_len_fill) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (C < 1 || C > 128) {
        return 65;
    }
    if (H < 0 || H > 65536) {
        return 66;
    }
    if (tree_width < 1 || tree_width > 10) {
        return 67;
    }
    if (!is_ascending(buckets, n_buckets, 1, 128)) {
        return 68;
    }
    if (seq_len_fill < 0 || seq_len_fill > 2097152) {
        return 69;
    }
    const std::int32_t largest_buckets = buckets[n_buckets - 1];
    if (B > largest_buckets) {
        return 70;
    }
    if (largest_buckets > C) {
        return 71;
    }
    static_cast<void>(E);
    return 0;
}

inline std::int32_t extend_replay_input_operator(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
        std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
        const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (C < 1 || C > 128) {
        return 66;
    }
    if (T < 1 || T > 16512) {
        return 67;
    }
    if (H < 0 || H > 65536) {
        return 68;
    }
    if (!is_ascending(batch_buckets, n_batch_buckets, 1, 128)) {
        return 69;
    }
    if (!is_ascending(row_buckets, n_row_buckets, 1, 16512)) {
        return 70;
    }
    if (seq_len_fill < 0 || seq_len_fill > 2097152) {
        return 71;
    }
    const std::int32_t largest_batch_buckets = batch_buckets[n_batch_buckets - 1];
    const std::int32_t chosen_batch_buckets = smallest_bucket(batch_buckets, n_batch_buckets, B);
    const std::int32_t largest_row_buckets = row_buckets[n_row_buckets - 1];
    if (lower(R, 1) > B) {
        return 72;
    }
    if (B > largest_batch_buckets) {
        return 73;
    }
    if (largest_batch_buckets > C) {
        return 74;
    }
    if (R + chosen_batch_buckets - B > largest_row_buckets) {
        return 75;
    }
    if (largest_row_buckets > T) {
        return 76;
    }
    static_cast<void>(E);
    return 0;
}

inline std::int32_t build_active_slots(std::int32_t S, std::int32_t T) {
    if (S < 0 || S > 1024) {
        return 64;
    }
    if (T < 1 || T > 128) {
        return 65;
    }
    return 0;
}

inline std::int32_t fused_growth(
        std::int32_t B, std::int32_t D, std::int32_t W, std::int32_t P, std::int32_t L,
        std::int32_t K, std::int32_t verify_num, std::int32_t row_capacity,
        std::int32_t kv_capacity, std::int32_t mask_capacity) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (D < 1 || D > 32) {
        return 65;
    }
    if (W < 1 || W > 10) {
        return 66;
    }
    if (P < 0 || P > 65536) {
        return 67;
    }
    if (L < 0 || L > 2097152) {
        return 68;
    }
    if (K < 1 || K > 10) {
        return 69;
    }
    if (verify_num < 1 || verify_num > 128) {
        return 70;
    }
    if (row_capacity < 0 || row_capacity > 16384) {
        return 71;
    }
    if (kv_capacity < 0 || kv_capacity > 2147483647) {
        return 72;
    }
    if (mask_capacity < 0 || mask_capacity > 2147483647) {
        return 73;
    }
    if (W*K > 64) {
        return 74;
    }
    if (1 + D*W*K > 1024) {
        return 75;
    }
    return 0;
}

inline std::int32_t fused_verdict(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t S, std::int32_t P,
        std::int32_t L, std::int32_t D) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 0 || R > 16384) {
        return 65;
    }
    if (V < 1 || V > 262144) {
        return 66;
    }
    if (S < 0 || S > 64) {
        return 67;
    }
    if (P < 0 || P > 65536) {
        return 68;
    }
    if (L < 0 || L > 2097152) {
        return 69;
    }
    if (D < 0 || D > 127) {
        return 70;
    }
    return 0;
}

inline std::int32_t draft_embed_rows(std::int32_t R, std::int32_t H, std::int32_t VT) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (H < 32 || H > 8192) {
        return 65;
    }
    if (VT < 1 || VT > 262144) {
        return 66;
    }
    return 0;
}

inline std::int32_t draft_linear_half(std::int32_t R, std::int32_t I, std::int32_t O) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (I < 32 || I > 20480) {
        return 65;
    }
    if (O < 1 || O > 262144) {
        return 66;
    }
    return 0;
}

inline std::int32_t draft_linear_q4(
        std::int32_t R, std::int32_t I, std::int32_t NW, std::int32_t NS, std::int32_t O) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (I < 32 || I > 20480) {
        return 65;
    }
    if (NW < 1 || NW > 2147483647) {
        return 66;
    }
    if (NS < 1 || NS > 2147483647) {
        return 67;
    }
    if (O < 1 || O > 262144) {
        return 68;
    }
    return 0;
}

inline std::int32_t draft_logits(std::int32_t R, std::int32_t H, std::int32_t V) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (H < 32 || H > 8192) {
        return 65;
    }
    if (V < 1 || V > 262144) {
        return 66;
    }
    return 0;
}

inline std::int32_t draft_join_norms(std::int32_t R, std::int32_t H) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (H < 32 || H > 8192) {
        return 65;
    }
    return 0;
}

inline std::int32_t draft_add_norm(std::int32_t R, std::int32_t H) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (H < 32 || H > 8192) {
        return 65;
    }
    return 0;
}

inline std::int32_t draft_gate(std::int32_t R, std::int32_t GU) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (GU < 1 || GU > 2147483647) {
        return 65;
    }
    return 0;
}

inline std::int32_t draft_rotate_store(
        std::int32_t R, std::int32_t C, std::int32_t S, std::int32_t NP, std::int32_t HD,
        std::int32_t NQ) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (C < 32 || C > 8192) {
        return 65;
    }
    if (S < 1 || S > 16777216) {
        return 66;
    }
    if (NP < 1 || NP > 2097152) {
        return 67;
    }
    if (HD < 16 || HD > 64) {
        return 68;
    }
    if (NQ < 1 || NQ > 2147483647) {
        return 69;
    }
    return 0;
}

inline std::int32_t draft_attend(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t S, std::int32_t F,
        std::int32_t P, std::int32_t L, std::int32_t Q, std::int32_t head_dim,
        std::int32_t window, std::int32_t n_fed) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 1 || R > 256) {
        return 65;
    }
    if (C < 32 || C > 8192) {
        return 66;
    }
    if (S < 1 || S > 16777216) {
        return 67;
    }
    if (F < 1 || F > 128) {
        return 68;
    }
    if (P < 0 || P > 65536) {
        return 69;
    }
    if (L < 0 || L > 2097152) {
        return 70;
    }
    if (Q < 1 || Q > 2147483647) {
        return 71;
    }
    if (head_dim < 32 || head_dim > 128) {
        return 72;
    }
    if (window < 0 || window > 2097152) {
        return 73;
    }
    if (n_fed < 0 || n_fed > 128) {
        return 74;
    }
    return 0;
}

inline std::int32_t draft_softmax(std::int32_t R, std::int32_t V) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (V < 1 || V > 262144) {
        return 65;
    }
    return 0;
}

inline std::int32_t draft_top_k(std::int32_t R, std::int32_t V, std::int32_t K) {
    if (R < 1 || R > 256) {
        return 64;
    }
    if (V < 1 || V > 262144) {
        return 65;
    }
    if (K < 1 || K > 10) {
        return 66;
    }
    return 0;
}

inline std::int32_t fused_draft(
        std::int32_t B, std::int32_t R, std::int32_t TH, std::int32_t H, std::int32_t C,
        std::int32_t VT, std::int32_t S, std::int32_t NP, std::int32_t HD, std::int32_t D,
        std::int32_t P, std::int32_t L, std::int32_t NN, std::int32_t N0, std::int32_t N1,
        std::int32_t N2, std::int32_t N3, std::int32_t N4, std::int32_t N5, std::int32_t N6,
        std::int32_t N7, std::int32_t N8, std::int32_t N9, std::int32_t N10, std::int32_t N11,
        std::int32_t N12, std::int32_t N13, std::int32_t N14, std::int32_t N15, std::int32_t K,
        std::int32_t verify_num, std::int32_t row_capacity, std::int32_t kv_capacity,
        std::int32_t mask_capacity, std::int32_t Q, std::int32_t M, std::int32_t V,
        std::int32_t window, std::int32_t head_kind, std::int32_t RK, std::int32_t n_candidates) {
    if (B < 0 || B > 128) {
        return 64;
    }
    if (R < 1 || R > 256) {
        return 65;
    }
    if (TH < 1 || TH > 2147483647) {
        return 66;
    }
    if (H < 32 || H > 8192) {
        return 67;
    }
    if (C < 32 || C > 8192) {
        return 68;
    }
    if (VT < 1 || VT > 262144) {
        return 69;
    }
    if (S < 1 || S > 16777216) {
        return 70;
    }
    if (NP < 1 || NP > 2097152) {
        return 71;
    }
    if (HD < 16 || HD > 64) {
        return 72;
    }
    if (D < 1 || D > 32) {
        return 73;
    }
    if (P < 0 || P > 65536) {
        return 74;
    }
    if (L < 0 || L > 2097152) {
        return 75;
    }
    if (NN < 1 || NN > 2147483647) {
        return 76;
    }
    if (N0 < 1 || N0 > 2147483647) {
        return 77;
    }
    if (N1 < 1 || N1 > 2147483647) {
        return 78;
    }
    if (N2 < 1 || N2 > 2147483647) {
        return 79;
    }
    if (N3 < 1 || N3 > 2147483647) {
        return 80;
    }
    if (N4 < 1 || N4 > 2147483647) {
        return 81;
    }
    if (N5 < 1 || N5 > 2147483647) {
        return 82;
    }
    if (N6 < 1 || N6 > 2147483647) {
        return 83;
    }
    if (N7 < 1 || N7 > 2147483647) {
        return 84;
    }
    if (N8 < 1 || N8 > 2147483647) {
        return 85;
    }
    if (N9 < 1 || N9 > 2147483647) {
        return 86;
    }
    if (N10 < 1 || N10 > 2147483647) {
        return 87;
    }
    if (N11 < 1 || N11 > 2147483647) {
        return 88;
    }
    if (N12 < 1 || N12 > 2147483647) {
        return 89;
    }
    if (N13 < 1 || N13 > 2147483647) {
        return 90;
    }
    if (N14 < 1 || N14 > 2147483647) {
        return 91;
    }
    if (N15 < 1 || N15 > 2147483647) {
        return 92;
    }
    if (K < 1 || K > 10) {
        return 93;
    }
    if (verify_num < 1 || verify_num > 128) {
        return 94;
    }
    if (row_capacity < 0 || row_capacity > 16384) {
        return 95;
    }
    if (kv_capacity < 0 || kv_capacity > 2147483647) {
        return 96;
    }
    if (mask_capacity < 0 || mask_capacity > 2147483647) {
        return 97;
    }
    if (Q < 32 || Q > 8192) {
        return 98;
    }
    if (M < 128 || M > 20480) {
        return 99;
    }
    if (V < 1 || V > 262144) {
        return 100;
    }
    if (window < 0 || window > 2097152) {
        return 101;
    }
    if (head_kind < 0 || head_kind > 2) {
        return 102;
    }
    if (RK < 0 || RK > 8192) {
        return 103;
    }
    if (n_candidates < 1 || n_candidates > 256) {
        return 104;
    }
    return 0;
}

inline std::int32_t fused_load_attention(
        std::int32_t NW, std::int32_t NS, std::int32_t NO, std::int32_t NP) {
    if (NW < 1 || NW > 2147483647) {
        return 64;
    }
    if (NS < 1 || NS > 2147483647) {
        return 65;
    }
    if (NO < 1 || NO > 2147483647) {
        return 66;
    }
    if (NP < 1 || NP > 2147483647) {
        return 67;
    }
    return 0;
}

}  // namespace bounds
}  // namespace aerie
