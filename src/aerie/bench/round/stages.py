"""`aerie bench round`: the stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aerie.assemble.numerics import near_limit
from aerie.bench.provenance import provenance
from aerie.bench.round.exact import compare_numerics, stress
from aerie.bench.round.kernels import (
    PLANNER,
    bookkeeping_share,
    compare_planner,
    profile_planner,
    profile_rounds,
)
from aerie.bench.round.options import measure_options
from aerie.bench.round.setup import RoundSetup, read_prompts
from aerie.bench.round.speed import measure_speed, run_without_waiting, step_to_room
from aerie.bench.round.texts import (
    POLICIES,
    Grid,
    compare_policies,
    compare_sizes,
    count_by_size,
    heldout_prompts,
    lossless_room,
)
from aerie.models.inflate.embed import LargePair

PROFILED = 8  # rounds
PROMPT_TOKENS = 64
PLANNED_BATCHES = (1, 8)
# Two policies may part in bf16 where the target's first choices lie this close, in steps of bf16.
NEAR_ULPS, FAR_ULPS = 2.0, 4.0
# What a round must reach on the machine the figures are for.
EXACT_FLOORS = {"kept_decoding": 0.9, "kept_prompts": 0.7}
FLOORS = {"plain_share_of_ceiling": 0.75, "round_tax": 1.6, "bookkeeping_share": 0.08}


def named_table(path: str | None) -> str | None:
    """A cost table as a report names it: by file and content, since folders differ by machine."""
    if path is None:
        return None
    return f"{Path(path).name} sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


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
        found = STAGES[stage](self)
        record = {
            "stage": stage,
            **found,
            "setup": asdict(self.setup) | {"costs": named_table(self.setup.costs)},
            "kind": "measured",
            "provenance": provenance(self.setup.device),
        }
        self.write(f"round_{stage}.json", json.dumps(record, indent=1) + "\n")
        return record

    def write(self, name: str, text: str) -> None:
        """One file of the report."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text(text, encoding="utf-8")

    def pair(self, setup: RoundSetup) -> LargePair:
        """A pair, loaded once."""
        if setup not in self.pairs:
            self.pairs[setup] = setup.load()
        return self.pairs[setup]

    def speed(self) -> dict[str, Any]:
        """Plain step, round tax, phases, and the kernels of both."""
        pair = self.pair(self.setup)
        found, cores = measure_speed(self.setup, pair, self.context, self.n_rounds)
        profiles, waits = {}, {}
        for name, core in cores.items():
            step_to_room(core, 8 * 2 * PROFILED)
            waits[name] = run_without_waiting(core, PROFILED)
            traced = profile_rounds(core, PROFILED)
            profiles[name] = traced.summary()
            self.write(f"round_kernels_{name}.csv", traced.csv())
        share = bookkeeping_share(profiles["round"], found["round"]["ms"])
        reached = {
            "plain_share_of_ceiling": found["plain_share_of_ceiling"],
            "round_tax": found["round_tax"],
            "bookkeeping_share": share,
        }
        is_met = {
            name: value >= floor if name == "plain_share_of_ceiling" else value <= floor
            for (name, floor), value in zip(FLOORS.items(), reached.values(), strict=True)
        }
        return {
            **found,
            "profile": profiles,
            "waits_beside_the_read": waits,
            "bookkeeping_share": share,
            "floors": FLOORS,
            "met": is_met,
            "ok": all(is_met.values()),
        }

    def options(self) -> dict[str, Any]:
        """Rounds with sampling and with log-probabilities against greedy ones; newcomers."""
        pair = self.pair(self.setup)
        return measure_options(self.setup, pair, self.context, self.n_rounds)

    def lossless(self) -> dict[str, Any]:
        """Greedy texts of every policy in fp32, token for token."""
        return self._policies(replace(self.setup, dtype="float32", geometry=None), 0.0)

    def sampled(self) -> dict[str, Any]:
        """The same with a temperature: the noise belongs to seed and position."""
        return self._policies(replace(self.setup, dtype="float32", geometry=None), 0.8)

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
            "by_size": count_by_size(self.setup, self.pair(self.setup), self.grid),
            "ok": is_near,
        }

    def _policies(self, setup: RoundSetup, temperature: float) -> dict[str, Any]:
        pair = self.pair(setup)
        prompts = heldout_prompts(pair, self.n_prompts, PROMPT_TOKENS)
        # The small pair computes what its inflation computes, as the stage of sizes shows.
        exact = self.pair(replace(self.setup, dtype="float32", geometry=None))
        found = compare_policies(setup, pair, prompts, self.n_new, temperature, exact.target)
        is_same = all(entry["identical"] == entry["texts"] for entry in found.values())
        return {"dtype": setup.dtype, "temperature": temperature, "policies": found, "ok": is_same}

    def sizes(self) -> dict[str, Any]:
        """The built-in pair against its inflation, both speculating, in fp32."""
        setups = [replace(self.setup, dtype="float32", geometry=None)]
        setups.append(replace(self.setup, dtype="float32"))
        prompts = heldout_prompts(self.pair(setups[0]), min(self.n_prompts, 16), PROMPT_TOKENS)
        room = lossless_room(len(prompts), PROMPT_TOKENS + self.n_new)
        cores = [setup.core(self.pair(setup), POLICIES["chain"], room) for setup in setups]
        found = compare_sizes(cores[0], cores[1], prompts, self.n_new)
        return {**found, "ok": found["identical"] == found["texts"]}

    def planner(self) -> dict[str, Any]:
        """Planned rounds beside fixed shapes, and the kernels of a planned round."""
        pair, points = self.pair(self.setup), {}
        vocabulary = pair.target.geometry.vocab_size
        traced: dict[str, Any] = {}
        for batch in PLANNED_BATCHES:
            found, core = compare_planner(self.setup, pair, self.context, batch, self.n_new)
            points[str(batch)] = found
            print(json.dumps({"batch": batch, **found}), flush=True)
            prompts = read_prompts(batch, self.context, vocabulary)
            traced[str(batch)], kernels = profile_planner(self.setup, core, prompts)
            self.write(f"round_kernels_{PLANNER}_{batch}.csv", kernels)
        waits = [entry["waits_beside_the_read"] for entry in traced.values()]
        return {
            "context": self.context,
            "points": points,
            "traced": traced,
            "ok": not any(waits) or not self.setup.device.startswith("cuda"),
        }

    def exact(self) -> dict[str, Any]:
        """What exact numerics keep of the speed of fast ones."""
        setups = {name: replace(self.setup, numerics=name) for name in ("fast", "exact")}
        pairs = {name: self.pair(setup) for name, setup in setups.items()}
        found = compare_numerics(setups, pairs)
        is_met = {name: found[name] >= floor for name, floor in EXACT_FLOORS.items()}
        return {**found, "floors": EXACT_FLOORS, "met": is_met, "ok": all(is_met.values())}

    def stress(self) -> dict[str, Any]:
        """Long contexts with a batch that shrinks and grows."""
        context = self.context * 64
        return stress(self.setup, self.pair(self.setup), context, n_requests=6, seconds=45)


STAGES: dict[str, Callable[[RoundBench], dict[str, Any]]] = {
    "speed": RoundBench.speed,
    "options": RoundBench.options,
    "lossless": RoundBench.lossless,
    "sampled": RoundBench.sampled,
    "sizes": RoundBench.sizes,
    "near_ties": RoundBench.near_ties,
    "planner": RoundBench.planner,
    "exact": RoundBench.exact,
    "stress": RoundBench.stress,
}
