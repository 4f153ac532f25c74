"""Previews: rounds over a part of the KV inside a draft change no token of a lossless engine.

Random runs with both launchers, every option, arrivals and cancels: `random_runs.py`, "previewed".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from aerie.config import PartialConfig, SpeculationConfig
from aerie.engine import round as round_module
from aerie.engine.engine import EngineCore
from aerie.engine.preview import near_pass
from aerie.engine.rows import owners
from aerie.errors import UsageError
from aerie.kernels.registry import Kernels
from aerie.requests.params import SamplingParams
from aerie.requests.request import PreviewCounts
from tests.unit.engine.cores import PLAIN, Pair, core, finish_all, outputs
from tests.unit.engine.random_runs import PARTIAL

LONG = replace(PARTIAL, n_spec_tokens_buf=24)
CHAIN = SpeculationConfig(top_k=1, depth=4, nodes=5)
PLANNED = SpeculationConfig(policy="planner", top_k=4, depth=4, nodes=20)
PROMPTS = [[(7 * i + 3 * i * i + seed) % 61 for i in range(30 + seed)] for seed in range(3)]


def jobs(**asked: Any) -> list[tuple[list[int], SamplingParams]]:
    return [
        (prompt, SamplingParams(max_tokens=16, seed=seed, ignore_eos=True, **asked))
        for seed, prompt in enumerate(PROMPTS)
    ]


def counted(engine: EngineCore) -> PreviewCounts:
    """What all requests of an engine count of previews."""
    total = PreviewCounts()
    for request in engine._requests.values():
        own = request.statistics.previews
        total.tokens += own.tokens
        total.judged += own.judged
        total.held += own.held
    return total


@pytest.fixture(scope="module")
def plain(pair: Pair) -> list[list[int]]:
    return outputs(core(pair, speculation=PLAIN), jobs())


@pytest.mark.parametrize("selection", ["mass", "bounds"])
def test_a_preview_of_everything_holds(
    pair: Pair, plain: list[list[int]], launcher: str, selection: str
) -> None:
    whole = replace(LONG, specpv_select=selection, n_retrieval_blocks=64)
    engine = core(pair, speculation=CHAIN, partial=whole, engine=launcher)
    assert outputs(engine, jobs()) == plain
    found = counted(engine)
    assert found.tokens > 30, "most tokens come from previews"
    assert found.agreement == 1.0


def test_rows_of_a_preview_stand_where_their_blocks_are(
    pair: Pair, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention may count columns by position: a row sees its own column, and none behind."""
    checked = list[int]()

    def watched(parts: Any, bucket: Any, layout: Any) -> Any:
        found = near_pass(parts, bucket, layout)
        own, n_real = found.rows, int(layout.qo_indptr[-1])
        columns = own.kv_indptr.diff().long()[owners(layout.qo_indptr, bucket.rows)]
        bits = own.ancestor_bits.numpy().view(np.uint8)
        depth = torch.from_numpy(np.unpackbits(bits, axis=1).sum(axis=1)).long() - 1
        stands = own.visible_prefix + depth
        assert torch.equal(own.positions[:n_real], stands[:n_real])
        assert (own.positions[:n_real] < columns[:n_real]).all() and (own.positions >= 0).all()
        checked.append(n_real)
        return found

    monkeypatch.setattr(round_module, "near_pass", watched)
    outputs(core(pair, speculation=CHAIN, partial=LONG, engine=launcher), jobs())
    assert sum(checked) > 30


def test_a_broken_run_is_no_loss(pair: Pair, plain: list[list[int]], launcher: str) -> None:
    """The blocks that matter least are copied instead of those that matter most."""
    least = replace(LONG, n_sink_blocks=0, n_window_blocks=1)
    engine = core(
        pair, speculation=CHAIN, partial=least, engine=launcher, tap=corrupted, backend="numpy"
    )
    assert outputs(engine, jobs()) == plain
    found = counted(engine)
    assert found.held < found.judged, "some runs broke"


def corrupted(kernels: Kernels) -> Kernels:
    """Kernels that choose the blocks of the lowest scores."""
    choose = kernels["choose_kv_blocks"]

    class Least:
        def __call__(self, /, **inputs: Any) -> Any:
            return choose(**{**inputs, "block_scores": -inputs["block_scores"]})

    tapped: Any = {**kernels, "choose_kv_blocks": Least()}
    return Kernels(kernels.backend, kernels.device, kernels.data_errors, tapped)


def test_the_planner_takes_previews_that_pay(
    pair: Pair, plain: list[list[int]], launcher: str
) -> None:
    whole = replace(LONG, n_retrieval_blocks=64)
    engine = core(pair, speculation=PLANNED, partial=whole, engine=launcher)
    assert outputs(engine, jobs()) == plain
    assert counted(engine).tokens > 0
    assert "previews hold" in engine.parts.policy.reason


def test_a_lossy_engine_keeps_what_a_part_of_the_kv_said(
    pair: Pair, plain: list[list[int]], launcher: str
) -> None:
    lossy = replace(LONG, specpv="lossy")
    engine = core(pair, speculation=CHAIN, partial=lossy, engine=launcher)
    found = outputs(engine, jobs())
    counts = counted(engine)
    assert counts.tokens > 0 and counts.agreement == 1.0, "nothing is asked again"
    assert found != plain, "so small a part does not say what the whole says"
    assert all(len(own) == 16 for own in found)


def test_short_texts_and_options_that_count_have_none(pair: Pair, launcher: str) -> None:
    later = replace(LONG, partial_threshold=1000)
    engine = core(pair, speculation=CHAIN, partial=later, engine=launcher)
    outputs(engine, jobs())
    assert counted(engine).tokens == 0
    engine = core(pair, speculation=CHAIN, partial=LONG, engine=launcher)
    outputs(engine, jobs(repetition_penalty=1.2))
    assert counted(engine).tokens == 0


def test_one_who_wants_no_drafts_gets_a_token_a_round(pair: Pair, launcher: str) -> None:
    engine = core(pair, speculation=CHAIN, partial=LONG, engine=launcher)
    mixed = [*jobs()[:2], (PROMPTS[2], SamplingParams(max_tokens=9, speculative=False))]
    ids = [engine.submit(prompt, params) for prompt, params in mixed]
    finish_all(engine)
    alone = engine.request(ids[2])
    assert alone.statistics.target_passes == len(alone.output)
    assert alone.statistics.previews.tokens == 0 and counted(engine).tokens > 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"speculation": replace(CHAIN, rule="coins")}, "needs rule match"),
        ({"speculation": PLAIN}, "needs drafts"),
        ({"partial": replace(LONG, n_dense_layers=8)}, "no layer left"),
        ({"speculation": replace(CHAIN, nodes=128)}, "no room for a run"),
    ],
)
def test_what_cannot_be_is_refused(pair: Pair, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        core(pair, **{"speculation": CHAIN, "partial": LONG, **settings})


@pytest.mark.parametrize(
    "wrong", [{"specpv": "yes"}, {"specpv_select": "best"}, {"n_window_blocks": 0}]
)
def test_a_wrong_setting_is_said(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"partial\."):
        PartialConfig(**wrong)


def test_agreement_counts_up_to_the_first_miss() -> None:
    counts = PreviewCounts()
    assert counts.agreement is None
    counts.count(5, 9)  # all five held, four of the tree behind them
    counts.count(4, 1)  # the second was another one
    assert (counts.tokens, counts.judged, counts.held) == (9, 7, 6)
    assert np.isclose(counts.agreement or 0, 6 / 7)
