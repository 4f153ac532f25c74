// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K4 fused_tree_mask_operator:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t fused_tree_mask_operator(
        std::int32_t B, std::int32_t R, std::int32_t P, std::int32_t L, std::int32_t kv_capacity,
        std::int32_t mask_capacity, const std::int32_t* req_to_token,
        const std::int64_t* req_pool_indices, const std::int64_t* seq_len,
        const std::int32_t* qo_indptr, const std::uint32_t* ancestor_bits,
        std::int32_t* kv_indptr, std::int32_t* kv_indices, std::int32_t* mask_indptr,
        std::uint8_t* packed_mask, std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("req_pool_indices", 0, 0, 1, 0);
    const std::int32_t R = call.size("ancestor_bits", 0, 0, 1, 0);
    const std::int32_t P = call.size("req_to_token", 0, 0, 1, 0);
    const std::int32_t L = call.size("req_to_token", 1, 0, 1, 0);
    const std::int32_t kv_capacity = call.scalar("kv_capacity");
    const std::int32_t mask_capacity = call.scalar("mask_capacity");
    call.expect("req_to_token", {P, L});
    call.expect("req_pool_indices", {B});
    call.expect("seq_len", {B});
    call.expect("qo_indptr", {B + 1});
    call.expect("ancestor_bits", {R, 1 + 3});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return fused_tree_mask_operator(
        B, R, P, L, kv_capacity, mask_capacity, call.in<std::int32_t>("req_to_token"),
        call.in<std::int64_t>("req_pool_indices"), call.in<std::int64_t>("seq_len"),
        call.in<std::int32_t>("qo_indptr"), call.in<std::uint32_t>("ancestor_bits"),
        call.out<std::int32_t>("kv_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int32_t>("kv_indices", 1LL * (kv_capacity), {0, 0}),
        call.out<std::int32_t>("mask_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::uint8_t>("packed_mask", 1LL * (mask_capacity), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"fused_tree_mask_operator",
                                         1, 70, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
