// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K6 draft_tree_reject_sample:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t draft_tree_reject_sample(
        std::int32_t B, std::int32_t R, std::int32_t V, std::int32_t tree_depth,
        std::int32_t has_target_probas, std::int32_t has_coins, std::int32_t has_target_tokens,
        const std::int32_t* qo_indptr, const std::int64_t* draft_tokens,
        const std::int64_t* first_child_row, const std::int64_t* next_sibling_row,
        const float* target_probas, const float* coins, const std::int64_t* target_tokens,
        std::int64_t* accept_index, std::int64_t* accept_count, std::int64_t* bonus_token,
        std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("qo_indptr", 0, 1, 1, 0);
    const std::int32_t R = call.size("draft_tokens", 0, 0, 1, 0);
    const std::int32_t V = call.size("target_probas", 1, 0, 1, 1);
    const std::int32_t tree_depth = call.scalar("tree_depth");
    call.expect("qo_indptr", {B + 1});
    call.expect("draft_tokens", {R});
    call.expect("first_child_row", {R});
    call.expect("next_sibling_row", {R});
    call.expect("target_probas", {R, V});
    call.expect("coins", {B, tree_depth + 2});
    call.expect("target_tokens", {R});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return draft_tree_reject_sample(
        B, R, V, tree_depth, call.has("target_probas"), call.has("coins"),
        call.has("target_tokens"), call.in<std::int32_t>("qo_indptr"),
        call.in<std::int64_t>("draft_tokens"), call.in<std::int64_t>("first_child_row"),
        call.in<std::int64_t>("next_sibling_row"), call.in<float>("target_probas"),
        call.in<float>("coins"), call.in<std::int64_t>("target_tokens"),
        call.out<std::int64_t>("accept_index", 1LL * (B) * (tree_depth + 1), {0, 0}),
        call.out<std::int64_t>("accept_count", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("bonus_token", 1LL * (B), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"draft_tree_reject_sample",
                                         1, 68, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
