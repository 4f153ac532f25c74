"""NVTX ranges around the parts of a round, opt-in: an engine without them carries no trace of it.

Ranges are host marks. A captured graph is replayed without its host code, so there they exist at
capture time only; rounds that are called one by one show all of them, every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.profiler import record_function

from aerie.bench.lane import relaunch
from aerie.engine.engine import EngineCore
from aerie.kernels.registry import Kernels
from aerie.models.decoder import Decoder, DecoderOutput
from aerie.models.eagle3.head import Eagle3Head

BASE, DRAFT_ATTENTION, DRAFT_FFN, DRAFT_HEAD, MASKS, ACCEPT, COMMIT = NAMES = (
    "BASE_DECODE_STEP",
    "EAGLE_DRAFT_ATTENTION_FMHA",
    "EAGLE_DRAFT_FFN",
    "EAGLE_DRAFT_LM_HEAD",
    "EAGLE_TREE_MASKS",
    "EAGLE_ACCEPT",
    "EAGLE_TAIL_COMMIT",
)
# Kernels by what they do for a tree: its rows and ancestor bits, the walk, the commit.
KERNEL_RANGES = {
    "update_node_data": MASKS,
    "draft_tree_reject_sample": ACCEPT,
    "update_verify_result": COMMIT,
}


@contextmanager
def marked(name: str) -> Iterator[None]:
    """A range for NVTX where there is CUDA, and for torch's profiler anywhere."""
    has_nvtx = torch.cuda.is_available()
    if has_nvtx:
        torch.cuda.nvtx.range_push(name)
    try:
        with record_function(name):
            yield
    finally:
        if has_nvtx:
            torch.cuda.nvtx.range_pop()


@dataclass(frozen=True, eq=False)
class Ranged:
    """Calls something inside a range; everything else about it shows through."""

    inner: Any
    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The inner call, marked."""
        with marked(self.name):
            return self.inner(*arguments, **named)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.inner, attribute)


class RangedDecoder(Decoder):
    """The target with a range around its forward."""

    def forward(self, *arguments: Any, **named: Any) -> DecoderOutput:
        """One pass, marked."""
        with marked(BASE):
            return super().forward(*arguments, **named)


def with_ranges(core: EngineCore) -> EngineCore:
    """The engine, from now on with ranges; to be called before its first round."""
    parts, draft = core.parts, core.parts.draft
    own, table = parts.kernels, dict[str, Any](parts.kernels)
    table |= {name: Ranged(own[name], title) for name, title in KERNEL_RANGES.items()}
    kernels = Kernels(own.backend, own.device, own.data_errors, table)
    target = RangedDecoder(**{e.name: getattr(parts.target, e.name) for e in fields(parts.target)})
    if draft is not None:
        head: Any = draft.head
        draft = replace(draft, head=_head(head), kernels=kernels)
    relaunch(core, replace(parts, kernels=kernels, target=target, draft=draft))
    return core


def _head(head: Eagle3Head) -> Eagle3Head:
    first: Any = replace(
        head.first,
        attention=Ranged(head.first.attention, DRAFT_ATTENTION),  # type: ignore[arg-type]
        feed_forward=Ranged(head.first.feed_forward, DRAFT_FFN),
    )
    return replace(head, first=first, output=Ranged(head.output, DRAFT_HEAD))
