// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K12 extend_replay_input_operator:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t extend_replay_input_operator(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
        std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
        const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* extend_len, const std::int64_t* seq_len,
        const std::int64_t* req_pool_indices, std::int64_t* static_input_ids,
        std::int64_t* static_positions, std::int32_t* static_out_cache_loc,
        std::uint16_t* static_hidden, std::int64_t* static_extend_len,
        std::int64_t* static_seq_len, std::int64_t* static_req_pool_indices,
        std::int32_t* static_qo_indptr, std::int32_t* bucket, std::int32_t* row_bucket,
        std::int32_t* status, std::int64_t* detail);
extern "C" std::int32_t extend_replay_input_operator_check(
        std::int32_t B, std::int32_t R, std::int32_t C, std::int32_t T, std::int32_t H,
        std::int32_t E, const std::int32_t* batch_buckets, std::int32_t n_batch_buckets,
        const std::int32_t* row_buckets, std::int32_t n_row_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* extend_len, const std::int64_t* seq_len,
        const std::int64_t* req_pool_indices, const std::int64_t* static_input_ids,
        const std::int64_t* static_positions, const std::int32_t* static_out_cache_loc,
        const std::uint16_t* static_hidden, const std::int64_t* static_extend_len,
        const std::int64_t* static_seq_len, const std::int64_t* static_req_pool_indices,
        const std::int32_t* static_qo_indptr, std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("extend_len", 0, 0, 1, 0);
    const std::int32_t R = call.size("input_ids", 0, 0, 1, 0);
    const std::int32_t C = call.size("static_extend_len", 0, 0, 1, 1);
    const std::int32_t T = call.size("static_input_ids", 0, 0, 1, 1);
    const std::int32_t H = call.size("hidden", 1, 0, 1, 0);
    const std::int32_t E = call.item_bytes("hidden");
    const std::int32_t seq_len_fill = call.scalar("seq_len_fill");
    call.expect("input_ids", {R});
    call.expect("positions", {R});
    call.expect("out_cache_loc", {R});
    call.expect("hidden", {R, H});
    call.expect("extend_len", {B});
    call.expect("seq_len", {B});
    call.expect("req_pool_indices", {B});
    call.expect("static_input_ids", {T});
    call.expect("static_positions", {T});
    call.expect("static_out_cache_loc", {T});
    call.expect("static_hidden", {T, H});
    call.expect("static_extend_len", {C});
    call.expect("static_seq_len", {C});
    call.expect("static_req_pool_indices", {C});
    call.expect("static_qo_indptr", {C + 1});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return extend_replay_input_operator(
        B, R, C, T, H, E, call.list("batch_buckets"), call.length("batch_buckets"),
        call.list("row_buckets"), call.length("row_buckets"), seq_len_fill,
        call.in<std::int64_t>("input_ids"), call.in<std::int64_t>("positions"),
        call.in<std::int32_t>("out_cache_loc"), call.in<std::uint16_t>("hidden"),
        call.in<std::int64_t>("extend_len"), call.in<std::int64_t>("seq_len"),
        call.in<std::int64_t>("req_pool_indices"), call.inout<std::int64_t>("static_input_ids"),
        call.inout<std::int64_t>("static_positions"),
        call.inout<std::int32_t>("static_out_cache_loc"),
        call.inout<std::uint16_t>("static_hidden"), call.inout<std::int64_t>("static_extend_len"),
        call.inout<std::int64_t>("static_seq_len"),
        call.inout<std::int64_t>("static_req_pool_indices"),
        call.inout<std::int32_t>("static_qo_indptr"),
        call.out<std::int32_t>("bucket", 1LL * 1, {0, 0}),
        call.out<std::int32_t>("row_bucket", 1LL * 1, {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

std::int32_t check(Call& call) {
    const std::int32_t B = call.size("extend_len", 0, 0, 1, 0);
    const std::int32_t R = call.size("input_ids", 0, 0, 1, 0);
    const std::int32_t C = call.size("static_extend_len", 0, 0, 1, 1);
    const std::int32_t T = call.size("static_input_ids", 0, 0, 1, 1);
    const std::int32_t H = call.size("hidden", 1, 0, 1, 0);
    const std::int32_t E = call.item_bytes("hidden");
    const std::int32_t seq_len_fill = call.scalar("seq_len_fill");
    call.expect("input_ids", {R});
    call.expect("positions", {R});
    call.expect("out_cache_loc", {R});
    call.expect("hidden", {R, H});
    call.expect("extend_len", {B});
    call.expect("seq_len", {B});
    call.expect("req_pool_indices", {B});
    call.expect("static_input_ids", {T});
    call.expect("static_positions", {T});
    call.expect("static_out_cache_loc", {T});
    call.expect("static_hidden", {T, H});
    call.expect("static_extend_len", {C});
    call.expect("static_seq_len", {C});
    call.expect("static_req_pool_indices", {C});
    call.expect("static_qo_indptr", {C + 1});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return extend_replay_input_operator_check(
        B, R, C, T, H, E, call.list("batch_buckets"), call.length("batch_buckets"),
        call.list("row_buckets"), call.length("row_buckets"), seq_len_fill,
        call.in<std::int64_t>("input_ids"), call.in<std::int64_t>("positions"),
        call.in<std::int32_t>("out_cache_loc"), call.in<std::uint16_t>("hidden"),
        call.in<std::int64_t>("extend_len"), call.in<std::int64_t>("seq_len"),
        call.in<std::int64_t>("req_pool_indices"), call.in<std::int64_t>("static_input_ids"),
        call.in<std::int64_t>("static_positions"), call.in<std::int32_t>("static_out_cache_loc"),
        call.in<std::uint16_t>("static_hidden"), call.in<std::int64_t>("static_extend_len"),
        call.in<std::int64_t>("static_seq_len"), call.in<std::int64_t>("static_req_pool_indices"),
        call.in<std::int32_t>("static_qo_indptr"),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"extend_replay_input_operator",
                                         1, 77, run, check};
    return aerie::bench::run_all(kernel, argc, argv);
}
