"""`aerie bench engine`: the planner beside plain decoding, fixed trees, CAST and the oracle.

An experiment as any other, of the built-in pair on a CPU; what is added here is what the planner
thought its rounds cost, and the best that hindsight would have planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.assemble.choices import CHUNKS
from aerie.assemble.sizes import tree_shape
from aerie.bench.bed import Run
from aerie.bench.contract import (
    CAST,
    PLAIN,
    PLANNER,
    Contract,
    DecodeTerms,
    MeasureTerms,
    MemoryTerms,
    ModelTerms,
    Place,
    PolicyTerms,
    Scenario,
)
from aerie.bench.experiment import Experiment, Note
from aerie.bench.plots import draw_engine
from aerie.bench.record import Interval, shown, write_csv, write_json
from aerie.bench.rivals import best_choice, record
from aerie.bench.rows import Row
from aerie.bench.summary import acceptance, against, best_fixed, pairs, point
from aerie.bench.transformers_rival import against_transformers
from aerie.bench.watched import WatchedBed
from aerie.by_context import ByContext
from aerie.config import PlannerConfig, SpeculationConfig
from aerie.costs.table import CostTable
from aerie.speculation.policy import Situation
from aerie.text.heldout import Piece, read_tokens

if TYPE_CHECKING:
    from rich.table import Table

SHORT = 512
CUT = 64  # tokens between the ends of prompts that are cut from one document
DOCUMENTS = 2  # long prompts of one point come from so many documents
ORACLE_TOKENS = 512  # recorded tokens of a place, all texts together, each as long as its runs
POLICIES = {
    PLAIN: PolicyTerms("plain"),
    "chain3": PolicyTerms("fixed", 1, 3, 4),
    "chain5": PolicyTerms("fixed", 1, 5, 6),
    "chain7": PolicyTerms("fixed", 1, 7, 8),
    "tree16": PolicyTerms("fixed", 8, 5, 16),
    "tree32": PolicyTerms("fixed", 8, 5, 32),
    "tree60": PolicyTerms("fixed", 8, 6, 60),
    CAST: PolicyTerms("cast"),
    PLANNER: PolicyTerms("planner"),
}
# A point fails only if its whole interval lies below.
FLOORS = {"to_plain": 0.97, "to_best_fixed": 0.95, "regret": 0.15}
# One request with a short context: the floors a newcomer's first run is held to.
ALONE = {"to_plain": 1.6, "accepted": 4.0}


@dataclass(frozen=True)
class Terms:
    """Everything needed to run the benchmark again."""

    batches: tuple[int, ...] = (1, 4, 8, 16)
    contexts: tuple[int, ...] = (512, 8192)
    # New tokens of a run, all requests together, and never fewer than `least` for each.
    tokens: int = 256
    least: int = 32
    repeats: int = 9

    def contract(self) -> Contract:
        """The same as an experiment's."""
        longest, most = max(self.contexts), max(self.batches)
        own = SHORT + 2 * self.tokens + 512  # positions that a request shares with no other
        kv_tokens = 4 * longest + most * own + 128 * SHORT
        names, least = tuple(POLICIES), self.least
        scenarios = tuple(
            Scenario(f"batch {n}", (n,), self.contexts, names, max(self.tokens // n, least),
                     groups=self.repeats)
            for n in self.batches
        )  # fmt: skip
        return Contract(
            "engine",
            ModelTerms("built-in", "none", "float32", "cpu", "numpy", "direct"),
            DecodeTerms(),
            MemoryTerms(kv_tokens, most, CHUNKS["cpu"][0], longest + own),
            MeasureTerms(self.repeats),
            POLICIES,
            scenarios,
        )


@dataclass(eq=False)
class EngineExperiment(Experiment):
    """Keeps the runs of a place beside their rows."""

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    distinct: list[tuple[int, ...]] = field(default_factory=list)  # prompts of the place

    def open_bed(self) -> WatchedBed:
        """With the costs of this machine."""
        return WatchedBed(self.contract, self.setup, self.pair, self.planner)

    def choose(self, place: Place) -> tuple[list[Piece], list[float]]:
        """Other prompts every turn where they are short; each is read once, by the planner."""
        self.bed.forget()
        self.runs.clear()
        groups_of = choose_prompts(place.context, self.book.encode)
        prompts = [
            Piece(f"{place.context}.{turn}.{number}", tuple(tokens))
            for turn in range(place.scenario.groups)
            for number, tokens in enumerate(groups_of(place.batch, turn))
        ]
        self.distinct = list(dict.fromkeys(prompt.tokens for prompt in prompts))
        self.note(f"{place}: reading {len(self.distinct)} prompts")
        cold = [own for own in self.bed.read(self.distinct, PLANNER) if own is not None]
        return prompts, cold

    def accept(self, place: Place, policy: str, run: Run) -> None:
        """Every run counts."""
        self.runs.setdefault(policy, []).append(run)

    def by_context(self, policy: str) -> dict[str, Any]:
        """Mean acceptance lengths of a policy's runs."""
        counts = [own.by_context for run in self.runs[policy] for own in run.statistics]
        return ByContext.total(counts).lengths()


def choose_prompts(
    context: int, encode: Callable[[str], Sequence[int]]
) -> Callable[[int, int], list[list[int]]]:
    """Prompts of a context: (batch, repeat) to token lists.

    Short ones are held-out documents' own beginnings, other ones every repeat. Long ones are cut
    from a few documents, some tokens apart, the same every repeat: a document is then read once.
    """
    if context <= SHORT:
        return lambda batch, repeat: read_tokens(encode, context, batch, offset=repeat * batch)
    documents = read_tokens(encode, context, DOCUMENTS)
    return lambda batch, repeat: [
        documents[index % DOCUMENTS][: context - CUT * (index // DOCUMENTS)]
        for index in range(batch)
    ]


@dataclass(frozen=True)
class Found:
    """What a session measured: the record that reports are made of, and the runs behind it."""

    record: dict[str, Any]
    rows: list[Row]
    costs: CostTable

    def table(self) -> Table:
        """Speed of every policy, one row a place; the planner's share of the best beside it."""
        places: dict[tuple[int, int], dict[str, Any]] = {
            (own["batch"], own["context"]): dict(own) for own in self.record["planner"]
        }
        for own in self.record["points"]:
            places[own["batch"], own["context"]][own["policy"]] = own["ratio_to_plain"]
        columns = {"batch": "{batch}", "context": "{context}"}
        columns |= {name: f"{{{name}:.2f}}" for name in POLICIES}
        columns |= {"of best fixed": "{to_best_fixed[median]:.2f} {best_fixed}"}
        columns |= {"regret": "{regret:.1%}"}
        return shown(columns, places.values(), "tokens per second over plain decoding, medians")

    def write(self, folder: Path, name: str) -> None:
        """Raw rows, result, cost table and picture."""
        write_json(folder / f"{name}.json", self.record)
        write_csv(folder / "raw" / f"{name}_runs.csv.xz", [asdict(row) for row in self.rows])
        self.costs.save(folder / "raw" / f"{name}_costs.json")
        draw_engine(self.record, folder / f"{name}.png")


def run_session(terms: Terms, planner: PlannerConfig, with_transformers: bool, note: Note) -> Found:
    """Run every place of the terms."""
    contract = terms.contract()
    own = EngineExperiment(contract, None, "", note, planner=planner)
    bed = own.bed
    assert isinstance(bed, WatchedBed), "as it was opened"
    note(f"costs: {bed.costs.provenance.get('kind')}")
    rival = None
    if with_transformers:
        groups_of = choose_prompts(SHORT, own.book.encode)
        prompts = [groups_of(1, repeat)[0] for repeat in range(terms.repeats)]
        rival = against_transformers(prompts, terms.tokens, note)
    rows: list[Row] = []
    points: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    failures: list[str] = []
    for place in sorted(contract.places(), key=lambda place: (place.context, place.batch)):
        made = own.run_place(place)
        rows += made
        points += [{**point(made, n), "acceptance_by_context": own.by_context(n)} for n in POLICIES]
        places.append(_planned(own, bed, place, made))
        failures += _failures(places[-1], acceptance([r for r in made if r.policy == PLANNER]))
    if rival is not None and rival.high < 1.0:
        failures.append(f"plain decoding is {rival.median:.3f} of transformers")
    record = {
        "contract": {**asdict(terms), "hash": contract.digest},
        "device": own.facts["device"],
        "provenance": dict(own.facts),
        "costs": dict(bed.costs.provenance),
        "ok": not failures,
        "failures": failures,
        "points": points,
        "planner": places,
        "min_planner_ratio": round(min(place["to_plain"]["median"] for place in places), 4),
        "regret": max(place["regret"] for place in places),
        "plain_to_transformers": None if rival is None else asdict(rival),
    }
    return Found(record, rows, bed.costs)


def _planned(
    own: EngineExperiment, bed: WatchedBed, place: Place, rows: list[Row]
) -> dict[str, Any]:
    """What the planner was worth at a place, beside the best fixed shape and the oracle."""
    own.note(f"{place}: recording trees for the oracle")
    n_new, shape = place.scenario.new_tokens, tree_shape(SpeculationConfig(policy=PLANNER))
    texts = record(bed, own.distinct[: max(ORACLE_TOKENS // n_new, 2)], n_new, shape)
    situation = Situation(place.batch, place.context + n_new / 2)
    oracle = best_choice(texts, bed.costs, situation, shape.depth)
    best, planned = best_fixed(rows) or PLAIN, own.runs[PLANNER]
    # Both rates in the table's seconds: the oracle never ran, and noise must not favour either.
    rate = sum(run.tokens for run in planned) / sum(run.modelled_seconds for run in planned)
    return {
        "batch": place.batch,
        "context": place.context,
        "to_plain": asdict(pairs(rows, PLANNER).interval),
        "to_best_fixed": asdict(against(rows, best).interval),
        "best_fixed": best,
        "oracle": asdict(oracle),
        "regret": round(1.0 - rate / oracle.tokens_per_second, 4),
        "texts_different": _n_different(own.runs, n_new),
    }


def _n_different(runs: Mapping[str, Sequence[Run]], n_new: int) -> int:
    """Texts that are not those of plain decoding, as far as all of them were written."""
    return sum(
        any(a != b for a, b in zip(one[:n_new], other[:n_new], strict=False))
        for own in runs.values()
        for run, plain in zip(own, runs[PLAIN], strict=True)
        for one, other in zip(run.texts, plain.texts, strict=True)
    )


def _failures(place: Mapping[str, Any], accepted: float) -> list[str]:
    """By the planner's floors; `accepted` is its mean acceptance length there."""
    plain, fixed = (Interval(**place[name]) for name in ("to_plain", "to_best_fixed"))
    is_alone = place["batch"] == 1 and place["context"] <= SHORT
    found = {
        f"{plain} of plain decoding": plain.high < FLOORS["to_plain"],
        f"{fixed} of {place['best_fixed']}": fixed.high < FLOORS["to_best_fixed"],
        f"regret {place['regret']:.3f}": place["regret"] > FLOORS["regret"],
        f"{plain} of plain, alone": is_alone and plain.high < ALONE["to_plain"],
        f"{accepted:.2f} accepted, alone": is_alone and accepted < ALONE["accepted"],
    }
    where = f"batch {place['batch']}, context {place['context']}"
    return [f"{where}: {text}" for text, has_failed in found.items() if has_failed]
