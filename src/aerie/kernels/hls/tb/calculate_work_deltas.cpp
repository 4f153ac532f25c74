// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K3 calculate_work_deltas:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t calculate_work_deltas(
        std::int32_t B, std::int32_t C, std::int32_t node_top_k, std::int32_t verify_num,
        const float* work_scores, float* G);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("work_scores", 0, 0, 1, 0);
    const std::int32_t C = call.size("work_scores", 1, 0, 1, 1);
    const std::int32_t node_top_k = call.scalar("node_top_k");
    const std::int32_t verify_num = call.scalar("verify_num");
    call.expect("work_scores", {B, C});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return calculate_work_deltas(
        B, C, node_top_k, verify_num, call.in<float>("work_scores"),
        call.out<float>("G", 1LL * (node_top_k + 1), {1, 1}));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"calculate_work_deltas",
                                         1, 70, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
