"""Raw rows of an experiment: one per run, with everything a reader needs to believe it."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.bed import Run
from aerie.bench.record import open_rows
from aerie.text.loops import repeated_share

_KINDS: dict[str, Any] = {"str": str, "int": int, "float": float}


@dataclass(frozen=True)
class Row:
    """One run of one policy at one point."""

    contract: str
    commit: str
    source_sha256: str
    kernel_sha256: str  # of the kernel backend's own sources, as the parity matrix hashes them
    device: str
    driver: str
    torch: str
    triton: str
    sm_mhz: str
    memory_mhz: str
    date: str
    session: str  # when the process began: turns of one session were interleaved
    scenario: str
    batch: int
    context: int
    policy: str
    turn: int
    prompts: str
    new_tokens: int
    tokens: int
    seconds: float
    rounds: int
    drafts: int
    draft_tokens: int
    accepted: int
    emissions: int
    emissions_ge3: int  # two or more draft tokens accepted
    itl_p50_ms: float
    itl_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    active_mean: float
    active_least: int
    active_most: int
    repeated_8gram_share: float
    text_sha256: str
    ceiling_ms: float  # of one plain step: fewest bytes over the measured copy bandwidth
    copy_gbps: float
    peak_memory: int
    joules: str  # empty where the device does not tell
    ttft_ms: str  # of each of this point's prompts that was read cold; once the median alone
    tuned_hits: int
    tuned_total: int
    costs_sha256: str  # of the table a planner planned from; empty for the others
    kind: str = "measured"

    @property
    def place(self) -> tuple[str, int, int]:
        """The point it belongs to."""
        return self.scenario, self.batch, self.context

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.seconds

    @property
    def ms_per_round(self) -> float:
        """Wall clock of a round."""
        return 1e3 * self.seconds / self.rounds


def figures(run: Run, n_kept: int, end_ids: Collection[int]) -> dict[str, Any]:
    """The columns a run itself fills. Texts are compared by their first `n_kept` tokens."""
    counts = run.statistics
    texts = [text[:n_kept] for text in run.texts]
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
    repeated = float(np.mean([repeated_share(text, end_ids) for text in run.texts]))
    return {
        "tokens": run.tokens,
        "seconds": round(run.seconds, 6),
        "rounds": run.rounds,
        "drafts": sum(s.num_drafts for s in counts),
        "draft_tokens": sum(s.num_draft_tokens for s in counts),
        "accepted": sum(s.num_accepted_tokens for s in counts),
        "emissions": len(run.lengths),
        "emissions_ge3": sum(n >= 3 for n in run.lengths),
        **_quantiles("itl", run.itl),
        **_quantiles("gap", run.gaps),
        "active_mean": round(float(np.mean(run.active)), 3),
        "active_least": min(run.active),
        "active_most": max(run.active),
        "repeated_8gram_share": round(repeated, 4),
        "text_sha256": digest,
    }


def _quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_p{at}_ms": round(1e3 * float(np.percentile(seconds, at)), 4) for at in (50, 99)
    }


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file; its header is written once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with open_rows(path, "at") as stream:
        writer = csv.DictWriter(stream, [entry.name for entry in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Every row of a file; numbers are numbers again. No file: no rows."""
    if not path.is_file():
        return []
    kinds = {entry.name: _KINDS[str(entry.type)] for entry in fields(Row)}
    with open_rows(path, "rt") as stream:
        return [
            Row(**{name: kinds[name](text) for name, text in record.items()})
            for record in csv.DictReader(stream)
        ]


def newest(rows: Sequence[Row]) -> dict[tuple[str, int, int], list[Row]]:
    """For every point the rows of its last session: older measurements stay in the file."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        known = found.setdefault(row.place, [])
        if known and known[0].session < row.session:
            known.clear()
        if not known or known[0].session == row.session:
            known.append(row)
    return found
