// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K10c update_node_data:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t update_node_data(
        std::int32_t B, std::int32_t N, std::int32_t row_capacity,
        const std::int64_t* cumu_tokens, const std::int64_t* cumu_deltas,
        const std::int64_t* prev_indexs, const std::int64_t* node_count,
        const std::uint8_t* selected, const std::int64_t* seq_len, std::int32_t* qo_indptr,
        std::int64_t* draft_tokens, std::int64_t* positions, std::int64_t* parent_row,
        std::int64_t* first_child_row, std::int64_t* next_sibling_row,
        std::uint32_t* ancestor_bits, std::int32_t* status, std::int64_t* detail);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t B = call.size("cumu_tokens", 0, 0, 1, 0);
    const std::int32_t N = call.size("cumu_tokens", 1, 0, 1, 1);
    const std::int32_t row_capacity = call.scalar("row_capacity");
    call.expect("cumu_tokens", {B, N});
    call.expect("cumu_deltas", {B, N});
    call.expect("prev_indexs", {B, N});
    call.expect("node_count", {B});
    call.expect("selected", {B, N});
    call.expect("seq_len", {B});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return update_node_data(
        B, N, row_capacity, call.in<std::int64_t>("cumu_tokens"),
        call.in<std::int64_t>("cumu_deltas"), call.in<std::int64_t>("prev_indexs"),
        call.in<std::int64_t>("node_count"), call.in<std::uint8_t>("selected"),
        call.in<std::int64_t>("seq_len"),
        call.out<std::int32_t>("qo_indptr", 1LL * (B+1), {0, 0}),
        call.out<std::int64_t>("draft_tokens", 1LL * (row_capacity), {0, 0}),
        call.out<std::int64_t>("positions", 1LL * (row_capacity), {0, 0}),
        call.out<std::int64_t>("parent_row", 1LL * (row_capacity), {0, 0}),
        call.out<std::int64_t>("first_child_row", 1LL * (row_capacity), {0, 0}),
        call.out<std::int64_t>("next_sibling_row", 1LL * (row_capacity), {0, 0}),
        call.out<std::uint32_t>("ancestor_bits", 1LL * (row_capacity) * (4), {0, 0}),
        call.out<std::int32_t>("status", 1LL * (B), {0, 0}),
        call.out<std::int64_t>("detail", B, aerie::bench::EXACT));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"update_node_data",
                                         1, 67, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
