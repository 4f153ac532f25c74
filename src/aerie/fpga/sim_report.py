"""What simulation showed: a row of counters for each block, source and memory, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aerie.bench.record import as_csv
from aerie.fpga.blocks import BLOCKS
from aerie.fpga.page import written
from aerie.fpga.sim.study import BlockStudy, Tally

WITHIN = {"free": 0.05, "paused": 0.15}  # of all cycles: what the model must hit
MOST_OUTSIDE = 0.10  # share of dumps and live calls that may be beyond a block's bounds


def counters_csv(tallies: Sequence[Tally]) -> str:
    """`hw_counters.csv`."""
    return as_csv([tally.row() for tally in tallies])


def judged(studies: Mapping[str, BlockStudy], tallies: Sequence[Tally]) -> dict[str, Any]:
    """The verdict and what it stands on."""
    dumps = [tally for tally in tallies if tally.source in ("dump", "live")]
    outside = sum(sum(tally.outside.values()) for tally in dumps)
    share = outside / max(sum(tally.calls for tally in dumps) + outside, 1)
    differing = sum(len(tally.differing) for tally in tallies)
    models = {
        name: {memory: vars(model) for memory, model in study.models.items()}
        for name, study in studies.items()
    }
    is_near = all(
        model.error <= WITHIN[memory]
        for study in studies.values()
        for memory, model in study.models.items()
    )
    return {
        "kind": "rtl-sim",
        "ok": differing == 0 and is_near and share <= MOST_OUTSIDE,
        "differing": differing,
        "outside_share": round(share, 4),
        "vectors": {
            name: sum(tally.vectors for tally in study.tallies if tally.source == "random")
            for name, study in studies.items()
        },
        "outside": {
            f"{tally.block} {tally.source}": tally.outside
            for tally in tallies
            if tally.outside and tally.memory == "free"
        },
        "models": models,
    }


def render(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    lines = []
    by_block = {block.name: block for block in BLOCKS}
    for name, n_vectors in found["vectors"].items():
        own = [row for row in rows if row["block"] == name]
        one, many = (
            next(row for row in own if row["source"] == f"largest, batch {n}") for n in (1, 32)
        )
        block = by_block[name]
        lines.append(
            f"| {block.number} {name} | {block.summary} | {sum(row['calls'] for row in own):,}"
            f" | {n_vectors:,} | {sum(row['differing'] for row in own)}"
            f" | {one['cycles']:,} | {many['cycles']:,} | {many['interval']:.3f} |"
        )
    lines += ["", *_top([row for row in rows if row["block"] == "top"]), "", *_models(found)]
    lines += ["", "Beyond the bounds of a block, and so left to the host: " + _outside(found) + "."]
    return written("sim", lines, found)


def _top(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "## The composed card on whole rounds of a live engine",
        "",
        "K1, K2's merge, K3 and the gather with the state of a draft on chip.",
        "",
        "| memory | rounds | differing | cycles a round | busy | read | write | upstream"
        " | downstream |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        shares = (
            f"{100 * row[name] / row['cycles']:.1f} %"
            for name in (
                "busy",
                "stall_memory_read",
                "stall_memory_write",
                "upstream_empty",
                "downstream_full",
            )
        )
        lines.append(
            f"| {row['memory']} | {row['calls']} | {row['differing']}"
            f" | {row['cycles'] / row['calls']:,.0f} | {' | '.join(shares)} |"
        )
    return lines


def _models(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Cycles by a model",
        "",
        "Prices of what a call is made of, fitted to every second random call, judged on the rest:",
        "error of all their cycles together (at most 5 and 15 %), and of the worst call.",
        "",
        "| block | free | worst | paused | worst | cycles, free |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, models in found["models"].items():
        free, paused = models["free"], models["paused"]
        prices = " + ".join(
            f"{price:g} x {what}" for what, price in free["prices"].items() if price
        )
        cells = (f"{100 * value:.2f} %" for value in (
            free["error"], free["worst"], paused["error"], paused["worst"]
        ))  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} | {prices} |")
    return lines


def _outside(found: Mapping[str, Any]) -> str:
    said = [
        f"{where}: {', '.join(f'{reason} ({count})' for reason, count in reasons.items())}"
        for where, reasons in found["outside"].items()
    ]
    share = 100 * found["outside_share"]
    return f"{share:.1f} % of dumps and live calls; by source: {'; '.join(said) or 'none'}"
