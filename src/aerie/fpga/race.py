"""The race: draft on the card and verify on the GPU, or all on the card, against the GPU alone.

The GPU's side is measured. The card's side is projected: counted bytes over the modelled memory,
multiplications over the multipliers a card has at an assumed clock, and the slower of both counts.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.record import read_json
from aerie.costs.table import load_costs
from aerie.fpga.byte_study import fused_bytes
from aerie.fpga.draft_round import DraftRound, FusedChoice
from aerie.fpga.draft_weights import DraftWeights, HeadShape, made_up_weights
from aerie.fpga.levers import RANK_SHARE
from aerie.fpga.page import written
from aerie.fpga.tree_round import Serving
from aerie.perf.device import find_device
from aerie.perf.point import find_sizes

MEMORY, COSTS = "reports/fpga_memory.json", "reports/costs_h200.json"
BASELINE, COUNTERS = "reports/h200_baseline_summary.json", "reports/hw_counters.csv"
DESIGN = "reports/fusion_design_v1.json"
SCENARIOS = ("baseline", "fresh-32k")
WINDOW = 320  # of the built-in head's attention

POLICIES = {"spec-3": (3, 16), "spec-5": (5, 24)}  # levels and rows, as the contract has them
TOP_K, CANDIDATES = 8, 128
DSP = 10_848  # AMD Alveo V80 product brief
# Products of a DSP a cycle: one float32, or three 8-bit. Links: PCIe there and back, microseconds.
BAND = {"low": (1, 20.0), "high": (3, 5.0)}
# Of a plain step on the GPU at 1K of context, bf16 (round_speed.json), and of a position's KV.
TARGET_BYTES, MEASURED_CONTEXT, KV_BYTES = 15_146_819_584, 1024, 131_072


@dataclass(frozen=True)
class Draft:
    """One draft on the card."""

    n_bytes: int
    products: int
    tree_cycles: int

    def milliseconds(self, gbps: float, per_dsp: int, clock_mhz: float) -> tuple[float, float]:
        """By memory, and by multipliers."""
        memory = self.n_bytes / gbps / 1e6
        return memory, self.products / (DSP * per_dsp * clock_mhz * 1e6) * 1e3


def products_of(shape: HeadShape, levels: int, n_new: int, rank: int) -> int:
    """Multiplications of a round: the layer for every row, the two-stage head for frontier rows."""
    hidden = shape.hidden
    layer = 2 * hidden * (shape.q_width + 2 * shape.kv_width) + shape.q_width * hidden
    layer += 3 * hidden * shape.mlp
    head = rank * (hidden + shape.vocab) + CANDIDATES * hidden
    frontier = 1 + (levels - 1) * TOP_K
    rows = n_new + (levels - 1) * TOP_K
    return n_new * shape.features * hidden + rows * layer + frontier * head


def contract_round(weights: DraftWeights, levels: int, verify: int) -> DraftRound:
    """A round of the contract's sizes: four new tokens at the end of the draft's window."""
    shape, n_new = weights.shape, 4
    seq_len = 2 * shape.window
    n_slots = seq_len + verify + TOP_K * levels
    cache = np.zeros((n_slots + 1, shape.kv_width), np.float16)
    serving = Serving(
        root_tokens=np.zeros(1, np.int64),
        seq_len=np.array([seq_len]),
        length_limit=np.array([seq_len + 99]),
        stop_tokens=np.full((1, 1), -1, np.int64),
        req_to_token=(1 + np.arange(n_slots, dtype=np.int32)).reshape(1, -1),
        req_pool_indices=np.zeros(1, np.int64),
    )
    rng = np.random.default_rng(0)
    return DraftRound(
        features=rng.standard_normal((n_new, shape.features)).astype(np.float16),
        new_tokens=np.zeros(n_new, np.int64),
        new_positions=np.arange(seq_len - n_new, seq_len),
        row_indptr=np.array([0, n_new], np.int32),
        serving=serving,
        keys=cache,
        values=cache.copy(),
        top_k=TOP_K,
        verify_num=verify,
        widths=(1, *[TOP_K] * (levels - 1)),
    )


def count_drafts(geometry: str, tree_cycles: int) -> dict[str, Draft]:
    """Bytes of a draft by policy, counted in C-simulation, and its multiplications."""
    sizes = find_sizes(geometry)
    made = made_up_weights(sizes, int(sizes.hidden * RANK_SHARE), n_positions=4096)
    weights = replace(made, shape=replace(made.shape, window=WINDOW))
    drafts = {}
    for policy, (levels, verify) in POLICIES.items():
        one = contract_round(weights, levels, verify)
        moved = fused_bytes(one, weights, FusedChoice("sketch", is_fc_q4=True))
        products = products_of(weights.shape, levels, len(one.new_tokens), weights.head.sketch.rank)
        drafts[policy] = Draft(moved, products, tree_cycles * levels // 5)
    return drafts


def race(root: Path, geometry: str) -> dict[str, Any]:
    """Every raced point: both ends of the band."""
    card = find_device("v80")
    assert card.fabric is not None
    speeds = sorted(read_json(root / MEMORY)["effective_gbps"].values())
    speed = {"low": speeds[0], "high": speeds[-1]}
    costs = load_costs(root / COSTS)
    drafts = count_drafts(geometry, tree_cycles(root))
    counted = read_json(root / DESIGN)["scope_d"]
    # The GPU drafts with the head as it was trained, so the card's 4-bit layer counts as well.
    kept = counted["lines"][-1]["length"] / counted["float32_length"]
    rows = []
    for point in read_json(root / BASELINE)["points"]:
        draft = drafts.get(point["policy"])
        if draft is None or point["batch"] != 1 or point["scenario"] not in SCENARIOS:
            continue
        levels, _ = POLICIES[point["policy"]]
        context = point["context"]
        steps = (levels - 1) * costs.draft.at(1, context, TOP_K)
        gpu_draft = 1e3 * (costs.extend.at(1, context, 1) + steps)
        for side in BAND:
            raced = Raced(side, speed[side], card.fabric.clock_mhz, gpu_draft, kept)
            rows.append(_row(point, draft, raced))
    return {"rows": rows, "drafts": {name: vars(draft) for name, draft in drafts.items()}}


def tree_cycles(root: Path) -> int:
    """Cycles of the composed card a round of five levels, as simulated."""
    with (root / COUNTERS).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["block"] == "top"]
    free = next(row for row in rows if row["memory"] == "free")
    return int(free["cycles"]) // int(free["calls"])


@dataclass(frozen=True)
class Raced:
    """One side of the band, and what the other device does meanwhile."""

    side: str
    gbps: float
    clock_mhz: float
    gpu_draft_ms: float
    acceptance: float  # of the card's draft against the head as trained


def _row(point: Mapping[str, Any], draft: Draft, raced: Raced) -> dict[str, Any]:
    side, clock, gpu_draft = raced.side, raced.clock_mhz, raced.gpu_draft_ms
    per_dsp, link_us = BAND[side]
    by_memory, by_products = draft.milliseconds(raced.gbps, per_dsp, clock)
    tree = draft.tree_cycles / clock / 1e3
    own = max(by_memory, by_products) + tree
    tokens = point["mean_acceptance_length"]
    fewer = tokens * raced.acceptance
    gpu_round = point["ms_per_round"]
    hybrid = gpu_round - gpu_draft + own + link_us / 1e3
    kept = KV_BYTES * (point["context"] - MEASURED_CONTEXT)
    verify = (TARGET_BYTES + kept) / raced.gbps / 1e6
    alone = own + verify
    return {
        "scenario": point["scenario"], "policy": point["policy"], "batch": 1,
        "context": point["context"], "side": side, "tokens_a_round": tokens,
        "card_tokens_a_round": round(fewer, 4),
        "gpu_ms_a_round": gpu_round, "gpu_draft_ms": round(gpu_draft, 4),
        "card_draft_ms": round(own, 4), "card_draft_memory_ms": round(by_memory, 4),
        "card_draft_products_ms": round(by_products, 4), "card_tree_ms": round(tree, 4),
        "link_ms": link_us / 1e3, "hybrid_ms_a_round": round(hybrid, 4),
        "card_alone_ms_a_round": round(alone, 4),
        "gpu_tokens_per_second": round(1e3 * tokens / gpu_round, 2),
        "hybrid_tokens_per_second": round(1e3 * fewer / hybrid, 2),
        "card_alone_tokens_per_second": round(1e3 * fewer / alone, 2),
        "gpu_gap_p50_ms": point["gap_ms"]["p50"], "gpu_gap_p99_ms": point["gap_ms"]["p99"],
        "hybrid_gap_p50_ms": round(point["gap_ms"]["p50"] - gpu_round + hybrid, 4),
        "hybrid_gap_p99_ms": round(point["gap_ms"]["p99"] - gpu_round + hybrid, 4),
        "card_bytes_a_token": round(draft.n_bytes / fewer),
        "kind": "projected",
    }  # fmt: skip


def page(found: Mapping[str, Any]) -> str:
    """The summary: the table, which side wins where, the two bottlenecks, what would change it."""
    lines = [
        f"| {r['scenario']} | {r['policy']} | {r['context']} | {r['side']}"
        f" | {r['gpu_ms_a_round']:.2f} | {r['gpu_draft_ms']:.2f}"
        f" | {r['card_draft_ms']:.2f} ({r['card_draft_memory_ms']:.2f},"
        f" {r['card_draft_products_ms']:.2f}) | {r['hybrid_ms_a_round']:.2f}"
        f" | {r['card_alone_ms_a_round']:.2f} | {r['gpu_tokens_per_second']:.0f},"
        f" {r['hybrid_tokens_per_second']:.0f}, {r['card_alone_tokens_per_second']:.0f} |"
        for r in found["rows"]
    ]
    return written("race", lines, found, f"\n\n## Who wins\n\n{_verdict(found)}")


def _verdict(found: Mapping[str, Any]) -> str:
    def ratios(side: str, name: str) -> str:
        own = [r[name] / r["gpu_tokens_per_second"] for r in found["rows"] if r["side"] == side]
        return f"{min(own):.2f} to {max(own):.2f}"

    hybrid, alone = "hybrid_tokens_per_second", "card_alone_tokens_per_second"
    low = next(r for r in found["rows"] if r["side"] == "low")
    high = next(r for r in found["rows"] if r["side"] == "high")
    gaps = ", ".join(
        f"{r['policy']} at {r['context']}: p50 {r['gpu_gap_p50_ms']:.2f} to"
        f" {r['hybrid_gap_p50_ms']:.2f} ms, p99 {r['gpu_gap_p99_ms']:.2f} to"
        f" {r['hybrid_gap_p99_ms']:.2f}"
        for r in found["rows"]
        if r["side"] == "high"
    )
    return (
        "Draft on the card, verify on the GPU, tokens/s over the GPU alone:"
        f" {ratios('low', hybrid)} (low), {ratios('high', hybrid)} (high). All on the card:"
        f" {ratios('low', alone)} and {ratios('high', alone)}: 15 GB of target weights a round at a"
        " sixth of the GPU's"
        " bandwidth decide that.\n\n"
        f"Gaps between rounds, GPU alone to both together, high side: {gaps}.\n\n"
        "The two bottlenecks: (1) multipliers: a tree's eight rows a level make the draft a product"
        f" of matrices, {low['card_draft_products_ms']:.2f} ms with float32 DSPs and"
        f" {high['card_draft_products_ms']:.2f} with three 8-bit products each, against"
        f" {high['card_draft_memory_ms']:.2f} ms of memory; (2) memory: the weights of the"
        " feed-forward, four bits each, once a level. Next: 8-bit activations proven by acceptance,"
        " narrower frontiers where the gains say so (the region already decides widths by gain),"
        " and the next draft begun while the GPU verifies, which hides whatever is shorter."
    )
