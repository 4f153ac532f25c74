"""Captures: the calls asked for become dumps that replay green; nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.errors import KernelBoundsError, UnknownNameError, UsageError
from aerie.kernels import catalogue, load
from aerie.kernels.cases import all_cases, cases_for
from aerie.kernels.registry import Kernels
from aerie.parity.capture import Capture, CapturePlan
from aerie.parity.capture_conditions import CONDITIONS, find_condition
from aerie.parity.dump import find_dumps, read_dump
from aerie.parity.replay import replay_dumps

ORIGIN = {"commit": "test", "device": "cpu", "backend": "pytorch", "model": "none", "seed": 0}
K1, K6, K10B = (
    "draft_tree_layer_score_index_gen_op",
    "draft_tree_reject_sample",
    "assign_req_to_token_pool_operator",
)


def capture(folder: Path, *names: str, **options: Any) -> Capture:
    conditions = tuple(find_condition(name) for name in names)
    plan = CapturePlan(
        folder,
        conditions,
        options.pop("calls", 2),
        options.pop("most_bytes", 1 << 20),
        frozenset(options.pop("kernels", ())),
    )
    return Capture(plan, ORIGIN)


def tapped(made: Capture, data_errors: str = "status") -> Kernels:
    return made.tap(load("pytorch", data_errors=data_errors))


def call(kernels: Kernels, kernel: str, index: int = 0, **changes: Any) -> Any:
    return kernels[kernel](**{**cases_for(kernel)[index].build(), **changes})


def reasons(folder: Path) -> list[list[str]]:
    return [read_dump(path).provenance["reasons"] for path in find_dumps(folder)]


def test_first_calls_of_every_kernel(tmp_path: Path) -> None:
    made = capture(tmp_path, "first", calls=2)
    kernels = tapped(made)
    for case in all_cases():
        if not case.expects:
            kernels[case.kernel](**case.build())
    assert all(count == 2 for count in made.written.files.values())
    assert len(find_dumps(tmp_path)) == 2 * len(catalogue())
    for backend in ("reference", "pytorch"):
        report = replay_dumps(load(backend, data_errors="status"), find_dumps(tmp_path))
        assert not report.failed, report.failed
    assert made.taps[K1].n_calls > 25


def test_results_are_those_of_the_kernel(tmp_path: Path) -> None:
    plain = load("pytorch", data_errors="status")
    kernels = tapped(capture(tmp_path, "first", "refused"))
    for name in (K1, K10B):
        mine, other = cases_for(name)[0].build(), cases_for(name)[0].build()
        found, expected = kernels[name](**mine), plain[name](**other)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)
        for key, value in mine.items():
            np.testing.assert_array_equal(value, other[key])


def test_what_is_written_in_place_is_kept_as_it_was(tmp_path: Path) -> None:
    kernels = tapped(capture(tmp_path, "first", calls=1, kernels=(K10B,)))
    inputs = cases_for(K10B)[0].build()
    before = inputs["req_to_token"].copy()
    kernels[K10B](**inputs)
    dump = read_dump(find_dumps(tmp_path)[0])
    np.testing.assert_array_equal(dump.inputs["req_to_token"], before)
    np.testing.assert_array_equal(dump.outputs["req_to_token"], inputs["req_to_token"])
    assert not np.array_equal(before, inputs["req_to_token"])


def test_changes_are_noticed(tmp_path: Path) -> None:
    kernels = tapped(capture(tmp_path, "width-change", "batch-change", calls=9, kernels=(K1,)))
    for batch, width in ((1, 1), (1, 1), (1, 2), (1, 2), (3, 2), (3, 1), (3, 1)):
        kernels[K1](
            topk_probas=np.full((batch, width * 2), 0.5, np.float32),
            topk_tokens=np.tile(np.arange(width * 2), (batch, 1)),
            last_layer_scores=np.ones((batch, width), np.float32),
            input_hidden=np.zeros((batch * width, 3), np.float32),
            cumu_count=1,
        )
    assert reasons(tmp_path) == [["width-change"], ["batch-change"], ["width-change"]]


def walk(kernels: Kernels, target_tokens: list[int]) -> None:
    """A root with one child, token 7: accepted where the target says 7 at the root."""
    kernels[K6](
        qo_indptr=np.array([0, 2], np.int32),
        draft_tokens=np.array([1, 7]),
        first_child_row=np.array([1, -1]),
        next_sibling_row=np.array([-1, -1]),
        target_tokens=np.array(target_tokens),
        tree_depth=1,
    )


def test_empty_batches_count_only_when_asked(tmp_path: Path) -> None:
    empty = next(case for case in cases_for(K6) if case.name == "match_b0")
    for name, n_kept in (("first", 1), ("any", 2)):
        kernels = tapped(capture(tmp_path / name, name, kernels=(K6,)))
        kernels[K6](**empty.build())
        walk(kernels, [7, 2])
        assert len(find_dumps(tmp_path / name)) == n_kept


def test_acceptance_is_noticed(tmp_path: Path) -> None:
    made = capture(tmp_path, "zero-accepted", "all-accepted", calls=1, kernels=(K6,))
    kernels = tapped(made)
    for tokens in ([7, 2], [3, 2], [7, 2], [3, 2]):
        walk(kernels, tokens)
    assert reasons(tmp_path) == [["all-accepted"], ["zero-accepted"]]
    assert [read_dump(path).provenance["call"] for path in find_dumps(tmp_path)] == [0, 1]
    assert made.taps[K6].n_calls == 4


def test_refusals_are_kept(tmp_path: Path) -> None:
    case = next(c for c in cases_for(K10B) if c.expects is KernelBoundsError and "table" in c.name)
    kernels = tapped(capture(tmp_path, "refused", kernels=(K10B,)))
    call(kernels, K10B)
    kernels[K10B](**case.build())
    assert len(find_dumps(tmp_path)) == 1
    assert read_dump(find_dumps(tmp_path)[0]).outcome not in ("ok", "KernelBoundsError")


def test_the_call_that_raises_leaves_evidence(tmp_path: Path) -> None:
    kernels = tapped(capture(tmp_path, "first", kernels=(K1,)))
    with pytest.raises(KernelBoundsError):
        call(kernels, K1, cumu_count=0)
    dump = read_dump(find_dumps(tmp_path)[0])
    assert (dump.outcome, dict(dump.outputs)) == ("KernelBoundsError", {})


def test_large_calls_are_counted_and_left_out(tmp_path: Path) -> None:
    made = capture(tmp_path, "first", most_bytes=64, kernels=(K1,))
    call(tapped(made), K1)
    assert made.written.too_large[K1] == 1
    assert not list(tmp_path.iterdir())


def test_mistakes_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean width-change"):
        find_condition("width-changes")
    with pytest.raises(UnknownNameError, match="unknown kernel"):
        tapped(capture(tmp_path, "first", kernels=("no_such_kernel",)))
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="already holds dumps"):
        capture(tmp_path, "first")


def test_every_condition_can_be_met() -> None:
    cards = [kernel.card for kernel in load("reference").values()]
    for condition in CONDITIONS:
        assert any(condition.applies_to(card) for card in cards), condition.name
