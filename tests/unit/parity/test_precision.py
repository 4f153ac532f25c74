"""Approximations of the precision study: as coarse as they say, and exact where nothing rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from aerie.kernels import load
from aerie.kernels.cases import Case, cases_for
from aerie.parity import precision
from aerie.parity.precision import LAYER, SOFTMAX, VARIANTS, Variant
from aerie.parity.precision_watch import WALK, Watch, expected_accepted

KERNELS = load("pytorch", data_errors="status")
GAPS = torch.cat((torch.linspace(-30, 0, 4001), torch.tensor([-torch.inf, -500.0])))


def worst_relative(approximate: Callable[[torch.Tensor], torch.Tensor]) -> float:
    exact = torch.exp(GAPS.double())
    found = approximate(GAPS).double()
    assert float(found[-2]) == 0.0, "exp of minus infinity"
    return float(((found - exact).abs() / exact.clamp(min=1e-300))[:4001].max())


@pytest.mark.parametrize("entries", [16, 64, 256])
def test_table_is_as_coarse_as_its_entries(entries: int) -> None:
    # Half an entry's width in the exponent, on either side.
    bound = 2 ** (0.5 / entries) - 1
    assert 0.9 * bound < worst_relative(precision.table_exp(entries)) < 1.01 * bound + 1e-5


@pytest.mark.parametrize(("pieces", "bound"), [(1, 0.0615), (4, 0.0038), (16, 0.00024)])
def test_lines_are_close(pieces: int, bound: float) -> None:
    assert 0.9 * bound < worst_relative(precision.linear_exp(pieces)) < bound + 1e-5


def test_roundings() -> None:
    values = torch.linspace(0, 1, 1000)
    assert float((precision.as_fixed(8)(values) - values).abs().max()) <= 0.5 / 256 + 1e-7
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    apart = (precision.as_int8_rows(rows) - rows).abs().amax(-1)
    assert bool((apart <= rows.abs().amax(-1) / 254 + 1e-6).all())
    assert bool((precision.as_int8_rows(torch.zeros(2, 3)) == 0).all())


def runnable(kernel: str) -> list[Case]:
    return [case for case in cases_for(kernel) if not case.expects and "b0" not in case.name]


def call(variant: Variant, case: Case) -> tuple[Any, Any]:
    def tensors() -> dict[str, Any]:
        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in case.build().items()
        }

    return variant.tap(KERNELS)[case.kernel](**tensors()), KERNELS[case.kernel](**tensors())


@pytest.mark.parametrize("make", [precision.rounded_scores, precision.rounded_hidden])
def test_a_layer_that_rounds_nothing_is_the_kernel(make: Callable[..., Any]) -> None:
    variant = Variant("same", LAYER, "", make(lambda values: values))
    cases = [case for case in runnable(LAYER) if "bf16" not in case.name]
    for case in cases:
        found, exact = call(variant, case)
        for name, one, other in zip(found._fields, found, exact, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{case.name} {name}")
    assert len(cases) > 20


def test_scores_keep_their_order_when_rounded() -> None:
    variant = next(v for v in VARIANTS if v.name == "scores-fixed-4")
    case = next(c for c in runnable(LAYER) if c.name == "b4_w8_k8")
    found, _ = call(variant, case)
    assert bool((found.sort_layer_scores.diff(dim=1) <= 0).all())
    assert len(found.curr_layer_scores.unique()) <= 17


def test_softmax_with_the_exact_exp_is_the_kernel() -> None:
    variant = Variant("same", SOFTMAX, "", precision.approximate_softmax(torch.exp))
    for case in runnable(SOFTMAX):
        found, exact = call(variant, case)
        np.testing.assert_allclose(
            found.target_probas, exact.target_probas, rtol=2e-5, atol=1e-38, err_msg=case.name
        )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_changes_one_kernel_and_no_greedy_row(variant: Variant) -> None:
    tapped = variant.tap(KERNELS)
    assert {name for name in KERNELS if tapped[name] is not KERNELS[name]} == {variant.kernel}
    if variant.kernel == SOFTMAX:
        found, exact = call(variant, next(c for c in runnable(SOFTMAX) if c.name == "b3_greedy"))
        np.testing.assert_array_equal(found.target_probas, exact.target_probas)


def test_a_watch_sees_both_arithmetics() -> None:
    """One request: a root with children 1 and 2, and 3 below 1; the rule coins."""
    watch = Watch()
    rough = next(v for v in VARIANTS if v.name == "exp-fixed-8")
    kernels = watch.tap(rough)(KERNELS)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(3))
    starts = torch.tensor([0, 4], dtype=torch.int32)
    rows = {
        "qo_indptr": starts,
        "draft_tokens": torch.tensor([8, 1, 2, 5]),
        "first_child_row": torch.tensor([1, 3, -1, -1]),
        "next_sibling_row": torch.tensor([-1, 2, -1, -1]),
    }
    made = kernels[SOFTMAX](logits=logits, temperature=torch.ones(1), qo_indptr=starts)
    coins = torch.zeros(1, 4)
    kernels[WALK](**rows, target_probas=made.target_probas, coins=coins, tree_depth=2)
    exact = torch.softmax(logits.double(), -1)
    expected = exact[0, 1] + exact[0, 2] + exact[0, 1] * exact[1, 5]
    assert watch.round_acceptances[0][0] == pytest.approx(float(expected), rel=1e-5)
    assert watch.round_acceptances[0][1] != watch.round_acceptances[0][0]
    assert len(watch.row_distances) == 4 and 0 < max(watch.row_distances) < 0.05


def test_expected_acceptance_is_what_coins_accept() -> None:
    """Ten thousand walks of K6 agree with the sum of the nodes' chances."""
    n_walks = 10_000
    generator = torch.Generator().manual_seed(4)
    probas = torch.softmax(torch.randn(4, 9, generator=generator), -1)
    rows = {
        "qo_indptr": torch.tensor([0, 4], dtype=torch.int32),
        "draft_tokens": torch.tensor([8, 1, 2, 5]),
        "first_child_row": torch.tensor([1, 3, -1, -1]),
        "next_sibling_row": torch.tensor([-1, 2, -1, -1]),
    }
    batch = 100
    many = {name: value.repeat(batch) for name, value in rows.items() if name != "qo_indptr"}
    many["qo_indptr"] = (torch.arange(batch + 1) * 4).int()
    n_accepted = 0
    for _ in range(n_walks // batch):
        coins = torch.rand(batch, 4, generator=generator)
        found = KERNELS[WALK](
            **many, target_probas=probas.repeat(batch, 1), coins=coins, tree_depth=2
        )
        n_accepted += int(found.accept_count.sum())
    expected = expected_accepted(rows, probas)[0]
    assert n_accepted / n_walks == pytest.approx(expected, abs=4 * (expected / n_walks) ** 0.5)


def test_a_watch_sees_layers() -> None:
    case = next(c for c in runnable(LAYER) if c.name == "b4_w8_k8")
    for name, error, reorders in (("hidden-fp8", True, False), ("scores-fixed-4", True, True)):
        watch = Watch()
        watch.tap(next(v for v in VARIANTS if v.name == name))(KERNELS)[LAYER](
            **{
                key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                for key, value in case.build().items()
            }
        )
        assert (watch.layer_errors[0] > 0.001) == error
        assert watch.layer_reorders == [reorders]
