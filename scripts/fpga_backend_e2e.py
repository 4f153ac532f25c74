"""The whole engine on the hls backend, and on the baselines that it is held against.

    python -m scripts.fpga_backend_e2e --backend hls
    python3 -m scripts.fpga_backend_e2e --backend triton --device cuda

Decodes the contract below and writes reports/fpga_backend_e2e_BACKEND_DEVICE.json, on any machine;
`aerie report` compares all such files and makes the page of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aerie.api import Engine
from aerie.bench.provenance import provenance
from aerie.bench.record import line, write_json
from aerie.bench.round.setup import tokenizer_of_pair
from aerie.kernels.registry import Kernels
from aerie.requests.params import SamplingParams
from aerie.text.heldout import read_tokens

BASELINE, SUBJECT = "reference", "hls"
# What every backend decodes. A greedy run, a sampled one, and one whose coins read K5.
CONTRACT: dict[str, Any] = {
    "pair": "built-in, float32",
    "prompts": 8,
    "prompt_tokens": 128,
    "tokens": 32,
    "batch": 4,
    "tree": {"top_k": 4, "depth": 4, "nodes": 12},
    "scenarios": [
        {"name": "greedy", "rule": "match", "temperature": 0.0},
        {"name": "sampled", "rule": "match", "temperature": 0.8},
        {"name": "coins", "rule": "coins", "temperature": 1.0},
    ],
    "seed": 2026,
    "repeats": 3,
}

# Said where a GPU's figures stand beside a CPU's.
CAPTURED = (
    "On CUDA rounds are captured and computed in another arithmetic: scores differ in the last"
    " bits, so trees may; the texts are the same."
)


class Watch:
    """Counts kernel calls and, on a CPU, the seconds in them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def tap(self, kernels: Kernels) -> Kernels:
        """The kernels with a stopwatch on each."""
        timed: dict[str, Any] = {name: self._timed(name, kernels[name]) for name in kernels}
        return Kernels(kernels.backend, kernels.device, kernels.data_errors, timed)

    def _timed(self, name: str, kernel: Any) -> Any:
        def run(**inputs: Any) -> Any:
            start = time.process_time()
            result = kernel(**inputs)
            self.seconds[name] += time.process_time() - start
            self.calls[name] += 1
            return result

        return run


def main() -> None:
    """Measure one backend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default=SUBJECT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("reports"))
    options = parser.parse_args()
    backend, device = options.backend, options.device
    path = options.out / f"fpga_backend_e2e_{backend}_{device}.json"
    write_json(path, measure(backend, device))


def measure(backend: str, device: str) -> dict[str, Any]:
    """Every scenario of the contract on one backend."""
    torch.set_num_threads(1)
    prompts = read_tokens(
        tokenizer_of_pair().encode, CONTRACT["prompt_tokens"], CONTRACT["prompts"]
    )
    found = []
    for scenario in CONTRACT["scenarios"]:
        runs = [decode(backend, device, scenario, prompts) for _ in range(CONTRACT["repeats"])]
        speeds = [run.pop("tokens_per_second") for run in runs]
        found.append({**runs[-1], "tokens_per_second": statistics.median(speeds), "speeds": speeds})
        print(json.dumps({"scenario": scenario["name"], "speeds": speeds}), flush=True)
    return {
        "contract": CONTRACT,
        "contract_sha256": contract_hash(),
        "backend": backend,
        "device": device,
        "kind": "c-sim" if backend == SUBJECT else "measured",
        "scenarios": found,
        "provenance": provenance(device),
    }


def contract_hash() -> str:
    """Names what was asked of everyone alike."""
    return hashlib.sha256(json.dumps(CONTRACT, sort_keys=True).encode()).hexdigest()


def decode(
    backend: str, device: str, scenario: dict[str, Any], prompts: list[list[int]]
) -> dict[str, Any]:
    """One run of one scenario: tokens, trees, acceptance, time."""
    watch = Watch()
    engine = Engine.load(
        tap=watch.tap if device == "cpu" else lambda kernels: kernels,
        backend=backend,
        device=device,
        dtype="float32",
        numerics="exact" if device == "cpu" else "fast",
        speculation={**CONTRACT["tree"], "rule": scenario["rule"]},
        scheduler={"max_batch": CONTRACT["batch"]},
    )
    params = SamplingParams(CONTRACT["tokens"], scenario["temperature"], ignore_eos=True)
    ids = [
        engine.submit(prompt, replace(params, seed=CONTRACT["seed"] + number))
        for number, prompt in enumerate(prompts)
    ]
    trees = hashlib.sha256()
    # On a CPU other processes must not count; a GPU works while its host waits.
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    while any(engine.core.request(request_id).ended is None for request_id in ids):
        engine.step()
        add_trees(trees, engine)
    seconds = clock() - start
    done = [engine.collect(request_id) for request_id in ids]
    drafts = sum(entry.statistics.num_drafts for entry in done)
    accepted = sum(entry.statistics.num_accepted_tokens for entry in done)
    return {
        "name": scenario["name"],
        "tokens": [list(entry.token_ids) for entry in done],
        "trees_sha256": trees.hexdigest(),
        "drafts": drafts,
        "accepted": accepted,
        "acceptance": 1.0 + accepted / drafts,
        "tokens_per_second": sum(len(entry.token_ids) for entry in done) / seconds,
        "seconds": seconds,
        "kernel_seconds": {name: watch.seconds[name] for name in sorted(watch.calls)},
        "kernel_calls": dict(sorted(watch.calls.items())),
    }


def add_trees(digest: Any, engine: Engine) -> None:
    """The rows verified in the last round: their owners, tokens and parents."""
    for request_id, tree in sorted(engine.core.launcher.trees.items()):
        rows = [(node.token, node.parent) for node in tree.nodes]
        digest.update(json.dumps([request_id, rows]).encode())


def render(records: list[dict[str, Any]]) -> str:
    """The page; a record of another contract is an error, a missing baseline is said."""
    wrong = [r["backend"] for r in records if r["contract_sha256"] != contract_hash()]
    if wrong:
        raise SystemExit(f"records of another contract: {', '.join(wrong)}; measure again")
    by_name = {(record["backend"], record["device"]): record for record in records}
    baseline = by_name[BASELINE, "cpu"]
    lines = [
        "# The engine with the hls backend",
        "",
        "Generated by `aerie report` from what `scripts/fpga_backend_e2e.py` measured.",
        f"Contract `{contract_hash()[:12]}`: {json.dumps(CONTRACT)}.",
        'On a CPU `numerics="exact"`: tokens and trees must be the same bit for bit. Speed of'
        " `hls` is that of a C-simulation on a CPU and says nothing about hardware. Seconds are"
        " processor time of one thread on a CPU and wall clock on a GPU.",
        "",
        "| backend | device | kind | commit | date |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        origin = record["provenance"]
        where = f"{record['device']} ({origin['device']})"
        cells = [record["backend"], where, record["kind"], origin["commit"][:10], origin["date"]]
        lines.append(line(cells))
    for index, scenario in enumerate(CONTRACT["scenarios"]):
        lines += scenario_table(scenario, index, records, baseline)
    lines += kernel_table(by_name)
    if not any(record["device"].startswith("cuda") for record in records):
        lines += ["", "The CUDA baseline has not been measured yet: no file of a cuda device."]
    else:
        lines += ["", CAPTURED]
    return "\n".join(lines) + "\n"


def scenario_table(
    scenario: dict[str, Any], index: int, records: list[dict[str, Any]], baseline: dict[str, Any]
) -> list[str]:
    """Acceptance, equality with the reference and speed of one scenario."""
    expected = baseline["scenarios"][index]
    cuda = [r["scenarios"][index] for r in records if r["device"].startswith("cuda")]
    lines = [
        "",
        f"## {scenario['name']}: rule {scenario['rule']}, T = {scenario['temperature']:g}",
        "",
        "| backend | acceptance | regression | same texts | same trees | tokens/s (kind) |"
        " ratio to CUDA |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        found = record["scenarios"][index]
        pairs = list(zip(found["tokens"], expected["tokens"], strict=True))
        same = sum(one == other for one, other in pairs)
        is_same_trees = found["trees_sha256"] == expected["trees_sha256"]
        ratio = found["tokens_per_second"] / cuda[0]["tokens_per_second"] if cuda else None
        cells = [
            f"{record['backend']} on {record['device']}",
            f"{found['acceptance']:.4f}",
            f"{found['acceptance'] - expected['acceptance']:+.4f}",
            f"{same} of {len(pairs)}",
            "yes" if is_same_trees else "no",
            f"{found['tokens_per_second']:.1f} ({record['kind']})",
            "" if ratio is None else f"{ratio:.3f}",
        ]
        lines.append(line(cells))
    return lines


def kernel_table(by_name: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Microseconds of a call on the CPU, by kernel and backend."""
    shown = [record for (_, device), record in by_name.items() if device == "cpu"]
    names = sorted({name for r in shown for s in r["scenarios"] for name in s["kernel_calls"]})
    lines = [
        "",
        "## Kernel calls on the CPU",
        "",
        "Mean microseconds of a call in these runs, Python binding included (kind as above).",
        "",
        f"| kernel | {' | '.join(record['backend'] for record in shown)} |",
        f"|---|{'---:|' * len(shown)}",
    ]
    for name in names:
        cells = []
        for record in shown:
            calls = sum(s["kernel_calls"].get(name, 0) for s in record["scenarios"])
            seconds = sum(s["kernel_seconds"].get(name, 0.0) for s in record["scenarios"])
            cells.append(f"{1e6 * seconds / calls:.0f}" if calls else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
