"""One lever off at a time against all on: tokens a second and bytes per token, in turns."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aerie.assemble.numerics import head_numerics
from aerie.attention.contract import PrepareAttention
from aerie.bench.bytes import round_traffic, total_bytes
from aerie.bench.profile.session import POLICIES, Point, Session, release, room_at
from aerie.bench.record import formatted, interval, page
from aerie.bench.round.setup import PAGE, RoundSetup
from aerie.bench.round.speed import LEAD_IN, Clocked, n_tokens_of
from aerie.bench.turns import in_turns
from aerie.config import GraphConfig
from aerie.engine.engine import EngineCore
from aerie.models.draft_vocabulary import head_ids, slice_head
from aerie.models.inflate.embed import LargePair

FULL = "all on"
SPARE_ROUNDS = 32  # of those who are read first, while the others are read
KIND = "measured; bytes modelled"
COLUMNS = {
    "point": "{context}x{batch}",
    "lever off": "{lever}",
    "setting": "{setting}",
    "tokens/s": "{tokens_per_second:.1f}",
    "ratio to all on": "{ratio_to_all_on[0]:.3f} ({ratio_to_all_on[1]:.3f} to"
    " {ratio_to_all_on[2]:.3f})",
    "ms a round": "{round_ms:.3f}",
    "tokens a round": "{tokens_per_round:.2f}",
    "GB a token": "{gigabytes:.3f}",
}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    turns: int = 9  # after one that warms up
    rounds: int = 10  # timed in a turn
    first_end: int = 32  # tokens of the request that ends first, where slots finish


REHEARSAL = Plan(2, 3, 4)


@dataclass(frozen=True, eq=False)
class Variant:
    """An engine of the comparison; `lever` is the one thing that is off."""

    lever: str
    setting: str
    setup: RoundSetup
    pair: LargePair
    graphs: GraphConfig = field(default_factory=GraphConfig)


def variants(session: Session) -> list[Variant]:
    """All on, then one lever off at a time."""
    setup, pair = session.setup, session.pair
    size = pair.head.summary.geometry.draft_vocab_size
    library = replace(setup, linear="library")
    others = vocabularies(session).items()
    return [
        Variant(FULL, f"{size} draft ids", setup, pair),
        Variant("graphs", "called one by one", replace(setup, engine="direct"), pair),
        Variant("tuned products", "cuBLAS", library, session.shared("library", library.load)),
        Variant("tuned attention", "one tile for all", setup, untuned(setup, pair)),
        *(Variant("draft vocabulary", n, setup, session.shared(n, make)) for n, make in others),
    ]


def untuned(setup: RoundSetup, pair: LargePair) -> LargePair:
    """The pair with one attention tile for every shape; on a CPU there is nothing to untune."""
    if not setup.device.startswith("cuda"):
        return pair
    backend = importlib.import_module("aerie.attention.triton")
    # A common choice where nothing was measured: square blocks, two in flight, two programs.
    tile = backend.Tile(block_m=64, block_n=64, n_warps=4, n_stages=3, per_processor=2)
    attention: PrepareAttention = backend.TritonAttention(
        backend.one_tile(tile), backend.TritonOptions(page_size=PAGE)
    )
    return LargePair(
        replace(pair.target, prepare_attention=attention),
        replace(pair.head, prepare_attention=attention),
    )


def vocabularies(session: Session) -> dict[str, Callable[[], LargePair]]:
    """Heads with more and with fewer draft ids than the full engine's.

    An inflated head's further rows are never proposed, so these cost what they cost without
    changing a proposal; what fewer live ids do to acceptance is in reports/draft_vocabulary.md.
    """
    pair = session.pair
    ids = head_ids(pair.head)
    fewer = 16384 if len(ids) > 16384 else len(ids) // 2
    dense = head_numerics(session.setup.model, PAGE).dense

    def sliced() -> LargePair:  # its first ids: an inflated pair's live ones are low
        return LargePair(pair.target, slice_head(pair.head, ids[:fewer], dense))

    found: dict[str, Callable[[], LargePair]] = {f"{fewer} draft ids": sliced}
    whole = pair.target.geometry.vocab_size

    def widened() -> LargePair:
        return LargePair(pair.target, session.setup.load(draft_vocabulary=whole).head)

    if session.setup.geometry is not None and len(ids) < whole:
        found[f"{whole} draft ids"] = widened
    return found


@dataclass(frozen=True)
class Turn:
    """One stretch of rounds of one engine."""

    seconds: float
    tokens: int
    rounds: int
    bytes: float  # modelled


@dataclass(eq=False)
class Contender:
    """A variant's engine and its turns so far."""

    place: dict[str, Any]  # what rows name it by
    core: EngineCore
    bytes: Callable[[int], float]  # modelled, of a round with so many live requests
    turns: list[Turn] = field(default_factory=list)

    def rounds(self, n_rounds: int) -> Turn:
        """Rounds one after the other, the first ones not timed."""
        clocked = Clocked(self.core)
        clocked.block(n_rounds)
        n_bytes = n_rounds * self.bytes(self.place["batch"])
        return Turn(sum(clocked.wall) / 1e3, clocked.emitted, n_rounds, n_bytes)

    def to_the_end(self, point: Point, ends: Sequence[int]) -> Turn:
        """Requests that end one after the other, from their first round to the last one's end."""
        ids = point.open(self.core, ends)
        n_tokens, live, begin = 0, list[int](), time.perf_counter()
        while not self.core.is_idle:
            live.append(sum(self.core.request(i).ended is None for i in ids))
            n_tokens += n_tokens_of(self.core.step())
        seconds = time.perf_counter() - begin
        for request_id in ids:
            self.core.forget(request_id)
        return Turn(seconds, n_tokens, len(live), sum(map(self.bytes, live)))

    def summary(self, base: Contender) -> dict[str, Any]:
        """JSON values; ratios are of turns that ran one after the other."""
        rates, others = ([t.tokens / t.seconds for t in own.turns] for own in (self, base))
        n_tokens = sum(turn.tokens for turn in self.turns)
        n_rounds = sum(turn.rounds for turn in self.turns)
        ratio = interval([own / other for own, other in zip(rates, others, strict=True)])
        round_ms = 1e3 * statistics.median(turn.seconds / turn.rounds for turn in self.turns)
        return {
            **self.place,
            "tokens_per_second": round(statistics.median(rates), 1),
            "round_ms": round(round_ms, 4),
            "tokens_per_round": round(n_tokens / n_rounds, 3),
            "effective_bytes_per_token": round(sum(t.bytes for t in self.turns) / n_tokens),
            "ratio_to_all_on": [round(value, 4) for value in vars(ratio).values()],
            "kind": KIND,
        }

    def rows(self, policy: str) -> list[dict[str, Any]]:
        """A row for each turn."""
        rounded = [
            {**vars(turn), "seconds": round(turn.seconds, 6), "bytes": round(turn.bytes)}
            for turn in self.turns
        ]
        return [
            {**self.place, "policy": policy, "turn": number, **own, "kind": KIND}
            for number, own in enumerate(rounded)
        ]


def run_ablation(session: Session) -> dict[str, Any]:
    """Every lever at every point; raw turns, a table, and JSON values."""
    plan = REHEARSAL if session.is_rehearsal else Plan()
    points: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for point in session.points:
        for compare in (_levers, _compaction) if point.batch > 1 else (_levers,):
            found = compare(session, point, plan)
            points += [own.summary(found[0]) for own in found]
            turns += [row for own in found for row in own.rows(session.policy)]
            del found
            release()
        write_ablation(session, points, turns)
    return {
        "points": points,
        "turns": plan.turns,
        "kind": {"times": "measured", "bytes": "modelled"},
        "ok": all(point["ratio_to_all_on"][0] > 0 for point in points),
    }


def write_ablation(
    session: Session, points: Sequence[dict[str, Any]], turns: Sequence[dict[str, Any]]
) -> None:
    """The CSV of turns and the page."""
    name, origin = f"ablation_{session.device_name}", session.origin("ablation")
    origin.write_csv(session.out / "raw" / f"{name}.csv", turns)
    rows = [{**own, "gigabytes": own["effective_bytes_per_token"] / 1e9} for own in points]
    made = page("ablation", points=formatted(COLUMNS, rows), origin=origin.lines())
    (session.out / f"{name}.md").write_text(made, encoding="utf-8")


def _levers(session: Session, point: Point, plan: Plan) -> list[Contender]:
    """Engines side by side in turns of some rounds each; the first is all on."""
    depth = POLICIES[session.policy].limits.depth
    n_new = (depth + 1) * ((plan.turns + 1) * (LEAD_IN + plan.rounds) + SPARE_ROUNDS)
    found = [_contender(session, point, one, n_new) for one in variants(session)]
    for contender in found:
        point.open(contender.core, [n_new] * point.batch)
    return _run(found, plan, lambda contender: contender.rounds(plan.rounds))


def _compaction(session: Session, point: Point, plan: Plan) -> list[Contender]:
    """Slots that finish one after the other: given up, or kept inert in the full batch's graphs."""
    setup, pair = session.setup, session.pair
    full = point.load(POLICIES[session.policy], GraphConfig(), point.batch)
    kept = GraphConfig(slots=(full.batch,), rows=(full.verify_rows,))
    pairing = (
        Variant(FULL, "slots that finish", setup, pair),
        Variant("compaction", "finished slots inert", setup, pair, kept),
    )
    ends = [plan.first_end * (1 + number % 4) for number in range(point.batch)]
    found = [_contender(session, point, one, max(ends)) for one in pairing]
    return _run(found, plan, lambda contender: contender.to_the_end(point, ends))


def _contender(session: Session, point: Point, own: Variant, n_new: int) -> Contender:
    """An engine with room for the point."""
    shape = POLICIES[session.policy]

    def n_bytes(n_live: int) -> float:  # in the bucket that it runs in
        return total_bytes(round_traffic(own.pair, shape, point.load(shape, own.graphs, n_live)))

    core = own.setup.core(own.pair, shape, room_at(point, n_new, own.graphs))
    place = {**vars(point), "lever": own.lever, "setting": own.setting}
    return Contender(place, core, n_bytes)


def _run(found: list[Contender], plan: Plan, play: Callable[[Contender], Turn]) -> list[Contender]:
    ways = {str(number): partial(play, contender) for number, contender in enumerate(found)}
    for contender, turns in zip(found, in_turns(ways, plan.turns).values(), strict=True):
        contender.turns = turns
    return found
