"""One lever off at a time against all on: tokens a second and bytes per token, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aerie.bench.profile.ablation_report import LeverResult, write_ablation
from aerie.bench.profile.ablation_variants import FULL, Variant, variants
from aerie.bench.profile.bytes import round_traffic, total_bytes
from aerie.bench.profile.kernels import emitted
from aerie.bench.profile.point import POLICIES, Filled, Point, room_at
from aerie.bench.profile.session import Session, release
from aerie.bench.record import interval
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore

TURNS = {False: 9, True: 2}  # interleaved, after one that warms up; in a rehearsal
LEAD_IN = 2  # rounds that still share the device with the engine before
ROUNDS = {False: 10, True: 3}  # timed in a turn; in a rehearsal
FIRST_END = {False: 32, True: 4}  # tokens of the request that ends first, where slots finish


@dataclass
class Turn:
    """One stretch of rounds of one engine."""

    seconds: float
    n_tokens: int
    n_rounds: int
    n_bytes: float  # modelled

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.n_tokens / self.seconds


@dataclass
class Contender:
    """A variant's engine and its turns so far."""

    variant: Variant
    shape: SpeculationConfig
    point: Point
    core: EngineCore
    turns: list[Turn] = field(default_factory=list)

    def rounds(self, n_rounds: int) -> Turn:
        """Rounds one after the other, the first ones not timed."""
        for _ in range(LEAD_IN):
            self.core.step()
        begin = time.perf_counter()
        n_tokens = sum(emitted(self.core) for _ in range(n_rounds))
        return Turn(
            time.perf_counter() - begin, n_tokens, n_rounds, n_rounds * self.bytes(self.point.batch)
        )

    def to_the_end(self, filled: Filled, ends: Sequence[int]) -> Turn:
        """Requests that end one after the other, from their first round to the last one's end."""
        ids = filled.open(self.core, ends)
        begin, n_tokens, n_rounds, n_bytes = time.perf_counter(), 0, 0, 0.0
        while not self.core.is_idle:
            n_live = sum(self.core.request(i).ended is None for i in ids)
            n_tokens += emitted(self.core)
            n_rounds += 1
            n_bytes += self.bytes(n_live)
        seconds = time.perf_counter() - begin
        for request_id in ids:
            self.core.forget(request_id)
        return Turn(seconds, n_tokens, n_rounds, n_bytes)

    def bytes(self, n_live: int) -> float:
        """Modelled bytes of a round in the bucket it runs in."""
        load = self.point.load(self.shape, self.variant.graphs, n_live)
        return total_bytes(round_traffic(self.variant.pair, self.shape, load))


def run_ablation(session: Session) -> dict[str, Any]:
    """Every lever at every point; raw turns, a table, and JSON values."""
    results: list[LeverResult] = []
    for point in session.points:
        n_new = _new_tokens(session)
        filled = Filled.read(session.setup, session.pair, point, n_new)
        results += _levers(session, filled, n_new)
        release()
        if point.batch > 1:
            results += _compaction(session, filled, n_new)
        del filled
        release()
        write_ablation(session, results)
    return {
        "points": [result.summary() for result in results],
        "turns": TURNS[session.is_rehearsal],
        "kind": {"times": "measured", "bytes": "modelled"},
        "ok": all(result.ratio.median > 0 for result in results),
    }


def _new_tokens(session: Session) -> int:
    """Tokens every request may write in all its turns."""
    is_small = session.is_rehearsal
    deepest = POLICIES[session.policy].limits.depth + 1
    rounds = (TURNS[is_small] + 1) * (LEAD_IN + ROUNDS[is_small])
    return max(deepest * rounds, 4 * FIRST_END[is_small])


def _levers(session: Session, filled: Filled, n_new: int) -> list[LeverResult]:
    """Engines side by side in turns of some rounds each."""
    contenders = [_open(session, filled.point, own, n_new) for own in variants(session)]
    for contender in contenders:
        filled.open(contender.core, [n_new] * filled.point.batch)
    for turn in range(TURNS[session.is_rehearsal] + 1):
        for contender in contenders:
            found = contender.rounds(ROUNDS[session.is_rehearsal])
            if turn:
                contender.turns.append(found)
    return _results(contenders)


def _compaction(session: Session, filled: Filled, n_new: int) -> list[LeverResult]:
    """Slots that finish one after the other: given up, or kept inert in the full batch's graphs."""
    point, shape = filled.point, POLICIES[session.policy]
    graphs = GraphConfig()
    full = point.load(shape, graphs, point.batch)
    kept = GraphConfig(slots=(full.batch,), rows=(full.verify_rows,))
    setup, pair = session.setup, session.pair
    pairing = [
        Variant(FULL, "slots that finish", setup, pair),
        Variant("compaction", "finished slots inert", setup, pair, kept),
    ]
    contenders = [_open(session, point, own, n_new) for own in pairing]
    first = FIRST_END[session.is_rehearsal]
    ends = [first * (1 + number % 4) for number in range(point.batch)]
    for turn in range(TURNS[session.is_rehearsal] + 1):
        for contender in contenders:
            found = contender.to_the_end(filled, ends)
            if turn:
                contender.turns.append(found)
    return _results(contenders)


def _open(session: Session, point: Point, variant: Variant, n_new: int) -> Contender:
    shape = POLICIES[session.policy]
    room = room_at(point, n_new, variant.graphs)
    return Contender(variant, shape, point, variant.setup.core(variant.pair, shape, room))


def _results(contenders: Sequence[Contender]) -> list[LeverResult]:
    """Ratios are of turns that ran one after the other; the first contender is all on."""
    base = [turn.rate for turn in contenders[0].turns]
    found = []
    for contender in contenders:
        turns = contender.turns
        rates = [turn.rate for turn in turns]
        n_tokens = sum(turn.n_tokens for turn in turns)
        n_rounds = sum(turn.n_rounds for turn in turns)
        found.append(
            LeverResult(
                contender.point,
                contender.variant.lever,
                contender.variant.setting,
                statistics.median(rates),
                1e3 * statistics.median(turn.seconds / turn.n_rounds for turn in turns),
                n_tokens / n_rounds,
                sum(turn.n_bytes for turn in turns) / n_tokens,
                interval([own / full for own, full in zip(rates, base, strict=True)]),
                [vars(turn) for turn in turns],
            )
        )
        print(found[-1].summary(), flush=True)
    return found
