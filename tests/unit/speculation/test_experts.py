"""Plans for mixtures of experts: rows that wake experts cost what those cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aerie.costs.table import CostTable, Sample, Surface, load_costs
from aerie.costs.waking import Waking, expected_experts, fit_spread
from aerie.errors import UsageError
from aerie.speculation.offer import Offers
from aerie.speculation.planner import Planner
from aerie.speculation.policy import Situation, TreeShape
from aerie.speculation.running import Floats

# The geometry of gpt-oss-120b; milliseconds of a round, of a row, and of an expert in all layers.
EXPERTS, ACTIVE = 128, 4
BASE, ROW, EXPERT, LEVEL, EXTEND = 2.0, 0.004, 0.05, 0.25, 0.2
BATCHES = (1, 4, 8, 32)
SHAPE = TreeShape(top_k=8, depth=8, verify=32)
N_ROUNDS = 160


def truth(rows: int) -> float:
    """Seconds of a verification: what a round of so many unlike rows really takes."""
    return (BASE + ROW * rows + EXPERT * float(expected_experts(ACTIVE, EXPERTS, rows))) / 1e3


def measured(waking: Waking | None) -> CostTable:
    """As `aerie tune costs` finds it: of a batch that is two texts, whose rows wake few experts."""

    def verify(batch: int, rows: int) -> Sample:
        touched = float(expected_experts(ACTIVE, EXPERTS, rows * min(batch, 2) / batch))
        return Sample(batch, 512, rows, (BASE + ROW * rows + EXPERT * touched) / 1e3, touched)

    sizes = [2**power for power in range(11)]
    samples = [verify(batch, n) for batch in BATCHES for n in sizes if batch <= n <= batch * 32]
    levels = tuple(Sample(b, 512, b * w, LEVEL / 1e3) for b in BATCHES for w in (1, 8))
    extend = tuple(Sample(b, 512, b, EXTEND / 1e3) for b in BATCHES)
    return CostTable(Surface(tuple(samples)), Surface(levels), Surface(extend), {}, waking)


WAKING = Waking(ACTIVE, EXPERTS, EXPERT / 1e3)


def test_touched_experts_follow_uniform_routing() -> None:
    generator = np.random.default_rng(5)
    for rows in (1, 3, 16, 64):
        drawn = [
            len({e for _ in range(rows) for e in generator.choice(EXPERTS, ACTIVE, replace=False)})
            for _ in range(200)
        ]
        assert float(WAKING.touched(rows)) == pytest.approx(np.mean(drawn), rel=0.03)
    assert float(WAKING.touched(1)) == pytest.approx(ACTIVE)
    assert float(Waking(4, 4, 1.0).touched(7)) == 4.0  # every row wakes all of them


def test_the_spread_is_that_of_the_counts() -> None:
    rows = np.array([1.0, 2.0, 8.0, 32.0])
    for spread in (8.0, 40.0, 128.0):
        counted = expected_experts(ACTIVE, spread, rows)
        assert fit_spread(EXPERTS, ACTIVE, rows, counted) == pytest.approx(spread, abs=0.5)


def test_prices_are_those_of_rows_that_are_not_alike() -> None:
    plain = measured(WAKING).prices(32, 512.0, 32 * SHAPE.verify, SHAPE.top_k)
    blind = measured(None).prices(32, 512.0, 32 * SHAPE.verify, SHAPE.top_k)
    for rows in (32, 64, 256, 1024):
        assert plain.verify[rows] == pytest.approx(truth(rows), rel=1e-6)
    assert blind.plain < 0.5 * plain.plain  # two texts, eight experts at most


def test_a_dense_table_is_priced_as_before(tmp_path: Path) -> None:
    dense = measured(None)
    rows = np.arange(4, 129)
    prices = dense.prices(4, 512.0, 128, SHAPE.top_k)
    assert np.array_equal(prices.verify[4:], dense.verify.seconds(4, 512.0, rows))
    # Files of dense models have neither column, and read as they were.
    bare = replace(
        dense, verify=Surface(tuple(replace(s, experts=0.0) for s in dense.verify.samples))
    )
    bare.save(tmp_path / "dense.json")
    text = (tmp_path / "dense.json").read_text()
    assert "experts" not in text and "waking" not in text
    assert load_costs(tmp_path / "dense.json") == bare


def test_a_table_of_experts_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    measured(WAKING).save(path)
    assert load_costs(path) == measured(WAKING)
    text = path.read_text()
    for good, bad in ((f'"n_spread": {EXPERTS}', '"n_spread": 1'), ('"n_active"', '"n"')):
        path.write_text(text.replace(good, bad))
        with pytest.raises(UsageError, match="waking is"):
            load_costs(path)


def planner(costs: CostTable) -> Planner:
    return Planner(SHAPE, costs, 0, Offers(None, SHAPE.verify, "cpu"), looks=True)


def masses(survival: float, depth: int) -> Floats:
    """K3's gains of the best k nodes of a level: one good one."""
    mass = survival**depth
    return np.cumsum([0.0, mass, *[mass / 64] * (SHAPE.top_k - 1)])


class Draft:
    """Requests whose best path survives a level by `survival`; a level's next best are worth less.

    What is drafted and verified is counted with the true price, whatever a policy believes.
    """

    def __init__(self, batch: int, survival: float) -> None:
        self.situation = Situation(batch=batch, context=512.0)
        self.survival = survival

    def tokens(self, depth: int) -> float:
        """Of a chain, all requests together."""
        return self.situation.batch * sum(self.survival**level for level in range(depth + 1))

    def rate(self, depth: int) -> float:
        """Tokens a second of a chain of so many drafted tokens, 0: plain decoding."""
        rows = self.situation.batch * (1 + depth)
        drafting = (EXTEND + LEVEL * (depth - 1)) / 1e3 if depth else 0.0
        return self.tokens(depth) / (truth(rows) + drafting)

    def planned(self, policy: Planner) -> float:
        """The rate of what a planner settles for, once its averages are those of this text."""
        learnt, n = policy.learnt.running, SHAPE.depth
        survival = self.survival ** np.arange(1, n + 1)
        learnt.accepted[:], learnt.verified[:] = survival, 1.0
        learnt.gains[:], learnt.grown[:] = survival, survival * self.survival
        tokens = seconds = 0.0
        for _ in range(N_ROUNDS):
            growth = policy.open(self.situation)
            depth = 0
            while growth is not None and depth < n:
                depth += 1
                gains = masses(self.survival, depth)
                if not growth.next_width(depth, lambda g=gains: g):  # type: ignore[misc]
                    break
            spent = self.tokens(depth) / self.rate(depth)
            tokens, seconds = tokens + self.tokens(depth), seconds + spent
            if growth is not None:
                learnt.pace(self.situation.batch, self.tokens(depth), spent, self.rate(depth))
        return tokens / seconds


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("survival", [0.3, 0.5, 0.7, 0.85])
def test_a_modelled_race_is_never_lost(batch: int, survival: float) -> None:
    text = Draft(batch, survival)
    best = max(text.rate(depth) for depth in (0, 1, 3, 5, 7))
    assert text.planned(planner(measured(WAKING))) >= 0.98 * best


def depth_of(costs: CostTable, batch: int, survival: float) -> int:
    """Levels of one round, before anything was learnt."""
    growth = planner(costs).open(Situation(batch=batch, context=512.0))
    for depth in range(1, SHAPE.depth + 1):
        gains = masses(survival, depth)
        if growth is None or not growth.next_width(depth, lambda g=gains: g):  # type: ignore[misc]
            return 0 if growth is None else depth
    return SHAPE.depth


def test_trees_are_narrower_where_rows_wake_experts() -> None:
    free = measured(Waking(ACTIVE, ACTIVE, EXPERT / 1e3))  # all rows wake the same
    for batch in (4, 8):
        narrow = depth_of(measured(WAKING), batch, 0.6)
        assert narrow < depth_of(free, batch, 0.6), batch
        assert narrow <= depth_of(measured(None), batch, 0.6)


@pytest.mark.parametrize("batch", BATCHES)
def test_rows_are_agreed_on_where_they_wake_no_experts(batch: int) -> None:
    """Where they do, every tree decides by itself: the last ones were other trees."""
    for costs, is_agreed in ((measured(WAKING), batch > 1), (dense(), True)):
        own = Planner(SHAPE, costs, 0, Offers((4, 8, 16, 32, 64, 128), SHAPE.verify, "cpu"), False)
        growth = own.open(Situation(batch=batch, context=512.0))
        assert own.prepare(growth, batch, is_steady=True) is None  # nothing was seen yet
        own.learnt.worth.follow(batch, 0.9 ** np.arange(1, 8 * batch), 32 * batch, 1.0 * batch)
        agreed = own.prepare(growth, batch, is_steady=True)
        assert (agreed is not None) == is_agreed
        assert own.prepare(growth, batch, is_steady=False) is None


def dense() -> CostTable:
    """The same rows without experts."""
    table = measured(None)
    samples = (replace(s, seconds=(BASE + ROW * s.rows) / 1e3) for s in table.verify.samples)
    return replace(table, verify=Surface(tuple(samples)))
