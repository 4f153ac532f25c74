"""Files of the serving scenarios: raw rows, and a page with percentiles beside their ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.bench.profile.session import Session
from aerie.bench.record import percentiles, table, write_json

# Of both scenarios; a row leaves empty what it does not have.
COLUMNS = ("scenario", "policy", "run", "context", "arrival_s", "ttft_ms", "ceiling_ms",
           "compute_ms", "weights_ms", "tokens", "itl_p50_ms")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Served:
    """One policy under arriving requests."""

    policy: str
    rows: list[dict[str, Any]]  # one per request
    itl_ms: list[float]  # gap between two emissions over the tokens of the later
    gaps_ms: list[float]  # the gaps themselves
    seconds: float
    joules: float | None
    captures: int  # graphs captured while it was measured

    @property
    def n_finished(self) -> int:
        """Requests that emitted something."""
        return len(self.rows)

    def summary(self) -> dict[str, Any]:
        """JSON values."""
        n_tokens = sum(row["tokens"] for row in self.rows)
        joules = None if self.joules is None else round(self.joules / n_tokens, 4)
        return {
            "policy": self.policy,
            "requests": self.n_finished,
            "tokens": n_tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(n_tokens / self.seconds, 1),
            "ttft_ms": percentiles([row["ttft_ms"] for row in self.rows]),
            "itl_ms": percentiles(self.itl_ms),
            "gap_ms": percentiles(self.gaps_ms),
            "joules_per_token": joules,
            "watts": None if self.joules is None else round(self.joules / self.seconds, 1),
            "graphs_captured_meanwhile": self.captures,
        }


def write_serving(
    session: Session, first: Sequence[dict[str, Any]], served: Sequence[Served]
) -> None:
    """CSV, JSON and page, named by the device; again after every part, so that none is lost."""
    name, origin = f"{session.device_name}_serving", session.origin("serving")
    rows = [*first, *(row for entry in served for row in entry.rows)]
    whole = [{column: row.get(column, "") for column in COLUMNS} for row in rows]
    origin.write_csv(session.out / f"{name}.csv", [{**row, "kind": "measured"} for row in whole])
    mixed = [entry.summary() for entry in served]
    write_json(
        session.out / f"{name}.json",
        {"ttft": list(first), "mixed": mixed, "kind": "measured", **origin.record()},
    )
    lines = [*TITLE, *_first_table(first), "", *MIXED, *_mixed_table(mixed), "", *origin.lines()]
    (session.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


TITLE = (
    "# Serving: first tokens, arrivals, energy",
    "",
    "One request on an idle engine, from its submission to its first token. The ceiling is the"
    " larger of its operations at the measured rate of a large bf16 product, and its weights, once"
    " for each chunk of the prompt, at the measured copy bandwidth. All measured.",
    "",
)
MIXED = (
    "Requests that arrive at random times while others decode, greedy, the same arrivals for both."
    " ITL is the gap between two emissions over the tokens of the later one; the gap itself is"
    " beside it. A reader's chunk of a prompt makes those who decode wait: that is the tail.",
    "",
)


def _first_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys((row["policy"], row["context"]) for row in rows)
    lines = []
    for policy, context in keys:
        own = [row for row in rows if (row["policy"], row["context"]) == (policy, context)]
        found, ceiling = percentiles([row["ttft_ms"] for row in own]), own[0]["ceiling_ms"]
        share = f"{ceiling / found['p50']:.2f}"
        lines.append((policy, context, len(own), found["p50"], found["p99"], ceiling, share))
    return table(
        ("policy", "prompt", "runs", "TTFT p50 ms", "p99", "ceiling ms", "of ceiling"), lines
    )


def _mixed_table(mixed: Sequence[dict[str, Any]]) -> list[str]:
    header = ("policy", "requests", "tokens/s", "TTFT p50 / p99 ms", "ITL p50 / p99 ms",
              "gap p50 / p99 ms", "J/token", "W", "graphs captured meanwhile")  # fmt: skip
    return table(
        header,
        [
            (
                entry["policy"],
                entry["requests"],
                entry["tokens_per_second"],
                *(
                    f"{entry[k]['p50']} / {entry[k]['p99']}"
                    for k in ("ttft_ms", "itl_ms", "gap_ms")
                ),
                entry["joules_per_token"],
                entry["watts"],
                entry["graphs_captured_meanwhile"],
            )
            for entry in mixed
        ],
    )
