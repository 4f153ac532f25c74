"""The planner over captured rounds: shapes before the launch, rows agreed on, lessons after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.speculation.calibration import calibrated
from aerie.speculation.device_policy import Lesson, Widths
from aerie.speculation.planner import Planner, Round
from aerie.speculation.policy import Situation
from aerie.speculation.round_ops import Offer, RoundOps
from aerie.speculation.tree import DraftTree, Verdict
from aerie.speculation.worth import Floats, Worth

# Widths a planned draft may have, all levels alike: a graph for every depth and width, so few of
# them. A level of 8 nodes costs a tenth more than one of a single node for one request, and two
# thirds more for 32 (H200). Without 2, simulated at that table's prices, 8 x 8K was 6 % slower.
WIDTHS = (1, 2, 4, 8)
# Share of the last draft's gains in what the next one is planned by: the text has changed since.
LAST = 0.5
# What a level that was never drafted is taken to gain by its best k nodes.
FIRST_GAIN, FIRST_DECAY = 0.6, 0.5


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What the choice needs for one bucket of requests: written by the host before a launch.

    The captured choice begins with the copy to the device, so that nothing else is launched.
    """

    sizes: Tensor  # [S] i64, rows on offer, on the device
    row_sizes: NDArray[np.int64]  # the same here
    host: Tensor  # [1 + S + corrections] f64: rate, seconds, corrections; pinned for a GPU
    device: Tensor

    def parts(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rate [], seconds [S] and corrections, flat, of either vector."""
        n_sizes = len(self.row_sizes)
        return vector[0], vector[1 : 1 + n_sizes], vector[1 + n_sizes :]


class PlannedRounds:
    """The planner over captured rounds: one plan behind, by the gains of the last report."""

    def __init__(
        self, planner: Planner, row_sizes: tuple[int, ...], device: str, ops: RoundOps
    ) -> None:
        self.planner = planner
        self.ops = ops
        self.worth = Worth()
        self.learns = True
        self.row_sizes = row_sizes
        self.device = device
        self._inputs: dict[int, _Inputs] = {}
        self._opened: Round | None = None  # plans of the draft under way,
        self._pending: Round | None = None  # and of the trees that wait for their verdict
        shape = planner.shape
        guess = FIRST_GAIN * (1 - FIRST_DECAY ** np.arange(shape.top_k + 1))
        self._gains = np.tile(guess.astype(np.float32), (shape.depth, 1))

    def open(self, situation: Situation) -> Widths | None:
        """The depth and width that are worth most by the last gains."""
        self._pending = self._opened
        growth = self.planner.open(situation)
        plan = self.planner.last
        self._opened = plan
        if growth is None or plan is None:
            return None
        values = self._values(plan)
        at, n_levels = np.unravel_index(int(values.argmax()), values.shape)
        if values[at, n_levels] <= 0:
            return self._adopt(plan, ())
        return self._adopt(plan, (self._widths[at],) * (int(n_levels) + 1))

    def _values(self, plan: Round) -> Floats:
        """[width, levels]: tokens of a draft so wide and deep, less those its time is worth.

        Gains are averages over requests and rounds. Of a level that brings p tokens a request on
        average, about a share p of the requests have good nodes there, and no others are chosen:
        with all of them paid for, drafts at 32 x 1K were so shallow that a chain of 7 won.
        """
        depths = np.arange(1, self.planner.shape.depth)[:, None]
        level = self.planner.level(depths, self._gains[:-1].astype(np.float64))
        share = np.minimum(level.tokens / plan.situation.batch, 1.0)
        worth = level.tokens - plan.rate * share * level.verify
        # All levels are as wide as the widest; of their children any number may be chosen.
        worth = np.maximum.accumulate(worth, axis=1)[:, self._widths]
        values: Floats = (worth - plan.rate * plan.prices.draft[self._widths]).cumsum(axis=0).T
        return values

    def _adopt(self, plan: Round, widths: Widths) -> Widths:
        """A plan is judged by what is drafted, not by what was asked for."""
        plan.widths = list(widths)
        plan.gains = [float(self._gains[depth][width]) for depth, width in enumerate(widths)]
        plan.seconds = plan.prices.extend + sum(float(plan.prices.draft[w]) for w in widths)
        return widths

    def settle(self, known: Sequence[Widths]) -> Widths:
        """The cheapest of those that are deep and wide enough; else the deepest."""
        plan = self._opened
        assert plan is not None, "a round that does not draft has no shape to settle on"
        depth, width = len(plan.widths), max(plan.widths, default=0)
        enough = [w for w in known if len(w) >= depth and max(w, default=0) >= width]
        if enough:
            return self._adopt(plan, min(enough, key=lambda w: (len(w), w)))
        return self._adopt(plan, max(known, key=lambda w: (len(w), w)))

    @property
    def _widths(self) -> list[int]:
        top_k = self.planner.shape.top_k
        return [width for width in WIDTHS if width < top_k] + [top_k]

    @property
    def shapes(self) -> tuple[Widths | None, ...]:
        """Nothing, the root's children alone, and every width with every number of levels."""
        levels = range(1, self.planner.shape.depth)
        return (None, (), *((width,) * n for width in self._widths for n in levels))

    def most_rows(self, n_slots: int) -> int:
        """The largest size on offer."""
        return int(self.inputs(n_slots).row_sizes[-1])

    def prepare(self, n_slots: int, is_steady: bool) -> int | None:
        """Leave the plan's rate, prices and corrections where the next launch takes them from.

        In a steady batch the number of rows is agreed on by what the last ones were worth: a
        verification that is launched in time gains more than the rows that would have paid.
        """
        plan, inputs = self._opened, self.inputs(n_slots)
        if plan is None:
            return n_slots if is_steady else None  # roots alone
        priced = plan.prices.verify
        # Rows beyond what the batch could ever verify are not for sale.
        seconds = priced[np.minimum(inputs.row_sizes, len(priced) - 1)].copy()
        seconds[1:][inputs.row_sizes[1:] >= len(priced)] = np.inf
        agreed = None
        batch = plan.situation.batch
        if is_steady:
            # An empty slot's root is verified too.
            rows = inputs.row_sizes - (n_slots - batch)
            best = self.worth.best(batch, rows, seconds, plan.rate)
            if best is not None:
                agreed = int(inputs.row_sizes[best])
                seconds[:best], seconds[best], seconds[best + 1 :] = np.inf, 0.0, np.inf
        rate, offered, corrections = inputs.parts(inputs.host)
        rate.fill_(plan.rate)
        offered.copy_(torch.from_numpy(seconds))
        corrections.copy_(torch.from_numpy(self.planner.calibration.table().reshape(-1)))
        return agreed

    def select(
        self, tree: DraftTree, widths: Widths, chosen_out: Tensor, count_out: Tensor
    ) -> None:
        """The forest that is worth most at the plan's rate, among the sizes on offer."""
        inputs = self.inputs(tree.tokens.shape[0])
        inputs.device.copy_(inputs.host, non_blocking=True)
        offer = Offer(inputs.sizes, inputs.device, self.planner.shape.verify)
        self.ops.choose_planned(tree, widths, offer, chosen_out, count_out)

    def learn(self, lesson: Lesson) -> None:
        """Calibrate on the verdict of the plan before; keep the gains for the next."""
        n_levels = len(self._opened.widths) + 1 if self._opened is not None else 0
        self._gains[:n_levels] += LAST * (lesson.gains[:n_levels] - self._gains[:n_levels])
        plan = self._pending
        if plan is None or not any(n > 1 for n in lesson.n_rows):
            return
        rows = torch.arange(lesson.scores.shape[1])
        chosen = rows < torch.tensor(lesson.n_rows)[:, None]
        n_verified = min(sum(lesson.n_rows), len(plan.prices.verify) - 1)
        plan.seconds += float(plan.prices.verify[n_verified])
        none = torch.zeros(len(lesson.n_rows), dtype=torch.int64)
        tree = DraftTree(lesson.depths, lesson.scores, lesson.depths, lesson.depths, none)
        self._appraise(tree, chosen)
        verdict = Verdict(lesson.path, none, none, none)
        # The planner's own round is the one that drafts now; the verdict is on the one before.
        current, self.planner.last = self.planner.last, plan
        self.planner.learn(tree, chosen, verdict)
        self.planner.last = current

    def _appraise(self, tree: DraftTree, chosen: Tensor) -> None:
        """Remember what the rows of a round were thought to be worth."""
        corrections = torch.from_numpy(self.planner.calibration.table()).float()
        # Depth 0: rows do not know their parents, and are worth no more than them anyway.
        weights = calibrated(tree, corrections, 0)[chosen].double().numpy()
        self.worth.follow(len(chosen), weights, int(self.row_sizes[-1]))

    def inputs(self, n_slots: int) -> _Inputs:
        """The buffers of a bucket, made when it is first met and never moved."""
        if n_slots not in self._inputs:
            most = n_slots * self.planner.shape.verify
            sizes = [size for size in self.row_sizes if n_slots <= size <= most] or [n_slots]
            n_numbers = 1 + len(sizes) + self.planner.calibration.table().size
            host = torch.ones(n_numbers, dtype=torch.float64)
            self._inputs[n_slots] = _Inputs(
                sizes=torch.tensor(sizes, device=self.device),
                row_sizes=np.array(sizes),
                host=host.pin_memory() if self.device.startswith("cuda") else host,
                device=host.to(self.device, copy=True),
            )
        return self._inputs[n_slots]
