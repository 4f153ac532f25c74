"""`aerie bench round`: the stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerie.bench.provenance import provenance
from aerie.bench.round_lossless import POLICIES, compare_policies, compare_sizes, heldout_prompts
from aerie.bench.round_profile import profile_rounds
from aerie.bench.round_setup import Room, RoundSetup, read_prompts, start
from aerie.bench.round_speed import N_WARM, PLAIN, WIDE_TREE, measure_speed
from aerie.bench.round_stress import stress

PROFILED = 8  # rounds


@dataclass(frozen=True)
class RoundBench:
    """Where a measurement runs and how large it is."""

    setup: RoundSetup
    out: Path
    context: int = 1024
    n_rounds: int = 48
    n_prompts: int = 64
    n_new: int = 256

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

    def speed(self) -> dict[str, Any]:
        """Plain step, round tax, phases, and the kernels of both."""
        pair = self.setup.load()
        found = measure_speed(self.setup, pair, self.context, self.n_rounds)
        profiles = {}
        for name, shape in (("plain", PLAIN), ("round", WIDE_TREE)):
            core = self.setup.core(pair, shape, Room(1, self.context + 256))
            prompts = read_prompts(1, self.context, pair.target.geometry.vocab_size)
            start(core, prompts, 256)
            for _ in range(N_WARM):
                core.step()
            traced = profile_rounds(core, PROFILED)
            profiles[name] = traced.summary()
            self.write(f"round_kernels_{name}.csv", traced.csv())
        return {**found, "profile": profiles, "ok": True}

    def lossless(self) -> dict[str, Any]:
        """fp32 over all policies, small against inflated, and where bf16 parts."""
        exact = replace(self.setup, dtype="float32", geometry=None)
        small = exact.load()
        prompts = heldout_prompts(small, self.n_prompts, 64)
        found = {"float32": compare_policies(exact, small, prompts, self.n_new)}
        inflated = replace(self.setup, dtype="float32")
        cores = []
        for setup, pair in ((exact, small), (inflated, inflated.load())):
            cores.append(setup.core(pair, POLICIES["tree"], Room(16, 64 + self.n_new)))
        sizes = compare_sizes(cores[0], cores[1], prompts[:16], self.n_new)
        fast = replace(self.setup, geometry=None)
        found[fast.dtype] = compare_policies(fast, fast.load(), prompts, self.n_new)
        is_same = all(entry["identical"] == entry["texts"] for entry in found["float32"].values())
        return {
            "policies": found,
            "small_against_inflated_float32": sizes,
            "ok": is_same and sizes["identical"] == sizes["texts"],
        }

    def stress(self) -> dict[str, Any]:
        """64K with a batch that shrinks and grows."""
        return stress(self.setup, self.setup.load(), self.context, n_requests=8, seconds=100)


STAGES: dict[str, Callable[[RoundBench], dict[str, Any]]] = {
    "speed": RoundBench.speed,
    "lossless": RoundBench.lossless,
    "stress": RoundBench.stress,
}
