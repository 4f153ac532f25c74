"""The cost tables that are shipped: which device and pair each was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.models.resolved import Resolved
from aerie.speculation.costs import CostTable, load_costs

# All of a pair that the cost of a round depends on.
PairKey = Mapping[str, Any]
NO_TABLE = "none"


def describe_pair(target: Decoder, head: Eagle3Head) -> PairKey:
    """The sizes and the dtype that rounds of a pair are computed with."""
    geometry, attention = target.geometry, target.geometry.attention
    return {
        "dtype": str(target.embedding.dtype).removeprefix("torch."),
        "layers": geometry.n_layers,
        "hidden": geometry.hidden_size,
        "heads": attention.n_heads,
        "kv_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "mlp": geometry.mlp_width,
        "experts": geometry.experts is not None,
        "vocabulary": geometry.vocab_size,
        "draft_layers": 1 + len(head.extra),
        "draft_vocabulary": geometry.vocab_size
        if head.token_map is None
        else head.token_map.shape[0],
    }


def shipped_tables() -> list[CostTable]:
    """Every table that comes with aerie."""
    folder = Path(str(resources.files("aerie.speculation")))
    return [load_costs(path) for path in sorted(folder.glob("costs_*.json"))]


def shipped_costs(device: str, pair: PairKey) -> CostTable | None:
    """The table of this device and pair, measured on captured rounds; None: there is none."""
    if not device.startswith("cuda"):
        return None
    wanted = {"device": torch.cuda.get_device_name(device), "engine": "graphs", "pair": dict(pair)}
    for table in shipped_tables():
        if all(table.provenance.get(name) == value for name, value in wanted.items()):
            return table
    return None


def choose_table(device: str, pair: PairKey | None) -> Resolved[str]:
    """Which shipped table captured rounds are planned from, or why none."""
    if pair is None:
        reason = "captured rounds are planned where a cost table of device and pair is shipped"
        return Resolved("costs", NO_TABLE, "automatic", f"{reason}, or planner.costs is given")
    table = shipped_costs(device, pair)
    if table is None:
        reason = "no cost table of captured rounds is shipped for this device and pair"
        return Resolved("costs", NO_TABLE, "automatic", f"{reason}: run aerie tune costs")
    made = table.provenance
    reason = f"planned from the costs measured on {made['device']} at {str(made['commit'])[:7]}"
    return Resolved("costs", "shipped", "table", reason)
