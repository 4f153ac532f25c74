"""When previews are taken: prices of a long text, runs that hold, and runs that break."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aerie.costs.table import Prices
from aerie.speculation.foresight import LEAST_AGREEMENT, LOOK_EVERY, Foresight, Quote
from aerie.speculation.policy import Situation
from aerie.speculation.preview import PreviewRule
from aerie.speculation.running import Forecast

RULE = PreviewRule(threshold=4096, n_near=4256, longest_run=52, most_passes=32)
WEIGHTS, READ, LEVEL = 4e-3, 1e-7, 2e-4  # seconds: weights once, a position of one request, a draft


def prices(batch: int, context: float) -> Prices:
    """A pass reads the weights once, and every position of every request."""
    seconds = WEIGHTS + READ * batch * context
    return Prices(np.full(batch * 129, seconds), np.array([0.0, LEVEL]), LEVEL)


def foresight(agreement: float, depth: int = 8) -> Foresight:
    return Foresight(RULE, depth, held=1000 * agreement, judged=1000.0)


def chosen(own: Foresight, batch: int, context: int) -> int:
    """Passes of the preview before a round; 0: none."""
    forecast = Forecast(levels=5, tokens=3.0, seconds=6e-3, plain=5e-3)
    full = prices(batch, context)
    rate = batch * 4.0 / (full.plain + 5 * LEVEL)
    where = Situation(batch, context, may_preview=True)
    found, _ = own.choose(where, rate, forecast, lambda s: prices(s.batch, s.context))
    return 0 if found is None else found.n_passes


def test_a_long_batch_is_previewed_and_a_short_one_is_not() -> None:
    own = foresight(0.99)
    assert chosen(own, 8, 65_536) > 0
    assert chosen(own, 1, 8_192) == 0, "its text is read as fast as its weights"
    assert chosen(own, 8, 4_000) == 0, "below the threshold"


def test_the_less_runs_break_the_earlier_they_pay() -> None:
    passes = [chosen(foresight(a), 4, 16_384) for a in (0.971, 0.975, 0.98, 0.99, 0.999)]
    assert passes == sorted(passes) and passes[-1] > 0 == passes[0]


def test_runs_that_break_are_left_alone_but_looked_at_again() -> None:
    own = foresight(LEAST_AGREEMENT - 0.01)
    taken = [chosen(own, 8, 65_536) for _ in range(2 * LOOK_EVERY)]
    assert [i + 1 for i, n in enumerate(taken) if n] == [LOOK_EVERY, 2 * LOOK_EVERY]


def test_runs_are_judged_up_to_their_first_miss() -> None:
    own = Foresight(RULE, 8, held=0.0, judged=1e-9)
    # A run of 3 that held with one node behind it, a run of 2 whose first token did not, and none.
    accepted = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]).bool()
    teaching = own.judge((3, 2, 0), torch.ones_like(accepted), accepted)
    assert own.agreement == pytest.approx(3 / 4)
    assert teaching[0].all() and teaching[2].all()
    assert teaching[1].tolist() == [True] * 3 + [False] * 3, "behind a miss nothing was looked at"


@pytest.mark.parametrize("depth", [1, 3, 4, 8, 12])
def test_every_plan_fits_what_may_wait(depth: int) -> None:
    for plan in Foresight(RULE, depth).plans:
        assert plan.n_passes * (len(plan.widths) + 2) <= RULE.longest_run
        assert len(plan.widths) + 1 <= depth and plan.rows == len(plan.widths) + 2


def test_expected_tokens_of_a_certain_run_are_all_of_them() -> None:
    own = foresight(1.0)
    quote = Quote(2, 4, 4.0, 100.0, prices(2, 32_768), prices(2, 4_256), prices(2, 0))
    plan = own.plans[0]
    tokens, seconds = own.expected(quote, plan)
    assert tokens == pytest.approx((plan.n_passes + 1) * 4.0, rel=1e-6)
    assert seconds > quote.seconds(quote.full, plan.rows, plan.rows - 1)
