// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K9 calculate_verify_kv_qo_ms:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t calculate_verify_kv_qo_ms(
        std::int32_t B, const std::int64_t* verify_count, const std::int64_t* seq_len,
        std::int32_t* qo_indptr, std::int32_t* kv_indptr, std::int32_t* mask_indptr,
        std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("verify_count", 0, 0, 1, 0);
    call.expect("verify_count", {B});
    call.expect("seq_len", {B});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return calculate_verify_kv_qo_ms(
        B, call.in<std::int64_t>("verify_count"), call.in<std::int64_t>("seq_len"),
        call.out<std::int32_t>("qo_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int32_t>("kv_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int32_t>("mask_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"calculate_verify_kv_qo_ms",
                                         1, 65, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
