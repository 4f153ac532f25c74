"""Stage dumps: tensors of one run in a safetensors file, with names any engine can write.

docs/stages.md describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from aerie.errors import UsageError
from aerie.models.weights import Checkpoint, read_header, save_tensors

FILE_NAME = "stages.safetensors"
TOKENS, FEATURES = "tokens", "draft.features"

NAMES = (
    re.compile(TOKENS),
    re.compile(re.escape(FEATURES)),
    re.compile(r"target\.(?:embedding|layers\.\d+|logits)"),
    re.compile(r"draft\.(?:fc_out|attn_out|ffn_out|layers\.\d+|pre_head_hidden|logits)"),
)


@dataclass(frozen=True, eq=False)
class StageDump:
    """What another engine computed for `tokens`."""

    tokens: Tensor  # [tokens] i64
    features: Tensor | None  # [tokens - 1, captures, target hidden], what its head was given
    stages: Mapping[str, Tensor]


def read_dump(directory: Path) -> StageDump:
    """Read DIR/stages.safetensors; an unknown name is an error, for it would not be compared."""
    path = directory / FILE_NAME
    if not path.is_file():
        raise UsageError(f"{directory} has no {FILE_NAME}; docs/stages.md says how to write one")
    files = Checkpoint(read_header(path))
    unknown = [name for name in files.entries if not any(n.fullmatch(name) for n in NAMES)]
    if unknown or TOKENS not in files.entries:
        problem = f"unknown names {', '.join(unknown)}" if unknown else f"no tensor {TOKENS!r}"
        raise UsageError(f"{path}: {problem}; see docs/stages.md")
    tensors = {name: files.view(name) for name in files.entries}
    tokens, features = tensors.pop(TOKENS), tensors.pop(FEATURES, None)
    if tokens.dim() != 1 or tokens.is_floating_point() or tokens.shape[0] < 2:
        raise UsageError(f"{path}: tokens must be a list of at least two token ids")
    return StageDump(tokens.long(), features, tensors)


def write_dump(directory: Path, dump: StageDump) -> Path:
    """Write DIR/stages.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    extra = {} if dump.features is None else {FEATURES: dump.features}
    tensors = {TOKENS: dump.tokens, **extra, **dump.stages}
    # Copies on the CPU: a tap and the embedding stage may share memory.
    cpu = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    save_tensors(directory / FILE_NAME, cpu, {"writer": "aerie"})
    return directory / FILE_NAME
