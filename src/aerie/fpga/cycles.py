"""How many cycles a card takes: what a call is made of, with prices fitted to simulated calls.

A card is a state machine, so its cycles are a sum over what it visits: the call, its requests, the
elements it reads and writes. Prices are fitted to one half of the calls and judged on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Registers = Mapping[str, int]
Outputs = Mapping[str, Any]
Counts = dict[str, float]


def _layer(registers: Registers, outputs: Outputs) -> Counts:
    batch, kept = registers["B"], registers["K"]
    return {
        "call": 1,
        "request": batch,
        "candidate": batch * registers["n"],
        "parent": batch * registers["W"],
        "child": batch * kept,
        "map entry": registers["VD"],
        "beat": batch * kept * registers["row_beats"],
    }


def _merge(registers: Registers, outputs: Outputs) -> Counts:
    taken = int((np.asarray(outputs["status"]) == 0).sum())
    old, new = registers["old_count"], registers["new_count"]
    return {
        "call": 1,
        "request": registers["B"],
        "merged request": taken,
        "read": taken * (old + registers["n"]),
        "merged": taken * new,
    }


def _deltas(registers: Registers, outputs: Outputs) -> Counts:
    batch, kept = registers["B"], registers["node_top_k"]
    return {
        "call": 1,
        "request": batch,
        "score": batch * registers["C"],
        "weighed": batch * kept,
        "gain": kept,
    }


def _mask(registers: Registers, outputs: Outputs) -> Counts:
    taken = int((np.asarray(outputs["status"]) == 0).sum())
    slots, mask_bytes = int(outputs["kv_indptr"][-1]), int(outputs["mask_indptr"][-1])
    return {
        "call": 1,
        "request": registers["B"],
        "laid out": taken,
        "row": registers["R"],
        "slot": slots,
        "mask byte": mask_bytes,
        "spare": registers["kv_capacity"] - slots + registers["mask_capacity"] - mask_bytes,
    }


def _commit(registers: Registers, outputs: Outputs) -> Counts:
    batch = registers["B"]
    taken = int((np.asarray(outputs["status"]) == 0).sum())
    return {
        "call": 1,
        "request": batch,
        "judged": taken,
        "path": batch * (registers["D"] + 1),
        "row": registers["R"],
        "stop": batch * registers["S"],
        "token": int(outputs["out_indptr"][-1]),
        "kept": int(outputs["rows_indptr"][-1]),
        "move": int(np.asarray(outputs["move_count"]).reshape(-1)[0]),
        "freed": int(np.asarray(outputs["free_count"]).reshape(-1)[0]),
    }


def _gather(registers: Registers, outputs: Outputs) -> Counts:
    rows = registers["n_rows"]
    return {"call": 1, "row": rows, "beat": rows * registers["row_beats"]}


COUNTS: Mapping[str, Callable[[Registers, Outputs], Counts]] = {
    "layer": _layer,
    "merge": _merge,
    "deltas": _deltas,
    "mask": _mask,
    "commit": _commit,
    "gather": _gather,
}


@dataclass(frozen=True)
class CycleModel:
    """Prices, and how far off they are on calls they were not fitted to."""

    prices: dict[str, float]
    error: float  # of all held-out cycles together
    worst: float  # held-out call


def fitted(counts: Sequence[Counts], cycles: Sequence[int]) -> CycleModel:
    """Every second call sets the prices, the others judge."""
    names = list(counts[0])
    table = np.array([[one[name] for name in names] for one in counts], np.float64)
    seen = np.array(cycles, np.float64)
    # Relative errors count: a short call is worth as much as a long one.
    weights = 1 / seen[::2]
    solved, *_ = np.linalg.lstsq(table[::2] * weights[:, None], np.ones(len(weights)), rcond=None)
    model = table[1::2] @ solved
    judged = seen[1::2]
    return CycleModel(
        {name: round(float(price), 3) for name, price in zip(names, solved, strict=True)},
        float(abs(model.sum() / judged.sum() - 1)),
        float(np.abs(model / judged - 1).max()),
    )
