"""The ranks of a target: a leader that tells what it is about to run, followers that run it too.

The engine above does not know: it has a `Decoder`, whose passes and moved slots become plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import Rows
from aerie.errors import AerieError, RankLostError
from aerie.models.decoder import Decoder, DecoderOutput, NearPass, Watched
from aerie.parallel.group import Group
from aerie.parallel.plan import Broadcasts, Plan, of_rows
from aerie.parallel.processes import Followers


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadingDecoder(Decoder):
    """Rank 0's part of a target, which looks like a whole one."""

    followers: Followers
    broadcasts: Broadcasts
    numbers: WeakKeyDictionary[KVPool, int] = field(default_factory=WeakKeyDictionary)
    next_number: Iterator[int] = field(default_factory=count)
    released: list[int] = field(default_factory=list)  # a collector may add to it at any moment
    moves: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # one, or none

    @property
    def lost(self) -> AerieError | None:
        """The rank that is gone, if one is."""
        return self.followers.lost

    @torch.inference_mode()
    def forward(
        self,
        rows: Rows,
        pool: KVPool,
        logit_rows: Tensor | None,
        taps: tuple[int, ...] = (),
        near: NearPass | None = None,
        watched: Watched | None = None,
    ) -> DecoderOutput:
        """As any decoder, on all ranks; previews are refused before anything is loaded."""
        assert near is None and watched is None, "a split target has no previews"
        self._check_taps(taps)
        plan, number = of_rows(rows), self.numbers[pool]
        if logit_rows is None:  # a plan names them
            logit_rows = torch.arange(rows.n_rows, device=rows.tokens.device)
        arrays = {**plan.arrays, "logit_rows": logit_rows, "taps": taps}
        with self._unbroken():
            self._send({**plan.numbers, "pool": number}, arrays)
            return super().forward(rows, pool, logit_rows, taps)

    def allocate_pool(self, n_slots: int) -> KVPool:
        """Rank 0's heads of it; the others make theirs, and let go of them when this is gone."""
        pool, number = super().allocate_pool(n_slots), next(self.next_number)
        self.numbers[pool] = number
        finalize(pool, self.released.append, number).atexit = False
        with self._unbroken():
            self._send({"pool": number, "n_slots": n_slots}, {})
        return pool

    def moved(self, pool: KVPool, source: Tensor, destination: Tensor) -> None:
        """The other ranks copy their slots when the next plan says so."""
        if self.moves:
            with self._unbroken():
                self._send({}, {})
        is_real = destination > 0
        self.moves.append((self.numbers[pool], source[is_real], destination[is_real]))

    def _send(self, numbers: dict[str, int], arrays: dict[str, Any]) -> None:
        arrays["released"] = [self.released.pop() for _ in range(len(self.released))]
        if self.moves:
            numbers["moved"], arrays["source"], arrays["destination"] = self.moves.pop()
        self.broadcasts.send(Plan(numbers, arrays))

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """What is left half done leaves the other ranks waiting: there is no way back."""
        try:
            yield
        except RankLostError as error:
            raise self.followers.blame(error) from error
        except BaseException as error:
            self.followers.lose(RankLostError(f"a pass was cut off by {error!r:.200}"))
            raise


def lead(part: Decoder, group: Group, followers: Followers) -> LeadingDecoder:
    """Make rank 0's part the target of an engine; the followers end with it."""
    own = {entry.name: getattr(part, entry.name) for entry in fields(Decoder)}
    target = LeadingDecoder(**own, followers=followers, broadcasts=Broadcasts(group))
    finalize(target, followers.end)
    return target


def follow(part: Decoder, group: Group) -> None:
    """Run plans for ever; RankLostError where another rank is gone."""
    broadcasts, pools = Broadcasts(group), dict[int, KVPool]()
    while True:
        plan = broadcasts.receive()
        numbers, arrays, rows = plan.numbers, plan.arrays, plan.rows()
        if len(arrays["source"]):
            pools[numbers["moved"]].move(arrays["source"], arrays["destination"])
        for number in arrays["released"].tolist():
            del pools[number]
        if numbers["n_slots"] > 0:
            pools[numbers["pool"]] = part.allocate_pool(numbers["n_slots"])
        if rows is not None:
            taps = tuple(arrays["taps"].tolist())
            part.forward(rows, pools[numbers["pool"]], arrays["logit_rows"], taps)
