"""Mixtures of packed experts: against their weights written out, routed, mixed, captured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load
from aerie.kernels.triton_gpu.experts_plan import FEWEST_OUTPUTS, TILES, tile_for
from aerie.models import routing
from aerie.models.feed_forward import ClampedGate, ExpertLinear, Experts
from aerie.models.layer_ops import TORCH_OPS, fused_ops
from aerie.models.linear import DenseLinear
from aerie.models.mxfp4 import PackedExpertLinear, dequantise
from aerie.models.routing import Routing
from tests.unit.kernels.triton_device import DEVICE

GATE = ClampedGate(1.702, 7.0)
HIDDEN, WIDTH, N_EXPERTS, N_ACTIVE = 64, 32, 7, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def packed(n_out: int, n_in: int, backend: str, gate: ClampedGate | None) -> PackedExpertLinear:
    generator = torch.Generator().manual_seed(n_out)
    shape = (N_EXPERTS, n_out, n_in // 32)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(118, 126, shape, dtype=torch.uint8, generator=generator)
    return PackedExpertLinear(
        kernel=load(backend, device=DEVICE)["multiply_experts"],
        blocks=blocks.to(DEVICE),
        scales=scales.to(DEVICE),
        bias=drawn(N_EXPERTS, n_out, seed=1),
        gate=torch.tensor([] if gate is None else [gate.alpha, gate.limit], device=DEVICE),
        largest_scale=125,
    )


def written_out(linear: PackedExpertLinear, gate: ClampedGate | None) -> ExpertLinear:
    """The same layer from a weight that was unpacked, as transformers would."""
    weight = dequantise(linear.blocks, linear.scales, torch.float32)
    return ExpertLinear(weight, linear.bias, gate)


def mixture(backend: str) -> tuple[Experts, Experts]:
    """One by packed products, and the same by dense ones."""
    gate_up, down = packed(2 * WIDTH, HIDDEN, backend, GATE), packed(HIDDEN, WIDTH, backend, None)
    router = DenseLinear(drawn(N_EXPERTS, HIDDEN, seed=2), drawn(N_EXPERTS, seed=3))
    ops = fused_ops() if backend == "triton" else TORCH_OPS
    fast = Experts(router, gate_up, down, N_ACTIVE, ops)
    dense = written_out(gate_up, GATE), written_out(down, None)
    return fast, Experts(router, *dense, N_ACTIVE)


@pytest.mark.parametrize("backend", ["pytorch", "triton"])
@pytest.mark.parametrize("n_rows", [0, 1, 5, 21])
def test_a_mixture_computes_what_its_weights_say(backend: str, n_rows: int) -> None:
    fast, dense = mixture(backend)
    x = drawn(n_rows, HIDDEN, seed=4)
    torch.testing.assert_close(fast(x), dense(x), rtol=1e-4, atol=2e-4)


def test_a_mixture_is_each_row_through_its_own_experts() -> None:
    """Written a second time, without sorting: the definition of the definition."""
    _, dense = mixture("pytorch")
    x = drawn(5, HIDDEN, seed=4)
    logits = dense.router(x)
    want = torch.zeros_like(x)
    for row in range(5):
        best, chosen = torch.topk(logits[row], N_ACTIVE)
        for share, expert in zip(torch.softmax(best, 0), chosen.tolist(), strict=True):
            hidden = x[row : row + 1]
            for linear in (dense.gate_up, dense.down):
                assert isinstance(linear, ExpertLinear)
                hidden = functional.linear(hidden, linear.weight[expert], linear.bias[expert])
                hidden = hidden if linear.activation is None else linear.activation(hidden)
            want[row] += share * hidden[0]
    torch.testing.assert_close(dense(x), want, rtol=1e-4, atol=2e-4)


def test_a_row_has_the_bits_it_has_alone() -> None:
    fast, _ = mixture("pytorch")
    for linear, n_in in ((fast.gate_up, HIDDEN), (fast.down, WIDTH)):
        x = drawn(40, n_in, seed=5)
        logits = drawn(40, N_EXPERTS, seed=6)
        together = linear(x, routing.route(logits, 1))
        for first, end in ((0, 1), (3, 19), (20, 40)):
            alone = linear(x[first:end], routing.route(logits[first:end], 1))
            assert torch.equal(alone, together[first:end])


@pytest.mark.parametrize("n_rows", [0, 1, 2, 33, 64, 65])
@pytest.mark.parametrize(("n_experts", "n_active"), [(1, 1), (5, 2), (128, 4), (37, 6)])
def test_fused_routing_is_the_definition(n_rows: int, n_experts: int, n_active: int) -> None:
    logits = drawn(n_rows, n_experts, seed=7)
    found, wanted = fused_ops().route(logits, n_active), routing.route(logits, n_active)
    assert torch.equal(found.order, wanted.order)
    assert torch.equal(found.starts, wanted.starts)
    torch.testing.assert_close(found.shares, wanted.shares)
    assert_routing_is_whole(found, n_rows * n_active)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # shares are what they are
@pytest.mark.parametrize("value", [0.0, float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_logits_that_say_nothing_route_somewhere(value: float) -> None:
    """A place in the order that was never written would be an address."""
    logits = torch.full((5, 7), value, device=DEVICE)
    for ops in (fused_ops(), TORCH_OPS):
        assert_routing_is_whole(ops.route(logits, 3), 15)


def assert_routing_is_whole(found: Routing, n_pairs: int) -> None:
    order, starts = found.order.cpu(), found.starts.cpu()
    assert torch.equal(order.long().sort().values, torch.arange(n_pairs))
    assert int(starts[0]) == 0 and int(starts[-1]) == n_pairs and bool((starts.diff() >= 0).all())


@pytest.mark.parametrize("n_rows", [0, 1, 9])
def test_fused_mix_is_the_definition(n_rows: int) -> None:
    outputs, shares = drawn(n_rows * 4, 1100, seed=8), drawn(n_rows, 4, seed=9)
    torch.testing.assert_close(fused_ops().mix(outputs, shares), TORCH_OPS.mix(outputs, shares))


def test_routing_needs_no_values() -> None:
    """Tensors without data: no shape depends on any, and nothing is read."""
    logits = torch.empty(40, 128, device="meta")
    found = routing.route(logits, 4)
    assert found.order.shape == (160,) and found.starts.shape == (129,)
    outputs = torch.empty(160, 32, device="meta")
    assert routing.mix(outputs, found.shares).shape == (40, 32)


@pytest.mark.parametrize("n_pairs", [1, 4, 32, 128, 600, 4000, 30000])
@pytest.mark.parametrize("n_out", [2880, 5760, 2880 + 32])
def test_tiles_are_whole(n_pairs: int, n_out: int) -> None:
    tile = tile_for(n_pairs, 128, n_out, torch.empty(1, dtype=torch.bfloat16))
    assert tile.outputs >= FEWEST_OUTPUTS and tile.inner % 32 == 0 and tile.warps >= 1
    assert tile.rows in {known.rows for _, known in TILES}
    # The part of a thread in the scales of a step is a copy of four bytes at least.
    assert tile.outputs * tile.inner // 32 >= 4 * 32 * tile.warps


@pytest.mark.gpu
@pytest.mark.parametrize("n_rows", [1, 7, 64, 200])
def test_a_captured_mixture_follows_its_rows(n_rows: int) -> None:
    """The graph is recorded with one routing and replayed with another."""
    fast, dense = mixture("triton")
    x, other = (drawn(n_rows, HIDDEN, seed=seed) for seed in (10, 11))
    fast(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    for rows in (x.clone(), other):
        x.copy_(rows)
        graph.replay()
        torch.testing.assert_close(y, dense(rows), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("n_rows", [1, 8, 64, 500, 3000])
@pytest.mark.parametrize("largest_scale", [125, 140])
def test_bfloat16_rows_are_multiplied_alike(n_rows: int, largest_scale: int) -> None:
    """By the codes' bits in registers; beyond 128 a scale takes a product of its own."""
    fast, _ = mixture("triton")
    assert isinstance(fast.gate_up, PackedExpertLinear)
    linear = replace(fast.gate_up, bias=fast.gate_up.bias.bfloat16(), largest_scale=largest_scale)
    x = drawn(n_rows, HIDDEN, seed=12).bfloat16()
    found = routing.route(drawn(n_rows, N_EXPERTS, seed=13), N_ACTIVE)
    wide = replace(linear, bias=linear.bias.float(), kernel=mixture("pytorch")[0].gate_up.kernel)
    want = wide(x.float(), found)
    torch.testing.assert_close(linear(x, found).float(), want, rtol=1e-2, atol=2e-2)
