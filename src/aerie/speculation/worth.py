"""What the verified rows of a batch were worth by rank, and how many to agree on beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aerie.speculation.calibration import Calibration
from aerie.speculation.running import Floats, Running, Spell

MEMORY = 0.8  # share of the past, a round
# Beyond the rows that were verified, worth is taken to fall as a power of the rank, by their half.
LEAST_POWER, MOST_POWER = 0.5, 4.0


@dataclass(eq=False)
class Worth:
    """Expected tokens of the best row of a batch, of the second best, and so on; by requests."""

    curves: dict[int, Floats] = field(default_factory=dict)

    def follow(self, batch: int, weights: Floats, most: int, left: float) -> None:
        """Take in the acceptance probabilities of one round's rows; sizes go up to `most`.

        `left` tokens at most are expected of all rows beyond those.
        """
        n_rows = len(weights)
        if n_rows <= batch:
            return  # roots alone tell nothing
        seen = -np.sort(-weights)
        half, last = (max(float(seen[rank]), 1e-9) for rank in (n_rows // 2 - 1, n_rows - 1))
        power = np.clip(np.log(half / last) / np.log(2.0), LEAST_POWER, MOST_POWER)
        beyond = last * (n_rows / np.arange(n_rows + 1, max(most, n_rows) + 1)) ** power
        beyond *= min(1.0, left / max(float(beyond.sum()), 1e-9))
        now = np.concatenate((seen, beyond))[:most]
        old = self.curves.get(batch)
        self.curves[batch] = now if old is None else MEMORY * old + (1 - MEMORY) * now

    def best(
        self, batch: int, sizes: NDArray[np.int64], seconds: Floats, rate: float
    ) -> int | None:
        """Which size is worth most at a rate; None while nothing is known."""
        curve = self.curves.get(batch)
        if curve is None:
            return None
        tokens = curve.cumsum()[np.minimum(sizes, len(curve)) - 1]
        return int((tokens - rate * seconds).argmax())


@dataclass(eq=False)
class Learnt:
    """All that rounds have taught; no token ever depends on it."""

    running: Running
    calibration: Calibration = field(default_factory=Calibration)
    spell: Spell = field(default_factory=Spell)
    worth: Worth = field(default_factory=Worth)
