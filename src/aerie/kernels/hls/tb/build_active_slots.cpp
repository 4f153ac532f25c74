// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of K13 build_active_slots:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

extern "C" std::int32_t build_active_slots(
        std::int32_t S, std::int32_t T, std::int32_t has_accept_count,
        std::int32_t has_draft_tokens, std::int32_t has_ancestor_bits,
        const std::uint8_t* finished, const std::int64_t* seq_len,
        const std::int64_t* length_limit, const std::uint8_t* eos_terminated,
        std::int64_t* accept_count, std::int64_t* draft_tokens, std::uint32_t* ancestor_bits,
        std::int32_t* active_slots, std::int32_t* active_inverse, std::int32_t* active_count);

namespace {

using aerie::bench::Call;

std::int32_t run(Call& call) {
    const std::int32_t S = call.size("finished", 0, 0, 1, 0);
    const std::int32_t T =
        call.size("draft_tokens", 1, 0, 1, call.size("ancestor_bits", 1, 0, 1, 1));
    call.expect("finished", {S});
    call.expect("seq_len", {S});
    call.expect("length_limit", {S});
    call.expect("eos_terminated", {S});
    call.expect("accept_count", {S});
    call.expect("draft_tokens", {S, T});
    call.expect("ancestor_bits", {S, T, 1 + 3});
    if (!call.is_consistent()) {
        return aerie::bench::HOST;
    }
    return build_active_slots(
        S, T, call.has("accept_count"), call.has("draft_tokens"), call.has("ancestor_bits"),
        call.in<std::uint8_t>("finished"), call.in<std::int64_t>("seq_len"),
        call.in<std::int64_t>("length_limit"), call.in<std::uint8_t>("eos_terminated"),
        call.inout<std::int64_t>("accept_count"), call.inout<std::int64_t>("draft_tokens"),
        call.inout<std::uint32_t>("ancestor_bits"),
        call.out<std::int32_t>("active_slots", 1LL * (S), {0, 0}),
        call.out<std::int32_t>("active_inverse", 1LL * (S), {0, 0}),
        call.out<std::int32_t>("active_count", 1LL * (1), {0, 0}));
}

}  // namespace

int main(int argc, char** argv) {
    const aerie::bench::Kernel kernel = {"build_active_slots",
                                         1, 66, run, nullptr};
    return aerie::bench::run_all(kernel, argc, argv);
}
