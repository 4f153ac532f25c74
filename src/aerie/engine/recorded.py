"""Recorded graphs that do instead of better ones: to record stops everybody for a moment.

There are hundreds of buckets and shapes, and a recording takes some 50 ms on an H200, six rounds.
So a round whose graph does not exist yet takes a larger one that does, and one recording is due
every so many rounds. No token depends on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from aerie.engine.device_round import Bucket
from aerie.engine.graphs import Graphs
from aerie.speculation.device_policy import Widths


class Recorded:
    """Which graphs exist, and when another may be recorded."""

    def __init__(self, graphs: Graphs, every: int) -> None:
        self._graphs = graphs
        self._every = every  # rounds between two recordings; 0: whenever one is missing
        self._waited = every

    def next_round(self) -> None:
        """A round has begun."""
        self._waited += 1

    def bucket(self, kind: str, wanted: Bucket) -> Bucket:
        """The wanted bucket, or the smallest recorded one that holds what it would."""
        if not self._lacks((kind, wanted)):
            return wanted
        known: list[Bucket] = [key[1] for key in self._graphs.keys if key[0] == kind]
        fitting = [bucket for bucket in known if bucket.holds(wanted)]
        if fitting and not self._is_due:
            return min(fitting, key=lambda b: (b.slots, b.rows, b.columns, b.is_sampled))
        self._waited = 0
        return wanted

    def instead(
        self, rest: Bucket, wanted: Widths, shapes: Sequence[Widths | None]
    ) -> list[Widths]:
        """Recorded shapes to choose from instead of the wanted one; none: it may be had."""
        if not self._lacks(("draft", rest, wanted)):
            return []
        known = [w for w in shapes if w is not None and not self._lacks(("draft", rest, w))]
        if known and not self._is_due:
            return known
        self._waited = 0
        return []

    @property
    def _is_due(self) -> bool:
        return self._waited >= self._every

    def _lacks(self, key: Hashable) -> bool:
        return not self._graphs.has(key)
