"""A random mixture: what it weighs, how it is routed, and that it stays finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aerie.attention import pytorch
from aerie.bench.round.mixture import (
    PUBLISHED,
    SHARED_ROWS,
    TOY,
    UNIFORM,
    ZIPF,
    ForcedRouting,
    build_mixture,
    chunk_operations,
    expert_bytes,
    step_bytes,
    with_forced_routing,
)
from aerie.costs.waking import expected_experts
from aerie.models.decoder import Decoder
from aerie.models.feed_forward import Experts
from aerie.models.fields import Fields
from aerie.models.footprint import weight_bytes
from aerie.models.geometry import parse_geometry
from aerie.models.load import LoadOptions
from tests.unit.attention.trees import causal_batch, packed_slots

OPTIONS = LoadOptions(torch.float32, is_fused=True)


def toy(**fields: Any) -> Decoder:
    return build_mixture({**TOY, **fields}, pytorch.prepare, OPTIONS, seed=1)


def test_the_published_geometry_is_read() -> None:
    geometry = parse_geometry(Fields(dict(PUBLISHED), "test"))
    assert geometry.experts is not None and geometry.experts.is_mxfp4
    assert geometry.attention.windows[:4] == (128, None, 128, None)
    assert weight_bytes(geometry, torch.bfloat16) / 1e9 == pytest.approx(65.25, abs=0.05)


def test_bytes_of_a_step_are_the_weights_without_sleeping_experts() -> None:
    """All experts touched and no text: the whole model but its embedding, norms and biases."""
    geometry = parse_geometry(Fields(dict(PUBLISHED), "test"))
    all_experts = geometry.n_layers * 128
    counted = step_bytes(geometry, all_experts, 0, 1, 2)
    embedding = 2 * geometry.vocab_size * geometry.hidden_size
    assert counted == pytest.approx(weight_bytes(geometry, torch.bfloat16) - embedding, rel=1e-4)
    assert step_bytes(geometry, 0, 0, 1, 2) == counted - all_experts * expert_bytes(geometry, 2)
    # A layer with a window reads no more than that.
    short, long = (step_bytes(geometry, 0, n, 1, 2) for n in (128, 1128))
    assert long - short == 18 * 1000 * 2 * 8 * 64 * 2


def test_operations_of_a_chunk() -> None:
    geometry = parse_geometry(Fields(dict(PUBLISHED), "test"))
    per_row = 36 * (4 * 3 * 2880 * 2880 + 2880 * (2 * 4096 + 2 * 512))
    assert chunk_operations(geometry, 2048) == pytest.approx(2 * 2048 * per_row, rel=0.05)


def test_a_random_mixture_stays_finite_and_is_the_seed_s() -> None:
    rows = causal_batch([torch.arange(20)], packed_slots([20]))

    def logits(target: Decoder) -> torch.Tensor:
        return target.forward(rows, target.allocate_pool(21), torch.arange(20)).logits

    deep = logits(toy(num_hidden_layers=36))
    assert bool(deep.isfinite().all()) and 0.01 < float(deep.std()) < 100
    assert torch.equal(logits(toy()), logits(toy()))


def forced(n_rows: int, n_layers: int = 40) -> ForcedRouting:
    tables = tuple(torch.zeros(n_rows, 128) for _ in range(n_layers))
    return ForcedRouting(tables, 4)


@pytest.mark.parametrize("n_rows", [1, 8, 32])
def test_even_routing_touches_what_is_to_be_expected(n_rows: int) -> None:
    routing = forced(n_rows)
    routing.fill(UNIFORM, 3)
    mean = sum(routing.touched(n_rows)) / 40
    assert mean == pytest.approx(float(expected_experts(4, 128, n_rows)), rel=0.03)


def test_neighbours_share_and_the_popular_are_popular() -> None:
    routing = forced(64)
    routing.fill(ZIPF, 3)
    for table in routing.tables:
        assert torch.equal(table[:SHARED_ROWS], table[:1].expand(SHARED_ROWS, -1))
        assert not torch.equal(table[SHARED_ROWS], table[0])
    even = forced(64)
    even.fill(UNIFORM, 3)
    assert sum(routing.touched(64)) < 0.6 * sum(even.touched(64))
    assert sum(routing.busiest(64)) > 2 * sum(even.busiest(64))


def test_a_forced_router_is_not_listened_to() -> None:
    target, routing = with_forced_routing(toy(), 8)
    routing.fill(UNIFORM, 0)
    layer = target.layers[1].feed_forward
    assert isinstance(layer, Experts)
    x = torch.randn(5, 64)
    assert torch.equal(layer.router(x), routing.tables[1][:5])
    with pytest.raises(AssertionError, match="9 rows, the table has 8"):
        layer.router(torch.randn(9, 64))
