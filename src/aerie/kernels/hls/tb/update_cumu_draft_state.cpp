// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K2 update_cumu_draft_state:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

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
        std::int64_t* detail);
extern "C" std::int32_t update_cumu_draft_state_check(
        std::int32_t B, std::int32_t W, std::int32_t K, std::int32_t N, std::int32_t M,
        std::int32_t F, std::int32_t cumu_count, std::int32_t verify_num, std::int32_t fed_count,
        std::int32_t compat, const std::int64_t* cumu_tokens, const float* cumu_scores,
        const std::int64_t* cumu_deltas, const std::int64_t* prev_indexs,
        const std::int64_t* next_indexs, const std::int64_t* side_indexs,
        const float* sort_scores, const float* curr_layer_scores, const std::int64_t* topk_tokens,
        const float* sort_layer_scores, const std::int64_t* sort_layer_indices,
        const std::int64_t* frontier_indexs, const std::uint8_t* input_tree_mask,
        std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("cumu_tokens", 0, 0, 1, 0);
    const std::int32_t W = call.size("frontier_indexs", 1, 0, 1, 1);
    const std::int32_t K = call.size("curr_layer_scores", 1, 0, W, 1);
    const std::int32_t N = call.size("cumu_tokens", 1, 0, 1, 1);
    const std::int32_t M = call.size("sort_scores", 1, 0, 1, 1);
    const std::int32_t F = call.size("input_tree_mask", 2, 0, 1, 1);
    const std::int32_t cumu_count = call.scalar("cumu_count");
    const std::int32_t verify_num = call.scalar("verify_num");
    const std::int32_t fed_count = call.scalar("fed_count");
    const std::int32_t compat = call.scalar("compat");
    call.expect("cumu_tokens", {B, N});
    call.expect("cumu_scores", {B, N});
    call.expect("cumu_deltas", {B, N});
    call.expect("prev_indexs", {B, N});
    call.expect("next_indexs", {B, N});
    call.expect("side_indexs", {B, N});
    call.expect("sort_scores", {B, M});
    call.expect("curr_layer_scores", {B, W * K});
    call.expect("topk_tokens", {B, W * K});
    call.expect("sort_layer_scores", {B, W * K});
    call.expect("sort_layer_indices", {B, W * K});
    call.expect("frontier_indexs", {B, W});
    call.expect("input_tree_mask", {B, W, F});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return update_cumu_draft_state(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat,
        call.inout<std::int64_t>("cumu_tokens"), call.inout<float>("cumu_scores"),
        call.inout<std::int64_t>("cumu_deltas"), call.inout<std::int64_t>("prev_indexs"),
        call.inout<std::int64_t>("next_indexs"), call.inout<std::int64_t>("side_indexs"),
        call.inout<float>("sort_scores"), call.in<float>("curr_layer_scores"),
        call.in<std::int64_t>("topk_tokens"), call.in<float>("sort_layer_scores"),
        call.in<std::int64_t>("sort_layer_indices"), call.in<std::int64_t>("frontier_indexs"),
        call.in<std::uint8_t>("input_tree_mask"),
        call.out<float>("output_scores", 1LL * (B) * (K), {0, 0}),
        call.out<std::int64_t>("output_tokens", 1LL * (B) * (K), {0, 0}),
        call.out<float>("work_scores", 1LL * (B) * (std::min(verify_num, cumu_count) + K), {0, 0}),
        call.out<std::uint8_t>("output_tree_mask", 1LL * (B) * (K) * (F), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

std::int32_t check(Call& call) {
    const std::int32_t B = call.size("cumu_tokens", 0, 0, 1, 0);
    const std::int32_t W = call.size("frontier_indexs", 1, 0, 1, 1);
    const std::int32_t K = call.size("curr_layer_scores", 1, 0, W, 1);
    const std::int32_t N = call.size("cumu_tokens", 1, 0, 1, 1);
    const std::int32_t M = call.size("sort_scores", 1, 0, 1, 1);
    const std::int32_t F = call.size("input_tree_mask", 2, 0, 1, 1);
    const std::int32_t cumu_count = call.scalar("cumu_count");
    const std::int32_t verify_num = call.scalar("verify_num");
    const std::int32_t fed_count = call.scalar("fed_count");
    const std::int32_t compat = call.scalar("compat");
    call.expect("cumu_tokens", {B, N});
    call.expect("cumu_scores", {B, N});
    call.expect("cumu_deltas", {B, N});
    call.expect("prev_indexs", {B, N});
    call.expect("next_indexs", {B, N});
    call.expect("side_indexs", {B, N});
    call.expect("sort_scores", {B, M});
    call.expect("curr_layer_scores", {B, W * K});
    call.expect("topk_tokens", {B, W * K});
    call.expect("sort_layer_scores", {B, W * K});
    call.expect("sort_layer_indices", {B, W * K});
    call.expect("frontier_indexs", {B, W});
    call.expect("input_tree_mask", {B, W, F});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return update_cumu_draft_state_check(
        B, W, K, N, M, F, cumu_count, verify_num, fed_count, compat,
        call.in<std::int64_t>("cumu_tokens"), call.in<float>("cumu_scores"),
        call.in<std::int64_t>("cumu_deltas"), call.in<std::int64_t>("prev_indexs"),
        call.in<std::int64_t>("next_indexs"), call.in<std::int64_t>("side_indexs"),
        call.in<float>("sort_scores"), call.in<float>("curr_layer_scores"),
        call.in<std::int64_t>("topk_tokens"), call.in<float>("sort_layer_scores"),
        call.in<std::int64_t>("sort_layer_indices"), call.in<std::int64_t>("frontier_indexs"),
        call.in<std::uint8_t>("input_tree_mask"),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"update_cumu_draft_state",
                                         1, 78, run, check};
    return aerie::bench::run_all(kernel, argc, argv);
}
