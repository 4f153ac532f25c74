// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K11 draft_replay_input_operator:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t draft_replay_input_operator(
        std::int32_t B, std::int32_t C, std::int32_t H, std::int32_t E, std::int32_t tree_width,
        const std::int32_t* buckets, std::int32_t n_buckets, std::int32_t seq_len_fill,
        const std::int64_t* input_ids, const std::int64_t* positions,
        const std::int32_t* out_cache_loc, const std::uint16_t* hidden,
        const std::int64_t* seq_len, const std::int64_t* req_pool_indices,
        std::int64_t* static_input_ids, std::int64_t* static_positions,
        std::int32_t* static_out_cache_loc, std::uint16_t* static_hidden,
        std::int64_t* static_seq_len, std::int64_t* static_req_pool_indices, std::int32_t* bucket);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("seq_len", 0, 0, 1, 0);
    const std::int32_t C = call.size("static_seq_len", 0, 0, 1, 1);
    const std::int32_t H = call.size("hidden", 1, 0, 1, 0);
    const std::int32_t E = call.item_bytes("hidden");
    const std::int32_t tree_width = call.scalar("tree_width");
    const std::int32_t seq_len_fill = call.scalar("seq_len_fill");
    call.expect("input_ids", {B * tree_width});
    call.expect("positions", {B * tree_width});
    call.expect("out_cache_loc", {B * tree_width});
    call.expect("hidden", {B * tree_width, H});
    call.expect("seq_len", {B});
    call.expect("req_pool_indices", {B});
    call.expect("static_input_ids", {C * tree_width});
    call.expect("static_positions", {C * tree_width});
    call.expect("static_out_cache_loc", {C * tree_width});
    call.expect("static_hidden", {C * tree_width, H});
    call.expect("static_seq_len", {C});
    call.expect("static_req_pool_indices", {C});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return draft_replay_input_operator(
        B, C, H, E, tree_width, call.list("buckets"), call.length("buckets"), seq_len_fill,
        call.in<std::int64_t>("input_ids"), call.in<std::int64_t>("positions"),
        call.in<std::int32_t>("out_cache_loc"), call.in<std::uint16_t>("hidden"),
        call.in<std::int64_t>("seq_len"), call.in<std::int64_t>("req_pool_indices"),
        call.inout<std::int64_t>("static_input_ids"),
        call.inout<std::int64_t>("static_positions"),
        call.inout<std::int32_t>("static_out_cache_loc"),
        call.inout<std::uint16_t>("static_hidden"), call.inout<std::int64_t>("static_seq_len"),
        call.inout<std::int64_t>("static_req_pool_indices"),
        call.out<std::int32_t>("bucket", 1LL * 1, {0, 0}));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"draft_replay_input_operator",
                                         1, 72, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
