"""Which product computes a linear layer of few rows: plans, and the table that chooses them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from aerie.chips import DeviceRecord
from aerie.errors import UnknownNameError, UsageError

VERSION = 1
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
KINDS = ("cublas", "gemv", "dot")


@dataclass(frozen=True)
class Plan:
    """How one product is computed; a cublas plan has no tile.

    A program makes `block_n` outputs of all rows over one of `splits` parts of the inner axis,
    `block_k` entries at a time. `block_m` rows stand in a matrix instruction, real or padding.
    """

    kind: str
    block_n: int = 0
    block_k: int = 0
    block_m: int = 0
    splits: int = 1
    warps: int = 4
    stages: int = 1

    def fits(self, n_out: int, n_in: int) -> bool:
        """Whether the tile divides the weight: the kernels have no masks along it."""
        if self.kind == "cublas":
            return True
        n_steps, left = divmod(n_in, self.block_k)
        return n_out % self.block_n == 0 and left == 0 and self.splits <= n_steps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program at most: both operands, in bfloat16, of every stage."""
        return 2 * self.stages * (self.block_n + self.block_m) * self.block_k

    def fitted(self, device: DeviceRecord) -> Plan:
        """The plan with as few stages less, then as little of the inner axis, as it must."""
        plan = self
        while plan.shared_bytes > device.shared_bytes:
            if plan.stages > 2:
                plan = replace(plan, stages=plan.stages - 1)
            else:
                plan = replace(plan, block_k=plan.block_k // 2)
        return plan


CUBLAS = Plan("cublas")


@dataclass(frozen=True)
class Key:
    """A product's shape: outputs, inputs, and the bucket its rows fall into."""

    n_out: int
    n_in: int
    rows: int


def row_bucket(n_rows: int) -> int | None:
    """The smallest bucket that holds the rows; None beyond the largest."""
    return next((bucket for bucket in ROW_BUCKETS if n_rows <= bucket), None)


@dataclass(frozen=True)
class GemmTable:
    """Tuned plans of one device, with where they come from."""

    plans: Mapping[Key, Plan]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def fitted(self, device: DeviceRecord) -> GemmTable:
        """The same plans as another device can run them."""
        plans = {key: plan.fitted(device) for key, plan in self.plans.items()}
        return replace(self, plans=plans)

    def find(self, n_out: int, n_in: int, n_rows: int) -> Plan | None:
        """The plan for a product; None if the table has none. Many rows are cuBLAS's own."""
        bucket = row_bucket(n_rows)
        return CUBLAS if bucket is None else self.plans.get(Key(n_out, n_in, bucket))


@dataclass(frozen=True)
class Usage:
    """What a run asked of a table: shapes it held, and shapes it did not."""

    hits: Counter[Key] = field(default_factory=Counter)
    misses: Counter[Key] = field(default_factory=Counter)

    def shapes(self) -> list[dict[str, int]]:
        """Every shape seen, as `aerie tune gemm --shapes` reads it."""
        seen = sorted({*self.hits, *self.misses}, key=lambda key: (key.n_out, key.n_in, key.rows))
        return [asdict(key) for key in seen]


def read_table(path: Path) -> GemmTable:
    """A table from a file `aerie tune gemm` wrote; refuses other versions and unknown kinds."""
    return parse_table(json.loads(path.read_text(encoding="utf-8")), str(path))


def shipped_table(name: str) -> GemmTable:
    """A table that comes with aerie: `h200`."""
    folder = resources.files("aerie.kernels.triton_gpu")
    known = [
        entry.name.removeprefix("gemm_").removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.startswith("gemm_") and entry.name.endswith(".json")
    ]
    if name not in known:
        raise UnknownNameError("tuned table", name, known)
    text = folder.joinpath(f"gemm_{name}.json").read_text(encoding="utf-8")
    return parse_table(json.loads(text), name)


def parse_table(record: Mapping[str, Any], source: str) -> GemmTable:
    """A table from its parsed JSON."""
    if record.get("version") != VERSION:
        raise UsageError(
            f"{source}: version {record.get('version')!r} of a tuned table, this aerie reads"
            f" {VERSION}; run `aerie tune gemm` again"
        )
    plans: dict[Key, Plan] = {}
    for entry in record["entries"]:
        plan = Plan(**entry["plan"])
        key = Key(entry["n_out"], entry["n_in"], entry["rows"])
        if plan.kind not in KINDS or not plan.fits(key.n_out, key.n_in):
            raise UsageError(f"{source}: {key} has a plan that does not fit it: {plan}")
        plans[key] = plan
    return GemmTable(plans, record["provenance"])


def table_record(
    plans: Iterable[tuple[Key, Plan, Mapping[str, float]]], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON of a table: one entry per shape, with the figures that chose its plan."""
    entries = [{**asdict(key), "plan": asdict(plan), **figures} for key, plan, figures in plans]
    return {"version": VERSION, "provenance": dict(provenance), "entries": entries}
