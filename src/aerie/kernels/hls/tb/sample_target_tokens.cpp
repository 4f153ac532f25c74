// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K6 sample_target_tokens:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

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
        std::int64_t* target_tokens, std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("temperature", 0, 0, 1, 0);
    const std::int32_t R = call.size("logits", 0, 0, 1, 0);
    const std::int32_t V = call.size("logits", 1, 0, 1, 1);
    const std::int32_t S = call.size("stop_tokens", 1, 0, 1, 0);
    call.expect("logits", {R, V});
    call.expect("positions", {R});
    call.expect("temperature", {B});
    call.expect("qo_indptr", {B + 1});
    call.expect("seed", {B});
    call.expect("sample_index", {B});
    call.expect("top_k", {B});
    call.expect("top_p", {B});
    call.expect("min_p", {B});
    call.expect("repetition_penalty", {B});
    call.expect("presence_penalty", {B});
    call.expect("frequency_penalty", {B});
    call.expect("prompt_counts", {B, V});
    call.expect("output_counts", {B, V});
    call.expect("logit_bias", {B, V});
    call.expect("draft_tokens", {R});
    call.expect("ancestor_bits", {R, 1 + 3});
    call.expect("stop_tokens", {B, S});
    call.expect("floor_position", {B});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return sample_target_tokens(
        B, R, V, S, call.has("seed"), call.has("sample_index"), call.has("top_k"),
        call.has("top_p"), call.has("min_p"), call.has("repetition_penalty"),
        call.has("presence_penalty"), call.has("frequency_penalty"), call.has("prompt_counts"),
        call.has("output_counts"), call.has("logit_bias"), call.has("draft_tokens"),
        call.has("ancestor_bits"), call.has("stop_tokens"), call.has("floor_position"),
        call.in<float>("logits"), call.in<std::int64_t>("positions"),
        call.in<float>("temperature"), call.in<std::int32_t>("qo_indptr"),
        call.in<std::int64_t>("seed"), call.in<std::int64_t>("sample_index"),
        call.in<std::int64_t>("top_k"), call.in<float>("top_p"), call.in<float>("min_p"),
        call.in<float>("repetition_penalty"), call.in<float>("presence_penalty"),
        call.in<float>("frequency_penalty"), call.in<std::int32_t>("prompt_counts"),
        call.in<std::int32_t>("output_counts"), call.in<float>("logit_bias"),
        call.in<std::int64_t>("draft_tokens"), call.in<std::uint32_t>("ancestor_bits"),
        call.in<std::int64_t>("stop_tokens"), call.in<std::int64_t>("floor_position"),
        call.out<std::int64_t>("target_tokens", 1LL * (R), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"sample_target_tokens",
                                         2, 68, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
