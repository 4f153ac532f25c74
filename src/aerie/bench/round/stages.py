"""`aerie bench round`: the stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aerie.assemble.numerics import near_limit
from aerie.bench.provenance import provenance
from aerie.bench.record import write_csv, write_json
from aerie.bench.round.exact import NUMERICS, compare_numerics, stress
from aerie.bench.round.options import measure_options
from aerie.bench.round.setup import RoundSetup, read_prompts
from aerie.bench.round.speed import measure_speed, run_without_waiting, step_to_room
from aerie.bench.round.texts import (
    POLICIES,
    Grid,
    compare_policies,
    count_by_size,
    lossless_room,
    write_texts,
)
from aerie.bench.trace import bookkeeping_share, trace_rounds
from aerie.models.inflate.embed import LargePair

PROFILED = 8  # rounds
PROMPT_TOKENS = 64
# Each is a method of the bench.
STAGES = ("speed", "options", "lossless", "sampled", "sizes", "near_ties", "exact", "stress")
# Two policies may part in bf16 where the target's first choices lie this close, in steps of bf16.
NEAR_ULPS, FAR_ULPS = 2.0, 4.0
# What a round must reach on the machine the figures are for.
Floors = Mapping[str, tuple[Callable[[float, float], bool], float]]
SPEED_FLOORS: Floors = {
    "plain_share_of_ceiling": (operator.ge, 0.75),
    "round_tax": (operator.le, 1.6),
    "bookkeeping_share": (operator.le, 0.08),
}
EXACT_FLOORS: Floors = {"kept_decoding": (operator.ge, 0.9), "kept_prompts": (operator.ge, 0.7)}


def named_table(path: str | None) -> str | None:
    """A cost table as a report names it: by file and content, since folders differ by machine."""
    if path is None:
        return None
    return f"{Path(path).name} sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def judged(found: Mapping[str, Any], floors: Floors) -> dict[str, Any]:
    """The same with its floors, and whether they are met."""
    met = {name: holds(found[name], floor) for name, (holds, floor) in floors.items()}
    bounds = {name: floor for name, (_, floor) in floors.items()}
    return {**found, "floors": bounds, "met": met, "ok": all(met.values())}


@dataclass(frozen=True, eq=False)
class RoundBench:
    """Where a measurement runs and how large it is."""

    setup: RoundSetup
    out: Path
    context: int = 1024
    n_rounds: int = 48
    n_prompts: int = 64
    n_new: int = 256
    grid: Grid = field(default_factory=Grid)
    pairs: dict[RoundSetup, LargePair] = field(default_factory=dict)  # loaded so far

    def run(self, stage: str) -> dict[str, Any]:
        """Run one stage, write its files, return its JSON."""
        found: dict[str, Any] = getattr(self, stage)()
        record = {
            "stage": stage,
            **found,
            "setup": asdict(self.setup) | {"costs": named_table(self.setup.costs)},
            "kind": "measured",
            "provenance": provenance(self.setup.device),
        }
        write_json(self.out / f"round_{stage}.json", record)
        return record

    def pair(self, setup: RoundSetup | None = None) -> LargePair:
        """A pair, loaded once; that of the run itself where none is named."""
        wanted = self.setup if setup is None else setup
        if wanted not in self.pairs:
            self.pairs[wanted] = wanted.load()
        return self.pairs[wanted]

    @property
    def small(self) -> RoundSetup:
        """The built-in pair as it ships, in fp32."""
        return replace(self.setup, dtype="float32", geometry=None)

    def prompts(self, n_prompts: int) -> list[list[int]]:
        """So many, all of one length."""
        vocabulary = self.pair(self.small).target.geometry.vocab_size
        return read_prompts(n_prompts, PROMPT_TOKENS, vocabulary)

    def speed(self) -> dict[str, Any]:
        """Plain step, round tax, phases, and the kernels of both."""
        found, cores = measure_speed(self.setup, self.pair(), self.context, self.n_rounds)
        profiles, waits = {}, {}
        for name, core in cores.items():
            step_to_room(core, 8 * 2 * PROFILED)
            waits[name] = run_without_waiting(core, PROFILED)
            traced = trace_rounds(core, PROFILED)
            profiles[name] = traced.summary()
            write_csv(self.out / "raw" / f"round_kernels_{name}.csv", traced.rows("part", "kernel"))
        found |= {"profile": profiles, "waits_beside_the_read": waits}
        share = bookkeeping_share(profiles["round"], found["round"]["ms"])
        return judged({**found, "bookkeeping_share": share}, SPEED_FLOORS)

    def options(self) -> dict[str, Any]:
        """Rounds with sampling and with log-probabilities against greedy ones; newcomers."""
        return measure_options(self.setup, self.pair(), self.context, self.n_rounds)

    def lossless(self) -> dict[str, Any]:
        """Greedy texts of every policy in fp32, token for token."""
        return self._policies(self.small, 0.0)

    def sampled(self) -> dict[str, Any]:
        """The same with a temperature: the noise belongs to seed and position."""
        return self._policies(self.small, 0.8)

    def near_ties(self) -> dict[str, Any]:
        """Where policies part in the run's own dtype, how close those choices were, and the rates
        of near ties that engines count by context and batch."""
        found = self._policies(self.setup, 0.0)
        parted = [gap for entry in found["policies"].values() for gap in entry["divergences"]]
        ulps = sorted(entry["gap_ulps"] for entry in parted)
        within = sum(gap <= NEAR_ULPS for gap in ulps)
        tokens = sum(entry["tokens"] for entry in found["policies"].values())
        is_near = not ulps or (ulps[-1] <= FAR_ULPS and within >= 0.99 * len(ulps))
        return {
            **found,
            "divergences": len(ulps),
            "per_token": len(ulps) / tokens,
            "largest_gap_ulps": ulps[-1] if ulps else 0.0,
            "limit": near_limit(self.setup.model),
            "by_size": count_by_size(self.setup, self.pair(), self.grid),
            "ok": is_near,
        }

    def _policies(self, setup: RoundSetup, temperature: float) -> dict[str, Any]:
        # The small pair computes what its inflation computes, as the stage of sizes shows.
        exact, prompts = self.pair(self.small).target, self.prompts(self.n_prompts)
        found = compare_policies(setup, self.pair(setup), prompts, self.n_new, temperature, exact)
        is_same = all(entry["identical"] == entry["texts"] for entry in found.values())
        return {"dtype": setup.dtype, "temperature": temperature, "policies": found, "ok": is_same}

    def sizes(self) -> dict[str, Any]:
        """Greedy texts of the built-in pair and of its inflation, both speculating, in fp32."""
        prompts = self.prompts(min(self.n_prompts, 16))
        room = lossless_room(len(prompts), PROMPT_TOKENS + self.n_new)
        own, other = (
            write_texts(
                setup.core(self.pair(setup), POLICIES["chain"], room), prompts, self.n_new, 0.0
            )
            for setup in (self.small, replace(self.setup, dtype="float32"))
        )
        n_identical = sum(a == b for a, b in zip(own, other, strict=True))
        return {
            "texts": len(prompts),
            "identical": n_identical,
            "tokens": len(prompts) * self.n_new,
            "ok": n_identical == len(prompts),
        }

    def exact(self) -> dict[str, Any]:
        """What exact numerics keep of the speed of fast ones."""
        setups = {name: replace(self.setup, numerics=name) for name in NUMERICS}
        sides = {name: (setup, self.pair(setup)) for name, setup in setups.items()}
        return judged(compare_numerics(sides), EXACT_FLOORS)

    def stress(self) -> dict[str, Any]:
        """Long contexts with a batch that shrinks and grows."""
        return stress(self.setup, self.pair(), self.context * 64, n_requests=6, seconds=45)
