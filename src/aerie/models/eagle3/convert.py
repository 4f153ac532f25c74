"""Converts draft heads between our normal form and the public dialects.

    head = read_normal(directory, target_sizes)
    write_head(out, head, "speculators", ExportDetails(max_positions=131072))

A dialect that cannot express a head refuses it: written anyway, another engine would load the
file without a word and draft nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.errors import UnknownNameError, UsageError
from aerie.models.eagle3 import names as names
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.config import MODELOPT, SPECFORGE, SPECULATORS
from aerie.models.eagle3.export import WRITERS, Config, ExportDetails, NormalHead
from aerie.models.eagle3.load import read_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.eagle3.values import HeadStorage
from aerie.models.eagle3.vocabulary import target_ids
from aerie.models.fields import read_config
from aerie.models.quantisation import SECTION
from aerie.models.tensors import refuse
from aerie.models.weights import SINGLE, save_tensors


@dataclass(frozen=True)
class Dialect:
    """How one family of engines writes a head, and what it cannot say."""

    name: str
    readers: str
    layer_name: str  # of layer 0
    extra_norm: str  # pre-attention norm of further layers
    unsayable: frozenset[str]  # names of `_features` it has no way to express


DIALECTS = (
    Dialect(
        SPECFORGE,
        "SGLang, SpecForge",
        "midlayer",
        "hidden_norm",
        frozenset(
            ("norm_before_residual", "logit_scale", "attention_bias", "qk_norm", "final_state")
        ),
    ),
    Dialect(
        SPECULATORS,
        "vLLM, speculators",
        names.layer_prefix(0),
        "input_layernorm",
        frozenset(("final_state", "quantisation")),
    ),
    Dialect(
        MODELOPT,
        "TensorRT-LLM, ModelOpt",
        names.layer_prefix(0),
        "hidden_norm",
        frozenset(("norm_before_residual", "logit_scale", "attention_bias", "qk_norm")),
    ),
)


def read_normal(
    directory: Path, target: TargetSizes, options: HeadOptions | None = None
) -> NormalHead:
    """Read a head of any dialect; the target's sizes resolve what its config leaves open."""
    found = read_head(directory, target, options or HeadOptions())
    refuse(found.offences, str(directory))
    raw = read_config(directory).values.get(SECTION)
    tensors = {name: found.files.view(name) for name in found.files.entries}
    output = f"{names.HEAD}.weight"
    if found.config.storage.is_head_tied and output not in tensors and names.EMBEDDING in tensors:
        # Tied to its own embedding: only one dialect has a word for it, so write it out.
        tensors[output] = tensors[names.EMBEDDING].clone()
    return NormalHead(
        geometry=found.summary.geometry,
        convention=found.summary.convention,
        tensors=tensors,
        quantisation=raw if isinstance(raw, dict) else None,
    )


def write_head(
    directory: Path, head: NormalHead, dialect_name: str, details: ExportDetails
) -> None:
    """Write config.json and the weights; raises UsageError if the dialect cannot express it."""
    config, tensors = to_dialect(head, dialect_name, details)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    save_tensors(directory / SINGLE, tensors, {"format": "pt"})


def to_dialect(
    head: NormalHead, dialect_name: str, details: ExportDetails
) -> tuple[Config, dict[str, Tensor]]:
    """config.json and tensors of a head as one dialect spells them."""
    dialect = _find(dialect_name)
    _check(head, dialect)
    config = WRITERS[dialect.name](head, details)
    if head.quantisation is not None:
        config[SECTION] = dict(head.quantisation)
    storage = head.storage
    tensors = {_spell(name, dialect, storage): t for name, t in head.tensors.items()}
    geometry = head.geometry
    if names.DRAFT_TO_TARGET in tensors and names.TARGET_TO_DRAFT not in tensors:
        flags = torch.zeros(geometry.vocab_size, dtype=torch.bool)
        flags[target_ids(tensors[names.DRAFT_TO_TARGET])] = True
        tensors[names.TARGET_TO_DRAFT] = flags
    return config, tensors


def _find(name: str) -> Dialect:
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    raise UnknownNameError("dialect", name, [dialect.name for dialect in DIALECTS])


def _features(head: NormalHead) -> dict[str, bool]:
    """What a head uses that not every dialect can say."""
    convention, storage = head.convention, head.storage
    return {
        "norm_before_residual": convention.is_residual_normed,
        "logit_scale": convention.logit_scale != 1.0,
        "attention_bias": storage.has_qkv_bias or storage.has_output_bias,
        "qk_norm": storage.has_qk_norm,
        "final_state": not convention.uses_captures,
        "quantisation": head.quantisation is not None,
    }


def _check(head: NormalHead, dialect: Dialect) -> None:
    used = {name for name, is_used in _features(head).items() if is_used}
    lost = sorted(used & dialect.unsayable)
    if lost:
        raise UsageError(
            f"the {dialect.name} dialect ({dialect.readers}) cannot express {', '.join(lost)}; "
            "its engines would load the head and draft nothing. Choose another dialect"
        )
    if 0 in head.convention.boundaries and dialect.name != SPECULATORS:
        raise UsageError(
            f"the {dialect.name} dialect names layer outputs, and boundary 0 is the embedding"
        )


def _spell(name: str, dialect: Dialect, storage: HeadStorage) -> str:
    first = f"{names.layer_prefix(0)}."
    if name.startswith(first):
        return f"{dialect.layer_name}.{name.removeprefix(first)}"
    if name.startswith("layers.") and f".{storage.extra_norm}." in name:
        return name.replace(f".{storage.extra_norm}.", f".{dialect.extra_norm}.")
    return name
