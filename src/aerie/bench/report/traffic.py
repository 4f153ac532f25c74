"""The GPU's traffic table: bytes per token before and after fusion, from the profile's model.

After is what the profile recorded. Before is the same rounds with the PyTorch definitions of the
fused operations, whose every intermediate tensor goes to memory and comes back. Both are modelled:
a cache may keep a small tensor, and then either side moves less.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.models.inflate_geometry import find_geometry

BYTES = "reports/cuda_bytes_per_token.csv"
PAGE = "reports/gpu_traffic"
GEOMETRY = "llama-3.1-8b"
PLAIN = "plain"
HALF, FULL = 2, 4  # bytes of bf16 and of float32

# Bytes per element, in the order of the definition's operations (`models/layer_ops.py`).
# Residual and norm: add, widen, square, mean, scale, weight, round. Fused: two read, two written.
_NORM = (3 * HALF + (HALF + FULL) + 2 * FULL + FULL + 2 * FULL + 2 * FULL + (FULL + HALF), 4 * HALF)
# silu, then times the other half in place. Fused: two read, one written.
_GATE = (2 * HALF + 3 * HALF, 3 * HALF)
# A rotated element: widen, two products, their sum, joining the halves, round.
_ROTATED = (HALF + FULL) + 2 * 2 * FULL + 3 * FULL + 2 * FULL + (FULL + HALF)
# Attention in PyTorch on a GPU copies the KV it needs out of its pages first: read, written, read.
_GATHERED = (3, 1)


@dataclass(frozen=True)
class Effective:
    """One policy at one point, bytes per emitted token."""

    context: int
    batch: int
    policy: str
    tokens_per_round: float
    before: float  # unfused
    in_place: float  # unfused, but for attention: it reads KV where it lies
    after: float
    weights: float  # of `after`; fusion cannot touch them

    @property
    def around_weights(self) -> float:
        """How much fusion took from everything that is no weight."""
        return (self.before - self.weights) / (self.after - self.weights)


def _factors() -> dict[tuple[str, str], float]:
    """By part and kind of bytes: unfused over fused."""
    block = find_geometry(GEOMETRY).target
    query, key = block.n_heads * block.head_dim, block.n_kv_heads * block.head_dim
    # Keys are read once more to be stored, and so are values; the store itself is counted as KV.
    loose = query * _ROTATED + key * (_ROTATED + HALF) + key * HALF
    fused = (query + 2 * key + query) * HALF
    return {
        ("norm", "activations"): _NORM[0] / _NORM[1],
        ("activation", "activations"): _GATE[0] / _GATE[1],
        ("rotary and KV write", "activations"): loose / fused,
        ("attention", "kv"): _GATHERED[0] / _GATHERED[1],
    }


def effective(rows: Iterable[Mapping[str, str]]) -> list[Effective]:
    """Every policy and point of the profile."""
    factors = _factors()
    groups: dict[tuple[int, int, str], list[Mapping[str, str]]] = {}
    for row in rows:
        key = int(row["context"]), int(row["batch"]), row["policy"]
        groups.setdefault(key, []).append(row)
    found = []
    for key, own in groups.items():
        sizes = [(r["part"], r["what"], float(r["bytes_per_token"])) for r in own]
        before = sum(size * factors.get((part, what), 1.0) for part, what, size in sizes)
        in_place = sum(
            size * (1.0 if what == "kv" else factors.get((part, what), 1.0))
            for part, what, size in sizes
        )
        weights = sum(size for _, what, size in sizes if what == "weights")
        tokens = float(own[0]["tokens_per_round"])
        after = sum(size for _, _, size in sizes)
        found.append(Effective(*key, tokens, before, in_place, after, weights))
    return found


def traffic(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What fusion saves, what speculation saves, and both: three numbers that are easily mixed up.

    Fusion compares a policy with itself, the best one of a point; speculation compares fused plain
    decoding with fused drafting; the product, unfused plain decoding with fused drafting.
    """
    every = effective(rows)
    found: dict[str, dict[str, float]] = {name: {} for name in _RATIOS}
    for plain in (one for one in every if one.policy == PLAIN):
        rivals = [o for o in every if (o.context, o.batch) == (plain.context, plain.batch)]
        best = min(rivals, key=lambda one: one.after)
        for name, ratio in _RATIOS.items():
            found[name][f"{plain.batch} x {plain.context}"] = round(ratio(plain, best), 3)
    commits = sorted({row["commit"] for row in rows})
    return {
        "kind": "modelled",
        **{name: min(points.values(), default=None) for name, points in found.items()},
        "by_point": found,
        "points": [
            {**vars(one), "fusion_alone": round(one.before / one.after, 3)} for one in every
        ],
        "provenance": {"commit": " ".join(commits), "raw": BYTES},
    }


# Of fused plain decoding and the best policy of a point.
_RATIOS: dict[str, Callable[[Effective, Effective], float]] = {
    "fusion": lambda plain, best: best.before / best.after,
    "fusion_without_gather": lambda plain, best: best.in_place / best.after,
    "speculation": lambda plain, best: plain.after / best.after,
    "product": lambda plain, best: plain.before / best.after,
}


def read_rows(root: Path) -> list[dict[str, str]]:
    """The profile's bytes."""
    with (root / BYTES).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def render_json(root: Path) -> str:
    """The record."""
    return json.dumps(traffic(read_rows(root)), indent=1) + "\n"


_LEVERS = (
    ("growing a draft level (K1, K2, K3)", "three kernels", "one launch"),
    ("best children of a draft", "softmax in float32, then top-k", "logits streamed, best K kept"),
    ("residual and norm", "seven passes over the rows", "one"),
    ("rotation, storing keys and values", "widened, rotated in halves, joined, copied", "one pass"),
    ("gate", "two passes", "one"),
    ("attention over pages", "KV gathered, then read", "read in place, once for rows and heads"),
    ("verification", "a pass over all weights for one token", "a tree's rows share the pass"),
    ("launches", "one by one from the host", "three graphs a round"),
)
_HEAD = """# Bytes of a round on the GPU, unfused and fused

Written by `aerie report` from `cuda_bytes_per_token.csv`; the arithmetic is in
`src/aerie/bench/report/traffic.py`. kind: modelled, both sides by the same model, with the tokens
per round that were measured. The FPGA's design is [fusion_design_v1.md](fusion_design_v1.md).

| what | before | after |
|---|---|---|
"""
_MIDDLE = """
No lever approximates: kernels are equal to their definitions (`p0_parity_matrix.md`), so the
acceptance impact is none beyond the order of float sums. Measured time, one lever off at a time:
`ablation_h200.md`; kernels one by one: `triton_kernel_times_h200.csv`.

## Effective bytes per token

All bytes of a round over the tokens it emitted, GB. *Fusion alone* compares a policy with itself;
*without weights* leaves out what no fusion can touch.

| context | batch | policy | tokens a round | unfused | fused | fusion alone | without weights |
|---:|---:|---|---:|---:|---:|---:|---:|
"""


def render_page(root: Path) -> str:
    """The page of the GPU's traffic."""
    rows = read_rows(root)
    found = traffic(rows)
    lines = [
        f"| {one.context} | {one.batch} | {one.policy} | {one.tokens_per_round:.2f}"
        f" | {one.before / 1e9:.3f} | {one.after / 1e9:.3f} | {one.before / one.after:.2f}"
        f" | {one.around_weights:.2f} |"
        for one in effective(rows)
    ]
    said = {
        name: ", ".join(f"{ratio:.2f} at {at}" for at, ratio in points.items())
        for name, points in found["by_point"].items()
    }
    closing = (
        "\n## Three numbers, batch x context\n\n"
        f"- Fusion, the same policy without and with it: {said['fusion']}; were the unfused side to"
        f" read KV in place: {said['fusion_without_gather']}.\n"
        f"- Speculation, fused on both sides: {said['speculation']}.\n"
        f"- Both, unfused plain decoding over fused drafting: {said['product']}.\n"
        "\nWeights dominate: no fusion touches them, and only more tokens for a pass over them"
        " divide them. These are the GPU's kernels, by a model; bytes counted at the ports of an"
        " FPGA's kernels are another table.\n"
        "\nLeft out, in favour of *before*: attention's scores, which PyTorch writes and reads in"
        " float32, and the tree's bookkeeping, which is below one percent on either side.\n"
        f"\nCommit of the profile: {found['provenance']['commit']}.\n"
    )
    levers = "".join(f"| {' | '.join(lever)} |\n" for lever in _LEVERS)
    return _HEAD + levers + _MIDDLE + "\n".join(lines) + "\n" + closing
