"""Files of an ablation: every turn as a raw row, and a table of levers with their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.bench.profile.point import Point
from aerie.bench.profile.session import Session
from aerie.bench.record import Interval, table


@dataclass(frozen=True, eq=False)
class LeverResult:
    """One engine of the comparison at one point."""

    point: Point
    lever: str
    setting: str
    tokens_per_second: float
    round_ms: float
    tokens_per_round: float
    bytes_per_token: float
    ratio: Interval  # of its tokens a second to all on, turn by turn
    turns: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "context": self.point.context,
            "batch": self.point.batch,
            "lever": self.lever,
            "setting": self.setting,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "round_ms": round(self.round_ms, 4),
            "tokens_per_round": round(self.tokens_per_round, 3),
            "effective_bytes_per_token": round(self.bytes_per_token),
            "ratio_to_all_on": [round(value, 4) for value in vars(self.ratio).values()],
            "kind": "measured; bytes modelled",
        }


def write_ablation(session: Session, results: Sequence[LeverResult]) -> None:
    """The CSV of turns and the page."""
    name, origin = f"ablation_{session.device_name}", session.origin("ablation")
    rows = [
        {
            "context": result.point.context,
            "batch": result.point.batch,
            "policy": session.policy,
            "lever": result.lever,
            "setting": result.setting,
            "turn": number,
            "seconds": round(turn["seconds"], 6),
            "tokens": turn["n_tokens"],
            "rounds": turn["n_rounds"],
            "bytes": round(turn["n_bytes"]),
            "kind": "measured; bytes modelled",
        }
        for result in results
        for number, turn in enumerate(result.turns)
    ]
    origin.write_csv(session.out / f"{name}.csv", rows)
    lines = [*TITLE, *table(HEADER, [_row(result) for result in results]), "", *origin.lines()]
    (session.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


TITLE = (
    "# One lever off at a time",
    "",
    "Engines take turns on the same prompts; a ratio is the median over the turns of tokens a"
    " second against all on in the same turn, with its 90 % interval. Times are"
    " measured, bytes modelled (`src/aerie/bench/profile/bytes.py`). An inflated head proposes the"
    " same drafts whatever its vocabulary: what fewer live ids do to acceptance is in"
    " `draft_vocabulary.md`. Compaction is measured in a run of its own, where requests end one"
    " after the other; off, their slots stay inert in the full batch's graphs.",
    "",
)
HEADER = ("point", "lever off", "setting", "tokens/s", "ratio to all on", "ms a round",
          "tokens a round", "GB a token")  # fmt: skip


def _row(result: LeverResult) -> tuple[Any, ...]:
    return (
        result.point.name,
        result.lever,
        result.setting,
        f"{result.tokens_per_second:.1f}",
        result.ratio,
        f"{result.round_ms:.3f}",
        f"{result.tokens_per_round:.2f}",
        f"{result.bytes_per_token / 1e9:.3f}",
    )
