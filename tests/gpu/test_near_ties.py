"""Near ties in captured rounds: counted in fast numerics, as the PyTorch backend counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

BATCH, N_NEW = 4, 48


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
def test_captured_rounds_count_them(temperature: float) -> None:
    """One pair, both backends: the same kernels of the target, so the same texts and ties."""
    from aerie.bench.round.setup import RoundSetup, read_prompts
    from aerie.bench.round.texts import POLICIES, lossless_room, write_texts

    setup = RoundSetup("cuda", "bfloat16", None, "triton", "graphs")
    pair = setup.load()
    prompts = read_prompts(BATCH, 64, pair.target.geometry.vocab_size)
    found = []
    for backend in ("triton", "pytorch"):
        own = replace(setup, backend=backend)
        core = own.core(pair, POLICIES["plain"], lossless_room(BATCH, 64 + N_NEW))
        texts = write_texts(core, prompts, N_NEW, temperature)
        found.append((texts, core.near_ties))
    assert found[0] == found[1]
    assert found[0][1].n_tokens == BATCH * N_NEW
    assert 0 < found[0][1].n_near < BATCH * N_NEW / 2


def test_exact_rounds_count_nothing() -> None:
    from aerie.bench.round.setup import RoundSetup, read_prompts
    from aerie.bench.round.texts import POLICIES, lossless_room, write_texts

    setup = RoundSetup("cuda", "bfloat16", None, "triton", "graphs", numerics="exact")
    pair = setup.load()
    core = setup.core(pair, POLICIES["chain"], lossless_room(BATCH, 64 + N_NEW))
    write_texts(core, read_prompts(BATCH, 64, pair.target.geometry.vocab_size), N_NEW, 0.0)
    assert core.near_ties.rate is None
