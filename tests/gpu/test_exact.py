"""Exact numerics on a GPU: a row's bits are its own, in attention, in products, in whole texts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, DIM, N_SLOTS, N_NODES = 32, 8, 128, 6000, 30
DTYPES = (torch.bfloat16, torch.float32)
# The widths of the 8B geometry, whose inner axes a library likes to cut.
SHAPES = ((4096, 4096), (4096, 14336), (6144, 4096))
ROW_COUNTS = (1, 2, 8, 16, 17, 33, 64, 100, 192, 256, 300, 512)


def _attended(rows, queries, memory, backend):  # type: ignore[no-untyped-def]
    from aerie.attention.contract import LayerAttention, Reach
    from aerie.bench.kernels.attention import on

    placed = on(rows, torch.device("cuda"))
    return backend(placed, [Reach()])(queries, *memory, LayerAttention(DIM**-0.5, Reach()))


def _text_alone(slots):  # type: ignore[no-untyped-def]
    from tests.unit.attention.trees import causal_batch

    return causal_batch([torch.zeros(1, dtype=torch.int64)], [slots])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prefix", [0, 60, 250, 511, 1000, 4090, 5000])
def test_a_node_has_the_bits_of_plain_decoding(prefix: int, dtype: torch.dtype) -> None:
    from aerie.attention.triton.exact import ExactAttention
    from tests.unit.attention.trees import causal_batch, random_parents, root_path, tree_batch

    generator, exact = torch.Generator().manual_seed(prefix), ExactAttention()
    memory = torch.randn(2, N_SLOTS, KV_HEADS, DIM, generator=generator).to("cuda", dtype)
    queries = torch.randn(N_NODES, HEADS, DIM, generator=generator).to("cuda", dtype)
    slots = (torch.randperm(N_SLOTS - 1, generator=generator)[: prefix + N_NODES] + 1).int()
    parents = random_parents(N_NODES, generator)
    tree = tree_batch([torch.zeros(N_NODES, dtype=torch.int64)], [parents], [slots])
    together = _attended(tree, queries, memory, exact)
    for node in range(N_NODES):
        path = [prefix + step for step in root_path(parents, node)]
        own = torch.cat((slots[:prefix], slots[path]))
        alone = _text_alone(own)
        one = queries[node : node + 1]
        # As a prompt's row, and as a round's beside a long text.
        as_round = replace(alone, bounds=replace(alone.bounds, tree=1, columns=33000))
        for rows in (alone, as_round):
            assert torch.equal(_attended(rows, one, memory, exact)[0], together[node]), node
    # The last node's text as a chunk: tall tiles, spans folded by one program.
    n_rows = min(len(own), 700)
    shown = torch.randn(n_rows, HEADS, DIM, generator=generator).to("cuda", dtype)
    shown[-1] = queries[-1]
    chunk = causal_batch([torch.zeros(n_rows, dtype=torch.int64)], [own])
    read = _attended(chunk, shown, memory, exact)
    assert torch.equal(read[-1], together[-1])
    middle = n_rows // 2
    alone = _text_alone(own[: len(own) - n_rows + middle + 1])
    one = shown[middle : middle + 1]
    assert torch.equal(_attended(alone, one, memory, exact)[0], read[middle])


def test_another_block_is_caught() -> None:
    """The control: one tile with blocks of another length, and the bits differ."""
    from aerie.attention.triton.exact import FEW, ExactAttention

    generator = torch.Generator().manual_seed(1)
    memory = torch.randn(2, N_SLOTS, KV_HEADS, DIM, generator=generator).to("cuda", torch.bfloat16)
    queries = torch.randn(1, HEADS, DIM, generator=generator).to("cuda", torch.bfloat16)
    alone = _text_alone(torch.arange(1, 900).int())
    swapped = ExactAttention(few=replace(FEW, block_n=32))
    right = _attended(alone, queries, memory, ExactAttention())
    assert not torch.equal(_attended(alone, queries, memory, swapped), right)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_has_the_bits_of_its_rows_alone(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    from aerie.kernels.triton_gpu.exact_linear import exact_linears
    from aerie.kernels.triton_gpu.gemm_plan import shipped_table

    n_out, n_in = shape
    generator = torch.Generator("cuda").manual_seed(2)
    weight = torch.randn(n_out, n_in, device="cuda", generator=generator).to(dtype)
    x = torch.randn(max(ROW_COUNTS), n_in, device="cuda", generator=generator).to(dtype)
    layer = exact_linears("cuda", shipped_table("h200")).make(weight, None)
    want = torch.cat([layer(row) for row in x.split(1)])
    for n_rows in ROW_COUNTS:
        assert torch.equal(layer(x[:n_rows]), want[:n_rows]), n_rows


def test_a_split_of_the_inner_axis_is_caught() -> None:
    """The control: a plan that adds two parts has other bits, so a test would see it."""
    from aerie.kernels.triton_gpu.exact_linear import exact_linears
    from aerie.kernels.triton_gpu.gemm_plan import Plan

    generator = torch.Generator("cuda").manual_seed(3)
    weight = torch.randn(4096, 14336, device="cuda", generator=generator).bfloat16()
    x = torch.randn(8, 14336, device="cuda", generator=generator).bfloat16()
    layer = exact_linears("cuda").make(weight, None)
    assert not torch.equal(layer(x), layer.by(Plan("dot", 64, 128, 16, 2, 4, 3), x))


@cache
def _texts(policy: str, temperature: float, batch: int) -> list[list[int]]:
    from aerie.bench.round.setup import RoundSetup, read_prompts
    from aerie.bench.round.texts import POLICIES, lossless_room, write_texts

    setup = RoundSetup(geometry=None, numerics="exact", backend="triton")
    pair = setup.load()
    core = setup.core(pair, POLICIES[policy], lossless_room(batch, 600))
    prompts = read_prompts(8, 500, pair.target.geometry.vocab_size)
    return write_texts(core, prompts, 64, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("policy", "batch"), [("chain", 8), ("tree", 3), ("planner", 8)])
def test_texts_in_bfloat16_are_those_of_plain_decoding(
    policy: str, batch: int, temperature: float
) -> None:
    assert _texts(policy, temperature, batch) == _texts("plain", temperature, 1)


def rescored(device: str) -> list[tuple[list[float], list[float]]]:
    """Log-probabilities of texts as they were decoded, and of the finished texts read again."""
    from aerie import Engine, SamplingParams
    from aerie.bench.round.setup import read_prompts

    with Engine.load(device=device, numerics="exact", graphs={"warm": "off"}) as engine:
        prompts = read_prompts(3, 300, engine.core.limits.vocabulary)
        params = SamplingParams(max_tokens=40, temperature=0.8, seed=5, ignore_eos=True, logprobs=0)
        written = engine.generate(prompts, params)
        texts = [[*own, *made.token_ids] for own, made in zip(prompts, written, strict=True)]
        scoring = SamplingParams(max_tokens=0, prompt_logprobs=0)
        read = engine.generate(texts, scoring)
        return [
            (
                [s.logprob for s in own.logprobs or ()],
                [s.logprob for s in again.prompt_logprobs or ()],
            )
            for own, again in zip(written, read, strict=True)
        ]


def test_log_probabilities_of_decoding_are_those_of_rescoring() -> None:
    for decoded, again in rescored("cuda"):
        assert len(decoded) == 40 and decoded == again[-40:]
