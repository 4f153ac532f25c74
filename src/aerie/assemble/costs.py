"""Cost tables and what they are of: shipped, given, or kept from an earlier load."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from aerie.assemble.device import device_name
from aerie.assemble.numerics import choose_draft_products, choose_numerics
from aerie.config import EngineConfig
from aerie.costs.table import CostTable, load_costs
from aerie.errors import UsageError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head

LOG = logging.getLogger(__name__)
# All of a pair that the cost of a round depends on.
PairKey = Mapping[str, Any]
# All that a measured cost depends on, pair and code included.
Identity = Mapping[str, Any]
# What must be the same for a table from elsewhere to mean anything here.
ESSENTIAL = ("device", "engine", "pair")
# The keys of an identity.
IDENTITY = (*ESSENTIAL, "backend", "numerics", "page_size", "threads", "torch", "code")
CACHE_VARIABLE = "AERIE_CACHE"
AGAIN_SECONDS = 600  # at least, between two measurements that found the machine busy
# Packages that a round is made of or measured by: where one changes, tables are measured again.
MEASURED = ("engine", "speculation", "attention", "kernels", "models")


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
        "experts": geometry.experts is not None
        and [geometry.experts.n_experts, geometry.experts.n_active],
        "vocabulary": geometry.vocab_size,
        "draft_layers": 1 + len(head.extra),
        "draft_vocabulary": geometry.vocab_size
        if head.token_map is None
        else head.token_map.shape[0],
    }


def describe_costs(config: EngineConfig, pair: PairKey) -> Identity:
    """What a table measured here, now and for this configuration is a table of."""
    model = config.model
    choices = (*choose_numerics(model), choose_draft_products(model))
    made_of = {choice.name: choice.value for choice in choices}
    return {
        "device": device_name(model.device),
        "engine": config.engine,
        # A part of a target costs what a whole one of its size does, and the ranks' meetings.
        "pair": {**pair, **({"ranks": ranks} if (ranks := model.tensor_parallel) > 1 else {})},
        "backend": config.backend,
        "numerics": {"numerics": model.numerics, **made_of},
        "page_size": config.cache.page_size,
        "threads": torch.get_num_threads() if model.device == "cpu" else 0,
        "torch": torch.__version__,
        "code": code_hash(),
    }


def identity_of(table: CostTable) -> Identity:
    """What a table says it is of; one that does not say all of it cannot be kept."""
    return {name: table.provenance[name] for name in IDENTITY}


@cache
def code_hash() -> str:
    """Names and contents of the sources that a round's cost depends on."""
    root, digest = Path(str(resources.files("aerie"))), hashlib.sha256()
    for package in MEASURED:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def shipped_costs(identity: Identity) -> CostTable | None:
    """The table that comes with aerie for this device, engine and pair; None: there is none.

    Of several, the one of the same numerics: exact ones have other prices for large trees.
    """
    folder = Path(str(resources.files("aerie.costs")))
    tables = [load_costs(path) for path in sorted(folder.glob("costs_*.json"))]
    fitting = [table for table in tables if not differences(table, identity, ESSENTIAL)]
    return min(fitting, key=lambda table: _unlike(table, identity), default=None)


def _unlike(table: CostTable, identity: Identity) -> int:
    """In how many parts of its numerics a table differs: an older one does not know all of them."""
    made = table.provenance.get("numerics", {})
    return sum(made.get(name) != value for name, value in identity["numerics"].items())


def given_costs(path: Path, identity: Identity, takes_foreign: bool) -> CostTable:
    """A table that was asked for; one of another device, engine or pair is refused by name."""
    table = load_costs(path)
    wrong = differences(table, identity, ESSENTIAL)
    if wrong and not takes_foreign:
        raise UsageError(
            f"cost table {path} is of another {' and '.join(wrong)}: measure one here with aerie"
            " tune costs, or set planner.foreign_costs"
        )
    return table


def differences(table: CostTable, identity: Identity, names: tuple[str, ...]) -> list[str]:
    """What a table is of, where that is not what is asked for: `device (NVIDIA H200)`."""
    made = table.provenance
    return [
        f"{name} ({_shown(made.get(name), identity[name])})"
        for name in names
        if made.get(name) != identity[name]
    ]


def _shown(found: Any, wanted: Any) -> str:
    """What differs, of mappings only the entries that do."""
    if found is None:
        return "it does not say which"
    if not isinstance(found, Mapping) or not isinstance(wanted, Mapping):
        return f"{found}, here {wanted}"
    parts = [f"{key} {found.get(key)}" for key in wanted if found.get(key) != wanted[key]]
    return ", ".join(parts)


def costs_folder(environment: Mapping[str, str]) -> Path:
    """Where measured tables are kept: AERIE_CACHE, or the user's cache."""
    own = environment.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser() / "costs"
    # The folder belongs to the desktop's convention, so its variable keeps that name.
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "aerie" / "costs"


def place_of(identity: Identity) -> Path:
    """The file of a table: one for all versions of the code, so that old ones do not pile up."""
    lasting = {name: value for name, value in identity.items() if name not in ("code", "torch")}
    digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:12]
    device = re.sub(r"[^a-z0-9]+", "-", str(identity["device"]).lower()).strip("-")
    return costs_folder(os.environ) / f"{device}-{identity['engine']}-{digest}.json"


def kept_costs(identity: Identity) -> CostTable | None:
    """The table an earlier load has kept; None, with the reason in the log: measure."""
    path = place_of(identity)
    if not path.is_file():
        return None
    try:
        table = load_costs(path)
    except UsageError as error:
        LOG.warning("%s: it is ignored, and costs are measured again", error)
        return None
    wrong = differences(table, identity, tuple(identity))
    if wrong:
        LOG.info("%s is of another %s: costs are measured again", path, " and ".join(wrong))
        return None
    return table


def is_provisional(table: CostTable, identity: Identity) -> bool:
    """Whether a kept table was measured while the machine was busy, and not just now.

    A short look may find quiet a machine that is not: not every load is to measure again.
    """
    if "busy" not in table.provenance:
        return False
    return time.time() - place_of(identity).stat().st_mtime > AGAIN_SECONDS


def keep_costs(table: CostTable, identity: Identity) -> None:
    """Keep a table for later loads; a folder that cannot be written is said, and does no harm."""
    path, busy = place_of(identity), table.provenance.get("busy")
    if busy:
        LOG.warning(
            "costs were measured on a busy machine (%s): they are used, and measured again by a"
            " later load that finds it quiet",
            busy,
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table.save(path)
    except OSError as error:
        LOG.warning("costs are not kept in %s, the next load measures again: %s", path, error)
