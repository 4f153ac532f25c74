"""`aerie bench gpu`: a contract's matrix and checks, and the pages made of their rows."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.bench.bed import RULE
from aerie.bench.contract import COV_LIMIT, LEAST_SHARE, SLICES, Contract, read_contract
from aerie.bench.experiment import Experiment, Note
from aerie.bench.gates.gate import Verdict, read_gates
from aerie.bench.gates.run import require_passes, run_suite
from aerie.bench.gpu_checks import CHECKS
from aerie.bench.provenance import device_label, installed
from aerie.bench.provenance_machine import compilers, under_load
from aerie.bench.record import Interval, Origin, formatted, page, table, write_json
from aerie.bench.rows import Row, read_rows
from aerie.bench.summary import LEAST_PAIRS, summarise
from aerie.errors import UnknownNameError

MATRIX, SUITES = "matrix", ("micro", "full")
WHAT = (*SUITES, *CHECKS, MATRIX)
RAW = "{}_baseline_raw.csv.xz"  # of a device
PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "jinja2", "typer", "rich",
            "matplotlib", "transformers")  # fmt: skip
POINT = {
    "scenario": "{scenario}",
    "batch": "{batch}",
    "context": "{context}",
    "policy": "{policy}",
    "tokens/s": "{tokens_per_second:.1f}",
    "CoV": "{cov:.1%}{mark}",
    "over plain (90 %)": "{ratio_to_plain:.2f} ({ratio_low:.2f} to {ratio_high:.2f})",
    "acceptance": "{mean_acceptance_length:.2f}",
    "a slot": "{accepted_per_active_slot:.2f}",
    "disabled": "{disabled_finished}",
    "tax": "{round_tax:.2f}",
    "ms a round": "{ms_per_round:.3f}",
    "plain's floor ms": "{ceiling_ms:.3f}",
    "plain / floor": "{plain_share_of_ceiling:.2f}",
    "TTFT p50 / p99 ms": "{first}",
    "ITL p50 / p99 ms": "{itl_ms[p50]:.2f} / {itl_ms[p99]:.2f}",
    "repeated": "{repeated_8gram_share:.0%}",
    "J/token": "{joules}",
}
PLACE = {
    "scenario": "{scenario}",
    "batch": "{batch}",
    "context": "{context}",
    "over plain": "{plain}",
    "best fixed": "{best_fixed}",
    "over best fixed": "{fixed}",
}


@dataclass(frozen=True)
class Asked:
    """What a call of the command measures."""

    contract: Path
    out: Path
    kernel_sha256: str
    what: tuple[str, ...] = (MATRIX,)
    points: tuple[str, ...] = ()  # of the contract's matrix
    then: tuple[Path, ...] = ()  # contracts whose whole matrix follows on the same engine
    gates: Path = Path("evidence/gates")

    def __post_init__(self) -> None:
        for name in self.what:
            if name not in WHAT:
                raise UnknownNameError("thing to measure", name, WHAT)


def open_session(asked: Asked, note: Note) -> Experiment:
    """The pair in memory, the engine over it; the contract's pages are written at once."""
    contract = read_contract(asked.contract)
    contract.places(asked.points)  # unknown names are refused before anything is loaded
    device = contract.model.device
    origin = Origin.of({"contract": contract.digest}, device)
    if device.startswith("cuda"):
        write_contract(asked.out, contract, str(asked.contract), origin)
    raw = asked.out / RAW.format(device_label(str(origin.facts["device"])))
    return Experiment(contract, raw, asked.kernel_sha256, note)


def run_asked(asked: Asked, note: Note) -> dict[str, Any]:
    """Measure, in the order of `WHAT`; returns the closing record."""
    is_late = MATRIX in asked.what or bool(asked.then)
    must_pass = is_late and read_contract(asked.contract).model.device.startswith("cuda")
    if must_pass and "micro" not in asked.what:
        require_passes(asked.out, asked.kernel_sha256)  # before a model is loaded
    session = open_session(asked, note)
    verdicts: list[Verdict] = []
    for suite in SUITES:
        if suite in asked.what:
            verdicts += run_suite(session, read_gates(asked.gates), suite, asked.out)
    checks = run_checks(session, [name for name in CHECKS if name in asked.what], asked.out)
    if must_pass:
        require_passes(asked.out, asked.kernel_sha256)
    if MATRIX in asked.what:
        session.run(session.contract.places(asked.points))
    for path in asked.then:
        session.adopt(read_contract(path))
        session.run(session.contract.places())
    return closing(session, asked.out, checks, verdicts)


def run_checks(session: Experiment, names: Sequence[str], out: Path) -> dict[str, Any]:
    """The checks, each written into the device's own file as soon as it is done."""
    found: dict[str, Any] = {}
    device = str(session.facts["device"])
    for name in names:
        found[name] = CHECKS[name](session)
        session.note(f"{name}: {'ok' if found[name]['ok'] else 'NOT OK'}")
        record = {
            "check": name,
            **found[name],
            "contract": session.contract.digest,
            "dtype": session.contract.model.dtype,
            "geometry": session.contract.model.geometry,
            "kind": "measured",
            "kernel_sha256": session.kernel_sha256,
            "provenance": {**session.facts, "contract": session.contract.digest},
        }
        write_json(out / f"{device_label(device)}_check_{name}.json", record)
    return found


def closing(
    session: Experiment, out: Path, checks: dict[str, Any], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """One JSON object: the points of everything recorded so far, checks and gates of this call."""
    device = str(session.facts["device"])
    return {
        "ok": all(check["ok"] for check in checks.values()) and all(v.passed for v in verdicts),
        "contract": session.contract.digest,
        "device": device,
        **write_summary(out, device),
        "checks": {name: check["ok"] for name, check in checks.items()},
        "gates": [asdict(verdict) for verdict in verdicts],
    }


def write_summary(out: Path, device: str) -> dict[str, Any]:
    """Summary of all rows measured on a device, as JSON and as a page."""
    rows = read_rows(out / RAW.format(device_label(device)))
    if not rows:
        return {"points": [], "min_planner_ratio": None}
    found, stem = summary_of(rows), f"{device_label(device)}_baseline_summary"
    write_json(out / f"{stem}.json", found)
    (out / f"{stem}.md").write_text(summary_page(found, rows), encoding="utf-8")
    return found


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What rows say, and where the last of them comes from."""
    names = ("contract", "commit", "source_sha256", "device", "driver", "torch", "triton", "date")
    return {
        **summarise(rows),
        "provenance": {name: getattr(rows[-1], name) for name in names},
        "commits": sorted({row.commit for row in rows}),
    }


def summary_page(found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """One table of every policy at every point, the ceiling beside it."""
    planned = [_place(place) for place in found["places"] if place["planner_to_plain"]]
    limits = {"least_pairs": LEAST_PAIRS, "least_share": LEAST_SHARE, "cov_limit": COV_LIMIT}
    return page(
        "baseline",
        last=rows[-1],
        commits=", ".join(commit[:10] for commit in found["commits"]),
        points=formatted(POINT, map(_point, found["points"])),
        places=formatted(PLACE, planned),
        **limits,
    )


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    mark = "" if point["stability"] == "stable" else f" ({point['stability']})"
    joules = point["joules_per_token"]
    first = " / ".join("" if ms is None else f"{ms:.0f}" for ms in point["ttft_ms"].values())
    shown = {"mark": mark, "first": first, "joules": "" if joules is None else f"{joules:.2f}"}
    return {**point, **shown}


def _place(place: Mapping[str, Any]) -> dict[str, Any]:
    found = [place["planner_to_plain"], place["planner_to_best_fixed"]]
    plain, fixed = ("" if values is None else Interval(**values) for values in found)
    return {**place, "plain": plain, "fixed": fixed}


def write_contract(out: Path, contract: Contract, source: str, origin: Origin) -> None:
    """`benchmark_contract.md` and `env_manifest.txt`: what a replay needs, and what it ran on."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmark_contract.md").write_text(contract_page(contract, source), encoding="utf-8")
    facts = {**origin.facts, "platform": platform.platform(), "machine": platform.machine()}
    facts |= {**compilers(), **under_load(contract.model.device)}
    known = [f"{name}=={version}" for name in PACKAGES if (version := installed(name))]
    lines = [f"contract_digest: {contract.digest}"]
    lines += [f"{name}: {value}" for name, value in facts.items() if name != "contract"]
    lines += ["", "packages:", *known]
    (out / "env_manifest.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def contract_page(contract: Contract, source: str) -> str:
    """The contract as a page, with the command that replays it."""
    terms = [
        (name, key, json.dumps(value))
        for name in SLICES
        for key, value in asdict(getattr(contract, name)).items()
    ]
    numbers = ("node_top_k", "tree_depth", "verify_num")
    policies = [
        (name, own.method, *(getattr(own, number) or "-" for number in numbers))
        for name, own in contract.policies.items()
    ]
    header = ("scenario", "batch", "context", "policies", "new tokens", "turns",
              "groups of prompts")  # fmt: skip
    scenarios = [
        (s.name, *(", ".join(map(str, own)) for own in (s.batches, s.contexts, s.policies)),
         s.new_tokens, contract.turns(s), s.groups)
        for s in contract.scenarios
    ]  # fmt: skip
    return page(
        "contract",
        contract=contract,
        source=source,
        rule=RULE,
        terms=table(("part", "term", "value"), terms),
        policies=table(("policy", "method", *numbers), policies),
        scenarios=table(header, scenarios),
    )
