"""The GPU's traffic table: bytes per token before and after fusion, from the profile's model.

After is what the profile recorded. Before is the same rounds with the PyTorch definitions of the
fused operations, whose every intermediate tensor goes to memory and comes back. Both are modelled:
a cache may keep a small tensor, and then either side moves less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.record import line, page, read_csv
from aerie.models.inflate.geometry import find_geometry

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
_COLUMNS = ("{0.context}", "{0.batch}", "{0.policy}", "{0.tokens_per_round:.2f}",
            "{0.gigabytes[0]:.3f}", "{0.gigabytes[1]:.3f}", "{0.fusion:.2f}",
            "{0.around_weights:.2f}")  # fmt: skip
# Of fused plain decoding and the best policy of a point.
_RATIOS: dict[str, Callable[[Effective, Effective], float]] = {
    "fusion": lambda plain, best: best.before / best.after,
    "fusion_without_gather": lambda plain, best: best.in_place / best.after,
    "speculation": lambda plain, best: plain.after / best.after,
    "product": lambda plain, best: plain.before / best.after,
}


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
    def fusion(self) -> float:
        """How much it took from all bytes."""
        return self.before / self.after

    @property
    def gigabytes(self) -> tuple[float, float]:
        """Unfused, and fused."""
        return self.before / 1e9, self.after / 1e9

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
        "points": [{**vars(one), "fusion_alone": round(one.fusion, 3)} for one in every],
        "provenance": {"commit": " ".join(commits), "raw": BYTES},
    }


def render_json(root: Path) -> str:
    """The record."""
    return json.dumps(traffic(read_csv(root / BYTES)), indent=1) + "\n"


def render_page(root: Path) -> str:
    """The page of the GPU's traffic."""
    rows = read_csv(root / BYTES)
    found = traffic(rows)
    said = {
        name: ", ".join(f"{ratio:.2f} at {at}" for at, ratio in points.items())
        for name, points in found["by_point"].items()
    }
    shown = [line(form.format(own) for form in _COLUMNS) for own in effective(rows)]
    return page("traffic", rows=shown, commit=found["provenance"]["commit"], **said)
