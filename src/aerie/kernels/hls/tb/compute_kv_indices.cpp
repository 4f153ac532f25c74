// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K8 compute_kv_indices:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t compute_kv_indices(
        std::int32_t B, std::int32_t W, std::int32_t F, std::int32_t P, std::int32_t L,
        std::int32_t kv_capacity, std::int32_t has_tree_mask, std::int32_t has_fed_slots,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* seq_len, const std::uint8_t* tree_mask, const std::int32_t* fed_slots,
        std::int32_t* kv_indptr, std::int32_t* kv_indices, std::int32_t* status,
        std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("req_pool_indices", 0, 0, 1, 0);
    const std::int32_t W = call.size("tree_mask", 1, 0, 1, 1);
    const std::int32_t F = call.size("tree_mask", 2, 0, 1, call.size("fed_slots", 1, 0, 1, 1));
    const std::int32_t P = call.size("req_to_token", 0, 0, 1, 0);
    const std::int32_t L = call.size("req_to_token", 1, 0, 1, 0);
    const std::int32_t kv_capacity = call.scalar("kv_capacity");
    call.expect("req_to_token", {P, L});
    call.expect("req_pool_indices", {B});
    call.expect("seq_len", {B});
    call.expect("tree_mask", {B, W, F});
    call.expect("fed_slots", {B, F});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return compute_kv_indices(
        B, W, F, P, L, kv_capacity, call.has("tree_mask"), call.has("fed_slots"),
        call.in<std::int32_t>("req_to_token"), call.in<std::int64_t>("req_pool_indices"),
        call.in<std::int64_t>("seq_len"), call.in<std::uint8_t>("tree_mask"),
        call.in<std::int32_t>("fed_slots"),
        call.out<std::int32_t>("kv_indptr", 1LL * (B*W + 1), {0, 0}),
        call.out<std::int32_t>("kv_indices", 1LL * (kv_capacity), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"compute_kv_indices",
                                         1, 70, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
