// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K7 update_verify_result:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t update_verify_result(
        std::int32_t B, std::int32_t D, std::int32_t R, std::int32_t S, std::int32_t P,
        std::int32_t L, const std::int64_t* accept_index, const std::int64_t* accept_count,
        const std::int64_t* bonus_token, const std::int64_t* draft_tokens,
        const std::int32_t* qo_indptr, const std::int64_t* seq_len,
        const std::int64_t* length_limit, const std::int64_t* stop_tokens,
        const std::int32_t* req_to_token, const std::int64_t* req_pool_indices,
        std::int64_t* out_tokens, std::int32_t* out_indptr, std::int64_t* out_rows,
        std::int32_t* rows_indptr, std::int64_t* new_seq_len, std::uint8_t* finished,
        std::int64_t* unfinished, std::int32_t* unfinished_count, std::int32_t* kv_src,
        std::int32_t* kv_dst, std::int32_t* move_count, std::int32_t* free,
        std::int32_t* free_count, std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("accept_index", 0, 0, 1, 0);
    const std::int32_t D = call.size("accept_index", 1, 1, 1, 0);
    const std::int32_t R = call.size("draft_tokens", 0, 0, 1, 0);
    const std::int32_t S = call.size("stop_tokens", 1, 0, 1, 0);
    const std::int32_t P = call.size("req_to_token", 0, 0, 1, 0);
    const std::int32_t L = call.size("req_to_token", 1, 0, 1, 0);
    call.expect("accept_index", {B, D + 1});
    call.expect("accept_count", {B});
    call.expect("bonus_token", {B});
    call.expect("draft_tokens", {R});
    call.expect("qo_indptr", {B + 1});
    call.expect("seq_len", {B});
    call.expect("length_limit", {B});
    call.expect("stop_tokens", {B, S});
    call.expect("req_to_token", {P, L});
    call.expect("req_pool_indices", {B});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return update_verify_result(
        B, D, R, S, P, L, call.in<std::int64_t>("accept_index"),
        call.in<std::int64_t>("accept_count"), call.in<std::int64_t>("bonus_token"),
        call.in<std::int64_t>("draft_tokens"), call.in<std::int32_t>("qo_indptr"),
        call.in<std::int64_t>("seq_len"), call.in<std::int64_t>("length_limit"),
        call.in<std::int64_t>("stop_tokens"), call.in<std::int32_t>("req_to_token"),
        call.in<std::int64_t>("req_pool_indices"),
        call.out<std::int64_t>("out_tokens", 1LL * (B*(D+1)), {0, 0}),
        call.out<std::int32_t>("out_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int64_t>("out_rows", 1LL * (B*(D+1)), {0, 0}),
        call.out<std::int32_t>("rows_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int64_t>("new_seq_len", 1LL * (B), {0, 0}),
        call.out<std::uint8_t>("finished", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("unfinished", 1LL * (B), {0, 0}),
        call.out<std::int32_t>("unfinished_count", 1LL * (1), {0, 0}),
        call.out<std::int32_t>("kv_src", 1LL * (B*(D+1)), {0, 0}),
        call.out<std::int32_t>("kv_dst", 1LL * (B*(D+1)), {0, 0}),
        call.out<std::int32_t>("move_count", 1LL * (1), {0, 0}),
        call.out<std::int32_t>("free", 1LL * (R), {0, 0}),
        call.out<std::int32_t>("free_count", 1LL * (1), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"update_verify_result",
                                         1, 70, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
