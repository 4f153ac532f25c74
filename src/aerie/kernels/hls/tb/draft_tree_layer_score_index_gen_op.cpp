// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K1 draft_tree_layer_score_index_gen_op:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t draft_tree_layer_score_index_gen_op(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t H, std::int32_t VD,
        std::int32_t E, std::int32_t cumu_count, std::int32_t has_hot_token_id,
        const float* topk_probas, const std::int64_t* topk_tokens, const float* last_layer_scores,
        const std::uint16_t* input_hidden, const std::int64_t* hot_token_id,
        float* curr_layer_scores, float* sort_layer_scores, std::int64_t* sort_layer_indices,
        std::int64_t* cache_topk_indices, std::int64_t* parent_indices_in_layer,
        std::uint16_t* output_hidden, std::int64_t* mapped_tokens, std::int32_t* status,
        std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("topk_probas", 0, 0, 1, 0);
    const std::int32_t W = call.size("last_layer_scores", 1, 0, 1, 1);
    const std::int32_t K = call.size("topk_probas", 1, 0, W, 1);
    const std::int32_t H = call.size("input_hidden", 1, 0, 1, 0);
    const std::int32_t VD = call.size("hot_token_id", 0, 0, 1, 1);
    const std::int32_t E = call.item_bytes("input_hidden");
    const std::int32_t cumu_count = call.scalar("cumu_count");
    call.expect("topk_probas", {B, W * K});
    call.expect("topk_tokens", {B, W * K});
    call.expect("last_layer_scores", {B, W});
    call.expect("input_hidden", {B * W, H});
    call.expect("hot_token_id", {VD});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return draft_tree_layer_score_index_gen_op(
        B, W, K, H, VD, E, cumu_count, call.has("hot_token_id"), call.in<float>("topk_probas"),
        call.in<std::int64_t>("topk_tokens"), call.in<float>("last_layer_scores"),
        call.in<std::uint16_t>("input_hidden"), call.in<std::int64_t>("hot_token_id"),
        call.out<float>("curr_layer_scores", 1LL * (B) * (W*K), {0, 0}),
        call.out<float>("sort_layer_scores", 1LL * (B) * (W*K), {0, 0}),
        call.out<std::int64_t>("sort_layer_indices", 1LL * (B) * (W*K), {0, 0}),
        call.out<std::int64_t>("cache_topk_indices", 1LL * (B) * (K), {0, 0}),
        call.out<std::int64_t>("parent_indices_in_layer", 1LL * (B) * (K), {0, 0}),
        call.out_hidden("output_hidden", 1LL * (B) * (K) * (H), E),
        call.out<std::int64_t>("mapped_tokens", 1LL * (B) * (W*K), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"draft_tree_layer_score_index_gen_op",
                                         1, 71, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
