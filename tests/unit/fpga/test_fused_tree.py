"""The fused regions give what the definitions give kernel by kernel, and move fewer bytes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aerie.fpga.counted import ByteCounter
from aerie.fpga.tree_round import OUTCOME, RoundResult, TreeRound
from aerie.fpga.tree_runs import run_fused, run_unfused
from aerie.kernels.arrays import as_numpy
from aerie.kernels.hls.fused_cards import FUSED_CARDS
from aerie.kernels.hls.meters import CountedCall, CountedKernel
from aerie.kernels.registry import load
from aerie.kernels.status import Status
from aerie.perf.ledger import ledger
from tests.unit.fpga.rounds import Recipe, make_round

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (apt-get install g++)")

CARDS = {card.name: card for card in FUSED_CARDS}
LAYOUT = ("qo_indptr", "draft_tokens", "positions", "ancestor_bits")
MASK = ("kv_indptr", "kv_indices", "mask_indptr", "packed_mask")


def by_definition(one: TreeRound) -> RoundResult:
    kernels = load("reference", data_errors="status")

    def call(name: str, **inputs: Any) -> Mapping[str, Any]:
        results = kernels[name](**inputs)._asdict()
        assert not np.any(as_numpy(results.get("status", 0))), name
        return {key: as_numpy(value) for key, value in results.items()}

    return run_unfused(one, call)


def assert_equal(found: RoundResult, wanted: RoundResult) -> None:
    np.testing.assert_array_max_ulp(found.grown.gains, wanted.grown.gains, maxulp=1)
    for name in LAYOUT:
        np.testing.assert_array_equal(found.grown.layout[name], wanted.grown.layout[name], name)
    for name in MASK:
        np.testing.assert_array_equal(found.grown.mask[name], wanted.grown.mask[name], name)
    for name in OUTCOME:
        np.testing.assert_array_equal(found.outcome[name], wanted.outcome[name], name)


RECIPES = (
    Recipe(),
    Recipe(batch=1, top_k=8, widths=(1, 8, 8, 8), verify_num=64),
    Recipe(batch=5, top_k=3, widths=(1, 1, 3, 2), verify_num=6, kind="ties"),
    Recipe(batch=3, top_k=7, widths=(1, 5), verify_num=20, kind="ones"),
    Recipe(batch=4, top_k=5, widths=(1, 5, 5), verify_num=31, kind="zero"),
    Recipe(batch=2, top_k=10, widths=(1, 6, 6), verify_num=128, kind="tiny", vocab=300),
    Recipe(batch=1, top_k=1, widths=(1, 1, 1, 1, 1), verify_num=6),
    Recipe(batch=17, temperature=0.0, kind="ties"),
    Recipe(batch=6, temperature=0.0, has_coins=False),
    Recipe(batch=3, temperature=0.3, context=0, stops=0),
    Recipe(batch=128, widths=(1, 2), verify_num=5),
)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.kind}-{recipe.batch}")
@pytest.mark.parametrize("seed", range(3))
def test_same_as_kernel_by_kernel(recipe: Recipe, seed: int) -> None:
    one = make_round(recipe, seed)
    counter = ByteCounter()
    assert_equal(run_fused(one, counter.call), by_definition(one))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.kind}-{recipe.batch}")
def test_ledger_equals_the_counters(recipe: Recipe) -> None:
    one = make_round(recipe, 7)
    checked: list[CountedCall] = []

    def call(name: str, **inputs: Any) -> Mapping[str, Any]:
        given = {key: value for key, value in inputs.items() if value is not None}
        counted = CountedKernel(CARDS[name])(**given)
        # The second region finds its rows on chip; the ledger is told how many there are.
        rows = {"qo_indptr": checked[0].results["qo_indptr"]} if checked else {}
        assert ledger(CARDS[name], given, counted.results, rows) == counted.ports
        checked.append(counted)
        return counted.results

    run_fused(one, call)
    assert len(checked) == 2


def test_unfused_c_simulation_agrees_and_moves_more() -> None:
    one = make_round(Recipe(batch=4, top_k=8, widths=(1, 8, 8), verify_num=32, vocab=2000), 0)
    unfused, fused = ByteCounter(), ByteCounter()
    wanted = run_unfused(one, unfused.call)
    assert_equal(run_fused(one, fused.call), wanted)
    before = sum(n.total for name, n in unfused.by_top().items() if name != "update_node_data")
    after = sum(n.total for n in fused.by_top().values())
    assert before / after >= 2.0
    # Every row of logits crosses a port once, and no probability does.
    assert fused.moved["fused_verdict", "logits"].read == one.logits.nbytes


def test_a_repeated_sibling_refuses_its_request_alone() -> None:
    one = make_round(Recipe(batch=3), 1)
    level = one.levels[1]
    tokens = level.tokens.copy()
    tokens[1, 5] = tokens[1, 4]
    broken = replace(one, levels=(one.levels[0], replace(level, tokens=tokens), one.levels[2]))
    counter = ByteCounter()
    found = run_fused(broken, counter.call)
    assert found.grown.layout["status"].tolist() == [0, Status.DUPLICATE_SIBLING, 0]
    assert np.diff(found.grown.layout["qo_indptr"])[1] == 0
    assert found.outcome["new_seq_len"][1] == one.serving.seq_len[1]
    assert found.outcome["out_indptr"][1] == found.outcome["out_indptr"][2]


def test_a_row_that_is_no_number_refuses_its_request_alone() -> None:
    one = make_round(Recipe(batch=3), 2)
    logits = one.logits.copy()
    logits[int(len(logits) / 3) + 2, 7] = np.nan
    found = run_fused(replace(one, logits=logits), ByteCounter().call)
    assert found.outcome["new_seq_len"][1] == one.serving.seq_len[1]
    whole = run_fused(one, ByteCounter().call)
    for b in (0, 2):
        assert found.outcome["new_seq_len"][b] == whole.outcome["new_seq_len"][b]
