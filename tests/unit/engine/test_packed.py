"""Packed pairs: with speculation and without, in both launchers, they write the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from aerie.assemble import numerics
from aerie.assemble.core import load_draft, load_target
from aerie.attention import pytorch
from aerie.bench.round.mixture import TOY, build_mixture
from aerie.config import ModelConfig, SpeculationConfig
from aerie.engine.engine import Limits
from aerie.models.load import LoadOptions
from aerie.models.packed import PackedLinear, PackedProducts
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import LAUNCHERS, PLAIN, Pair, core, outputs
from tests.unit.models import pairs
from tests.unit.models.quantisers import SCHEMES, config_of, quantise_file

EXACT = ModelConfig(device="cpu", numerics="exact", dtype="float32")
OPTIONS = LoadOptions(torch.float32, is_fused=True)
TREE = SpeculationConfig(top_k=3, depth=3, nodes=9)


def packed_pair(directory: Path, name: str, config: ModelConfig = EXACT) -> Pair:
    """A random target and a random head, both packed; eight layers, for the head's taps."""
    scheme = SCHEMES[name]
    base = pairs.write_target(directory / "base")
    packed, _ = quantise_file(load_file(base / "model.safetensors"), scheme.quantise)
    pairs.save(directory / "target", config_of(scheme), packed)
    case = pairs.CASES["official"]
    packed, _ = quantise_file(pairs.stored_tensors(case), scheme.quantise)
    written = case.config | {"quantization_config": scheme.config}
    pairs.save(directory / "head", written, packed)
    target = load_target(directory / "target", config)
    return Pair(target, load_draft(directory / "head", target, config))


def jobs_of(lengths: Sequence[int]) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of these lengths, every other one sampled."""
    return [
        ([(7 * n + 3 * place * place) % pairs.VOCAB for place in range(length)],
         SamplingParams(max_tokens=14, ignore_eos=True, seed=n, temperature=0.7 * (n % 2)))
        for n, length in enumerate(lengths)
    ]  # fmt: skip


QUICK = ("gptq_act_order", "awq", "fp8_blocks")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SCHEMES if n not in QUICK)],
)
def test_speculation_writes_what_plain_decoding_writes(tmp_path: Path, name: str) -> None:
    pair = packed_pair(tmp_path, name)
    jobs = jobs_of((2, 7, 12, 17))
    alone = [outputs(core(pair, speculation=PLAIN, max_batch=1), [job])[0] for job in jobs]
    for launcher in LAUNCHERS:
        assert outputs(core(pair, speculation=TREE, engine=launcher), jobs) == alone


@pytest.mark.parametrize("name", QUICK)
def test_a_weight_written_out_for_many_rows_changes_no_token(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of prompts and verified trees go that way, steps and levels of drafts do not."""
    fast = replace(numerics.NUMERICS["fast"], packed=PackedProducts(dense_from=6))
    monkeypatch.setitem(numerics.NUMERICS, "fast", fast)
    counts: list[int] = []
    unpacked = PackedLinear._unpacked

    def counted(self: PackedLinear, rows: torch.Tensor, kernel: Any) -> torch.Tensor:
        counts.append(len(rows))
        return unpacked(self, rows, kernel)

    monkeypatch.setattr(PackedLinear, "_unpacked", counted)
    pair = packed_pair(tmp_path, name, replace(EXACT, numerics="fast"))
    jobs = jobs_of((2, 23, 40, 9))
    alone = [outputs(core(pair, "fast", speculation=PLAIN, max_batch=1), [j])[0] for j in jobs]
    assert counts and min(counts) >= 6
    for launcher in LAUNCHERS:
        counts.clear()
        assert outputs(core(pair, "fast", speculation=TREE, engine=launcher), jobs) == alone
        assert counts and max(counts) >= 16


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
