"""`aerie bench round`: the stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aerie.bench.provenance import provenance
from aerie.bench.round_lossless import (
    POLICIES,
    compare_policies,
    compare_sizes,
    heldout_prompts,
    lossless_room,
)
from aerie.bench.round_profile import BOOKKEEPING, profile_rounds
from aerie.bench.round_setup import RoundSetup
from aerie.bench.round_speed import measure_speed, run_without_waiting, step_to_room
from aerie.bench.round_stress import stress
from aerie.models.inflate import LargePair

PROFILED = 8  # rounds
PROMPT_TOKENS = 64
# What a round must reach on the machine the figures are for.
FLOORS = {"plain_share_of_ceiling": 0.75, "round_tax": 1.6, "bookkeeping_share": 0.08}


@dataclass(frozen=True, eq=False)
class RoundBench:
    """Where a measurement runs and how large it is."""

    setup: RoundSetup
    out: Path
    context: int = 1024
    n_rounds: int = 48
    n_prompts: int = 64
    n_new: int = 256
    pairs: dict[RoundSetup, LargePair] = field(default_factory=dict)  # loaded so far

    def run(self, stage: str) -> dict[str, Any]:
        """Run one stage, write its files, return its JSON."""
        found = STAGES[stage](self)
        record = {
            "stage": stage,
            **found,
            "setup": asdict(self.setup),
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
        share = profiles["round"]["shares"].get(BOOKKEEPING, 0.0)
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

    def lossless(self) -> dict[str, Any]:
        """fp32 over all policies, small against inflated, and where bf16 parts."""
        exact = replace(self.setup, dtype="float32", geometry=None)
        small = self.pair(exact)
        prompts = heldout_prompts(small, self.n_prompts, PROMPT_TOKENS)
        found = {"float32": compare_policies(exact, small, prompts, self.n_new, (0.0, 0.8))}
        inflated = replace(self.setup, dtype="float32")
        few = prompts[:16]
        room = lossless_room(len(few), PROMPT_TOKENS + self.n_new)
        cores = [
            setup.core(self.pair(setup), POLICIES["tree"], room) for setup in (exact, inflated)
        ]
        sizes = compare_sizes(cores[0], cores[1], few, self.n_new)
        found[self.setup.dtype] = compare_policies(
            self.setup, self.pair(self.setup), prompts, self.n_new, (0.0,)
        )
        is_same = all(entry["identical"] == entry["texts"] for entry in found["float32"].values())
        return {
            "policies": found,
            "small_against_inflated_float32": sizes,
            "ok": is_same and sizes["identical"] == sizes["texts"],
        }

    def stress(self) -> dict[str, Any]:
        """Long contexts with a batch that shrinks and grows."""
        context = self.context * 64
        return stress(self.setup, self.pair(self.setup), context, n_requests=6, seconds=60)


STAGES: dict[str, Callable[[RoundBench], dict[str, Any]]] = {
    "speed": RoundBench.speed,
    "lossless": RoundBench.lossless,
    "stress": RoundBench.stress,
}
