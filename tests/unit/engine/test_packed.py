"""Packed pairs: with speculation and without, in both launchers, they write the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from aerie.assemble import load_draft, load_target
from aerie.attention import pytorch
from aerie.bench.round.mixture import TOY, build_mixture
from aerie.config import ModelConfig, SpeculationConfig
from aerie.engine.engine import Limits
from aerie.models.load import LoadOptions
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import LAUNCHERS, Pair, core, outputs
from tests.unit.models import pairs
from tests.unit.models.quantisers import SCHEMES, config_of, quantise_file

EXACT = ModelConfig(device="cpu", numerics="exact", dtype="float32")
OPTIONS = LoadOptions(torch.float32, is_fused=True)
PLAIN = SpeculationConfig(method="none")
TREE = SpeculationConfig(top_k=3, depth=3, nodes=9)


def packed_pair(directory: Path, name: str) -> Pair:
    """A random target and a random head, both packed; eight layers, for the head's taps."""
    scheme = SCHEMES[name]
    base = pairs.write_target(directory / "base")
    packed, _ = quantise_file(load_file(base / "model.safetensors"), scheme.quantise)
    pairs.save(directory / "target", config_of(scheme), packed)
    case = pairs.CASES["official"]
    packed, _ = quantise_file(pairs.stored_tensors(case), scheme.quantise)
    config = case.config | {"quantization_config": scheme.config}
    pairs.save(directory / "head", config, packed)
    target = load_target(directory / "target", EXACT)
    return Pair(target, load_draft(directory / "head", target, EXACT))


QUICK = ("gptq_act_order", "awq", "fp8_blocks")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SCHEMES if n not in QUICK)],
)
def test_speculation_writes_what_plain_decoding_writes(tmp_path: Path, name: str) -> None:
    pair = packed_pair(tmp_path, name)
    jobs = [
        ([(7 * n + 3 * place * place) % pairs.VOCAB for place in range(2 + 5 * n)],
         SamplingParams(max_tokens=14, ignore_eos=True, seed=n, temperature=0.7 * (n % 2)))
        for n in range(4)
    ]  # fmt: skip
    alone = [outputs(core(pair, speculation=PLAIN, max_batch=1), [job])[0] for job in jobs]
    for launcher in LAUNCHERS:
        assert outputs(core(pair, speculation=TREE, engine=launcher), jobs) == alone


def test_a_packed_mixture_writes_the_same_by_both_launchers() -> None:
    """Rows of an expert are found by the device: what a GPU replays, a CPU calls."""
    target = build_mixture({**TOY, "num_hidden_layers": 2}, pytorch.prepare, OPTIONS, seed=4)
    limits = Limits(context=96, vocabulary=TOY["vocab_size"], eos_ids=(5,))
    pair = Pair(target, cast(Any, None), limits)  # plain decoding asks for no head
    jobs = [
        ([(7 * n + 3 * place * place) % 150 + 6 for place in range(2 + 9 * n)],
         SamplingParams(max_tokens=14, ignore_eos=True, seed=n, temperature=0.7 * (n % 2)))
        for n in range(5)
    ]  # fmt: skip
    written = [
        outputs(core(pair, "fast", speculation=PLAIN, engine=launcher), jobs)
        for launcher in LAUNCHERS
    ]
    assert written[0] == written[1]
    assert all(len(text) == 14 for text in written[0])
