// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K10a assign_draft_cache_locs_operator:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t assign_draft_cache_locs_operator(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
        std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail);
extern "C" std::int32_t assign_draft_cache_locs_operator_check(
        std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
        std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("req_pool_indices", 0, 0, 1, 0);
    const std::int32_t P = call.size("req_to_token", 0, 0, 1, 0);
    const std::int32_t L = call.size("req_to_token", 1, 0, 1, 0);
    const std::int32_t T = call.size("out_cache_loc", 1, 0, 1, 0);
    call.expect("req_to_token", {P, L});
    call.expect("req_pool_indices", {B});
    call.expect("start", {B});
    call.expect("end", {B});
    call.expect("out_cache_loc", {B, T});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return assign_draft_cache_locs_operator(
        B, P, L, T, call.inout<std::int32_t>("req_to_token"),
        call.in<std::int64_t>("req_pool_indices"), call.in<std::int64_t>("start"),
        call.in<std::int64_t>("end"), call.in<std::int32_t>("out_cache_loc"),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

std::int32_t check(Call& call) {
    const std::int32_t B = call.size("req_pool_indices", 0, 0, 1, 0);
    const std::int32_t P = call.size("req_to_token", 0, 0, 1, 0);
    const std::int32_t L = call.size("req_to_token", 1, 0, 1, 0);
    const std::int32_t T = call.size("out_cache_loc", 1, 0, 1, 0);
    call.expect("req_to_token", {P, L});
    call.expect("req_pool_indices", {B});
    call.expect("start", {B});
    call.expect("end", {B});
    call.expect("out_cache_loc", {B, T});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return assign_draft_cache_locs_operator_check(
        B, P, L, T, call.in<std::int32_t>("req_to_token"),
        call.in<std::int64_t>("req_pool_indices"), call.in<std::int64_t>("start"),
        call.in<std::int64_t>("end"), call.in<std::int32_t>("out_cache_loc"),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"assign_draft_cache_locs_operator",
                                         1, 68, run, check};
    return aerie::bench::run_all(kernel, argc, argv);
}
