"""Files of `aerie bench gpu`: summary, contract page and manifest, all made from rows and terms."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from aerie.bench.gpu.contract import COV_LIMIT, LEAST_SHARE, Contract
from aerie.bench.gpu.prompts import RULE
from aerie.bench.gpu.rows import Row, read_rows
from aerie.bench.gpu.summary import LEAST_PAIRS, summarise
from aerie.bench.record import Origin, table, write_json

PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "jinja2", "typer", "rich",
            "matplotlib", "transformers")  # fmt: skip
HEADINGS = (
    "scenario", "batch", "context", "policy", "tokens/s", "CoV", "over plain (90 %)", "acceptance",
    "a slot", "tax", "ms a round", "plain's floor ms", "plain / floor", "ITL p50 / p99 ms",
    "repeated", "J/token",
)  # fmt: skip


def label(device: str) -> str:
    """A device's own name as files carry it: `NVIDIA H200` is h200, any CPU is cpu."""
    known = device.lower().replace("nvidia", "").split()
    return known[0] if device.lower().startswith("nvidia") and known else "cpu"


def raw_path(out: Path, device: str) -> Path:
    """Where raw rows of a device are."""
    return out / f"{label(device)}_baseline_raw.csv.xz"


def write_summary(out: Path, device: str) -> dict[str, Any]:
    """Summary of all rows measured on a device, as JSON and as a page."""
    rows = read_rows(raw_path(out, device))
    found = summarise(rows)
    stem = f"{label(device)}_baseline_summary"
    if rows:
        last = rows[-1]
        commits = sorted({row.commit for row in rows})
        names = ("contract", "commit", "source_sha256", "device", "driver", "torch", "triton")
        found["provenance"] = {name: getattr(last, name) for name in (*names, "date")}
        found["commits"] = commits
        write_json(out / f"{stem}.json", found)
        page = summary_page(found, rows) + _slots_page(out / f"{label(device)}_check_slots.json")
        (out / f"{stem}.md").write_text(page, encoding="utf-8")
    return found


def _slots_page(path: Path) -> str:
    """What rounds of a batch still compute as its requests end; empty where it was not counted."""
    if not path.is_file():
        return ""
    record = json.loads(path.read_text(encoding="utf-8"))
    active = record["active_count"]
    rows: dict[int, Mapping[str, Any]] = {row["active"]: row for row in record["rounds"]}
    columns = ("active", "slots", "verify_rows", "draft_rows", "attention_tokens")
    lines = [
        "",
        "## Requests that end",
        "",
        f"{record['policy']}, four requests of different lengths: the last round with so many"
        f" active. Over all rounds {active['mean']} active on average, {active['min']} to"
        f" {active['max']}; every round: `{path.name}` (commit"
        f" {record['provenance']['commit'][:10]}).",
        "",
        *table(columns, [[row[name] for name in columns] for row in rows.values()]),
    ]
    return "\n".join(lines) + "\n"


def summary_page(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """One table of every policy at every point, the ceiling beside it."""
    last = rows[-1]
    lines = [
        f"# Baseline on {last.device}",
        "",
        f"Written by `aerie bench gpu` from the raw rows beside it; kind: {last.kind}. Commits"
        f" {', '.join(commit[:10] for commit in found['commits'])}; driver {last.driver},"
        f" torch {last.torch}, triton {last.triton}; clocks in every row.",
        "",
        f"A ratio is the median over interleaved turns with its 90 % interval; it counts with"
        f" {LEAST_PAIRS} pairs and where plain decoding reaches {LEAST_SHARE:.2f} of its floor"
        f" (fewest bytes over {last.copy_gbps:.0f} GB/s, a measured copy). CoV above"
        f" {COV_LIMIT:.0%} is marked. Repeated: share of 8-grams the text had before;"
        " a slot: draft tokens accepted in a round, for each active request.",
        "",
        *table(HEADINGS, [_line(point) for point in found["points"]]),
        "",
        "## Planner",
        "",
        *table(
            ("scenario", "batch", "context", "over plain", "best fixed", "over best fixed"),
            [_planner_line(place) for place in found["places"] if place["planner_to_plain"]],
        ),
        "",
        "Prompts: held-out text, by the rule of benchmark_contract.md at the commit of the rows.",
    ]
    return "\n".join(lines) + "\n"


def _line(point: Mapping[str, Any]) -> list[str]:
    mark = "" if point["stability"] == "stable" else f" ({point['stability']})"
    joules = point["joules_per_token"]
    return [
        point["scenario"],
        str(point["batch"]),
        str(point["context"]),
        point["policy"],
        f"{point['tokens_per_second']:.1f}",
        f"{point['cov']:.1%}{mark}",
        f"{point['ratio_to_plain']:.2f} ({point['ratio_low']:.2f} to {point['ratio_high']:.2f})",
        f"{point['mean_acceptance_length']:.2f}",
        f"{point['accepted_per_active_slot']:.2f}",
        f"{point['round_tax']:.2f}",
        f"{point['ms_per_round']:.3f}",
        f"{point['ceiling_ms']:.3f}",
        f"{point['plain_share_of_ceiling']:.2f}",
        f"{point['itl_ms']['p50']:.2f} / {point['itl_ms']['p99']:.2f}",
        f"{point['repeated_8gram_share']:.0%}",
        "" if joules is None else f"{joules:.2f}",
    ]


def _planner_line(place: Mapping[str, Any]) -> list[str]:
    def shown(values: Mapping[str, float] | None) -> str:
        if values is None:
            return ""
        return f"{values['median']:.3f} ({values['low']:.3f} to {values['high']:.3f})"

    return [
        place["scenario"],
        str(place["batch"]),
        str(place["context"]),
        shown(place["planner_to_plain"]),
        str(place["best_fixed"]),
        shown(place["planner_to_best_fixed"]),
    ]


def write_contract(out: Path, contract: Contract, source: str, origin: Origin) -> None:
    """`benchmark_contract.md` and `env_manifest.txt`: what a replay needs, and what it ran on."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmark_contract.md").write_text(contract_page(contract, source), encoding="utf-8")
    facts = {**origin.facts, "platform": platform.platform(), "machine": platform.machine()}
    known = [f"{name}=={version}" for name, version in _installed().items()]
    lines = [f"contract_digest: {contract.digest}"]
    lines += [f"{name}: {value}" for name, value in facts.items() if name != "contract"]
    lines += ["", "packages:", *known]
    (out / "env_manifest.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _installed() -> dict[str, str]:
    """Versions of what a run stands on."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def contract_page(contract: Contract, source: str) -> str:
    """The contract as a page, with the command that replays it."""
    slices = {"model": contract.model, "decode": contract.decode}
    slices |= {"memory": contract.memory, "measure": contract.measure}
    terms = [
        (name, key, json.dumps(value))
        for name, part in slices.items()
        for key, value in asdict(part).items()  # type: ignore[call-overload]
    ]
    policies = [
        (name, p.method, *(_or_dash(v) for v in (p.node_top_k, p.tree_depth, p.verify_num)))
        for name, p in contract.policies.items()
    ]
    scenarios = [
        (s.name, _list(s.batches), _list(s.contexts), _list(s.policies), s.new_tokens,
         contract.turns(s), s.groups)
        for s in contract.scenarios
    ]  # fmt: skip
    lines = [
        f"# Benchmark contract `{contract.name}`",
        "",
        f"Digest `{contract.digest}`, from `{source}`; written by `aerie bench gpu`. Replay:",
        "",
        f"    scripts/bench_gpu_matrix.sh OUT COMMIT   # aerie bench gpu --contract {source}",
        "",
        *table(("part", "term", "value"), terms),
        "",
        *table(("policy", "method", "node_top_k", "tree_depth", "verify_num"), policies),
        "",
        *table(
            (
                "scenario",
                "batch",
                "context",
                "policies",
                "new tokens",
                "turns",
                "groups of prompts",
            ),
            scenarios,
        ),
        "",
        f"Prompts: {RULE}. Greedy, ends of text ignored, prompts read once a point.",
    ]
    return "\n".join(lines) + "\n"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _list(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)
