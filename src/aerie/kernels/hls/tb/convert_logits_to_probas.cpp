// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K5 convert_logits_to_probas:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t convert_logits_to_probas(
        std::int32_t B, std::int32_t R, std::int32_t V, const float* logits,
        const float* temperature, const std::int32_t* qo_indptr, float* target_probas,
        std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("temperature", 0, 0, 1, 0);
    const std::int32_t R = call.size("logits", 0, 0, 1, 0);
    const std::int32_t V = call.size("logits", 1, 0, 1, 1);
    call.expect("logits", {R, V});
    call.expect("temperature", {B});
    call.expect("qo_indptr", {B + 1});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return convert_logits_to_probas(
        B, R, V, call.in<float>("logits"), call.in<float>("temperature"),
        call.in<std::int32_t>("qo_indptr"),
        call.out<float>("target_probas", 1LL * (R) * (V), {4, 8}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"convert_logits_to_probas",
                                         1, 67, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
