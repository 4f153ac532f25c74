"""Runs the points of a contract: policies in turns on one engine, rows written as they come."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from aerie.bench.bed import Bed, PromptBook, Run
from aerie.bench.bytes import step_bytes
from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.contract import PLAIN, Contract, Place
from aerie.bench.provenance import device_facts, metered, open_meter
from aerie.bench.record import Origin
from aerie.bench.round.setup import RoundSetup
from aerie.bench.rows import Row, append_rows, figures, read_rows
from aerie.bench.turns import rotated
from aerie.engine.captured import Captured
from aerie.errors import PerfModeError, UsageError
from aerie.models.inflate.embed import LargePair
from aerie.text.heldout import Piece
from aerie.text.loops import does_not_loop

Note = Callable[[str], None]


@dataclass(eq=False)
class Experiment:
    """One process: the pair loaded once, one engine, every point after the other."""

    contract: Contract
    raw: Path | None  # rows are appended here
    kernel_sha256: str
    note: Note
    book: PromptBook = field(default_factory=PromptBook)

    def __post_init__(self) -> None:
        model = self.contract.model
        geometry = None if model.geometry == "none" else model.geometry
        terms = {**vars(model), "geometry": geometry}
        del terms["pair"]  # the built-in one
        self.setup = RoundSetup(**terms)
        self.pair: LargePair = self.setup.load()
        self.bed = self.open_bed()
        self.meter = open_meter(model.device)
        self.copy = copy_bandwidth(model.device)["gbps"]
        self.facts = Origin.of({"contract": self.contract.digest}, model.device).facts
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        self.note(
            f"ceiling: {self.copy:.0f} GB/s, a large copy, bytes read and written"
            f" ({self.facts['device']}; contract {self.contract.name} {self.contract.digest})"
        )

    def open_bed(self) -> Bed:
        """The engine that all points run on."""
        return Bed(self.contract, self.setup, self.pair)

    def adopt(self, contract: Contract) -> None:
        """Go on with another contract, in the same process."""
        self.bed.adopt(contract)
        self.contract = contract
        self.note(f"contract {contract.name} {contract.digest}")

    def run(self, places: Sequence[Place]) -> None:
        """Every point that is not finished yet."""
        for place in places:
            if self.is_finished(place):
                self.note(f"{place}: finished before, skipped")
            else:
                self.run_place(place)

    def is_finished(self, place: Place) -> bool:
        """Whether the file has all turns of this point, of one session and the same sources."""
        same = place.key, self.contract.digest, self.facts["source_sha256"]
        turns: dict[str, set[tuple[str, int]]] = {}  # by session
        for row in read_rows(self.raw) if self.raw else ():
            if (row.place, row.contract, row.source_sha256) == same:
                turns.setdefault(row.session, set()).add((row.policy, row.turn))
        n_turns = self.contract.turns(place.scenario)
        wanted = set(itertools.product(place.scenario.policies, range(n_turns)))
        return any(wanted <= own for own in turns.values())

    def run_place(self, place: Place, first_turn: int = 0) -> list[Row]:
        """Ceiling, prompts, one turn to warm up, then the turns that count."""
        scenario, turns = place.scenario, self.contract.turns(place.scenario)
        prompts, cold = self.choose(place)
        shared = self._shared_columns(place, prompts, cold)
        self.note(f"{place}: no plain step below {shared['ceiling_ms']:.3f} ms")
        self._warm_up(place, prompts[: place.batch])
        rows: list[Row] = []
        for turn in range(first_turn, first_turn + turns):
            first = turn % scenario.groups * place.batch
            own, columns = prompts[first : first + place.batch], {**shared, "turn": turn}
            order = rotated(scenario.policies, turn)
            made = [self._run(place, policy, own, columns) for policy in order]
            if self.raw is not None:
                append_rows(self.raw, made)
            rows += made
        self.note(f"{place}: {_ratios(rows)}")
        return rows

    def choose(self, place: Place) -> tuple[list[Piece], list[float]]:
        """Prompts whose texts do not loop, and the seconds to the first token of what was read.

        A policy with a head writes their texts once; a batch at a time, as they are measured.
        """
        scenario, batch = place.scenario, place.batch
        wanted = scenario.groups * batch
        reader = next(name for name in scenario.policies if name != PLAIN)
        kept: list[Piece] = []
        cold: list[float] = []
        n_tried = 0
        pieces = self.book.pieces(place.context)
        while len(kept) < wanted:
            tried = pieces[n_tried : n_tried + batch]
            if len(tried) < batch:
                raise UsageError(
                    f"{place}: {wanted} texts that do not loop are asked for, and of the "
                    f"{n_tried} held-out pieces of this length {len(kept)} give one"
                )
            n_tried += batch
            tokens = [prompt.tokens for prompt in tried]
            cold += [own for own in self.bed.read(tokens, reader) if own is not None]
            texts = self.bed.run(reader, tokens, scenario.new_tokens).texts
            is_good = [does_not_loop(text, self.book.end_ids) for text in texts]
            kept += [prompt for prompt, own in zip(tried, is_good, strict=True) if own]
        self.note(f"{place}: {len(kept)} of {n_tried} texts do not loop")
        return kept[:wanted], cold

    def _warm_up(self, place: Place, prompts: Sequence[Piece]) -> None:
        """Capture what the point needs, and watch for waits of the host."""
        tokens = [prompt.tokens for prompt in prompts]
        for policy in place.scenario.policies:
            n_new = min(place.scenario.tokens_of(policy), 48)
            # A planner that begins to draft again shows its head what it missed: that may wait.
            is_watched = self.contract.policies[policy].method != "planner"
            run = self.bed.run(policy, tokens, n_new, is_watched)
            if self.contract.model.perf_mode and run.waits is not None:
                raise PerfModeError(f"{place}, {policy}: the host waited: {run.waits}")

    def _run(
        self, place: Place, policy: str, prompts: Sequence[Piece], shared: dict[str, Any]
    ) -> Row:
        """One run of a policy."""
        n_new, costs = place.scenario.tokens_of(policy), self.contract.policies[policy].costs
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        tokens = [prompt.tokens for prompt in prompts]
        run, joules = metered(self.meter, partial(self.bed.run, policy, tokens, n_new))
        self.accept(place, policy, run)
        clocks = device_facts(self.contract.model.device)
        tuned_hits, tuned_total = tuned_usage(self.pair)
        return Row(
            policy=policy,
            prompts=";".join(prompt.name for prompt in prompts),
            new_tokens=n_new,
            sm_mhz=str(clocks["sm_mhz"]),
            memory_mhz=str(clocks["memory_mhz"]),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            peak_memory=self.bed.peak_memory or 0,
            joules="" if joules is None else f"{joules:.3f}",
            tuned_hits=tuned_hits,
            tuned_total=tuned_total,
            costs_sha256=hashlib.sha256(Path(costs).read_bytes()).hexdigest() if costs else "",
            **shared,
            **figures(run, n_new // 2, self.book.end_ids),
        )

    def accept(self, place: Place, policy: str, run: Run) -> None:
        """Violations abort; they are not logged and forgotten."""
        if not self.contract.model.perf_mode:
            return
        if not isinstance(self.bed.core.launcher, Captured):
            raise PerfModeError(f"{place}, {policy}: rounds were called one by one, not replayed")
        if min(run.active) < place.batch:
            raise PerfModeError(f"{place}, {policy}: a round left out a request")
        is_fixed = self.contract.policies[policy].method == "fixed"
        if is_fixed and not any(s.num_drafts for s in run.statistics):
            raise PerfModeError(f"{place}, {policy}: fell back to single tokens")

    def _shared_columns(
        self, place: Place, prompts: Sequence[Piece], cold: Sequence[float]
    ) -> dict[str, Any]:
        """What all rows of a point have in common."""
        # Milliseconds of a plain step at the speed of a copy, in the middle of a run.
        length = sum(len(prompt.tokens) for prompt in prompts) / len(prompts)
        length += place.scenario.tokens_of(PLAIN) / 2
        n_bytes = step_bytes(self.pair.target, int(place.batch * length), place.batch)
        named = ("commit", "source_sha256", "device", "driver", "torch", "triton")
        return {
            **{name: str(self.facts.get(name)) for name in named},
            "contract": self.contract.digest,
            "kernel_sha256": self.kernel_sha256,
            "session": self.started,
            "scenario": place.scenario.name,
            "batch": place.batch,
            "context": place.context,
            "ceiling_ms": round(1e3 * n_bytes / (float(self.copy) * 1e9), 4),
            "copy_gbps": round(self.copy, 2),
            "ttft_ms": ";".join(f"{1e3 * seconds:.2f}" for seconds in cold),
        }


def tuned_usage(pair: LargePair) -> tuple[int, int]:
    """Products and tiles that were asked of the tuned tables: found, and in all.

    Graphs ask when they are captured, not when they are replayed.
    """
    usage = getattr(getattr(pair.target.head, "tuned", None), "usage", None)
    if usage is None:
        return 0, 0
    untuned = getattr(pair.target.prepare_attention, "misses", {})
    hits = sum(usage.hits.values())
    return hits, hits + sum(usage.misses.values()) + sum(untuned.values())


def _ratios(rows: Sequence[Row]) -> str:
    """A line of progress."""
    speeds: dict[str, list[float]] = {}
    for row in rows:
        speeds.setdefault(row.policy, []).append(row.tokens_per_second)
    medians = {name: statistics.median(own) for name, own in speeds.items()}
    return ", ".join(f"{name} {own / medians[PLAIN]:.2f}" for name, own in medians.items())
