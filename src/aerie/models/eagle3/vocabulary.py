"""The draft vocabulary: which target id each draft id stands for, checked before it is believed."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.models.eagle3.names import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from aerie.models.tensors import Offence

ABSOLUTE_ADVICE = (
    "holds target ids, not offsets (target = id + d2t[id]); subtract arange(len(d2t)) from it"
)


def target_ids(offsets: Tensor) -> Tensor:
    """Target id of each draft id: [draft vocab] i64."""
    wide = offsets.long()
    return wide + torch.arange(wide.shape[0], device=wide.device)


def check_map(offsets: Tensor, flags: Tensor | None, vocab_size: int) -> list[Offence]:
    """What is wrong with `d2t` [draft vocab], and with `t2d` [vocab] if the file has one."""
    name, ids = DRAFT_TO_TARGET, target_ids(offsets)
    if _reads_as_absolute(offsets, flags, vocab_size):
        return [Offence("absolute ids", name, ABSOLUTE_ADVICE)]
    offences = []
    outside = (ids < 0) | (ids >= vocab_size)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        detail = (
            f"maps {int(outside.sum())} draft ids outside 0..{vocab_size - 1}; "
            f"the first is {first} -> {int(ids[first])}"
        )
        offences.append(Offence("out of range", name, detail))
    falls = (ids.diff() <= 0).nonzero()
    if falls.numel():
        first = int(falls[0])
        detail = (
            "is not strictly increasing: draft ids "
            f"{first}, {first + 1} -> {int(ids[first])}, {int(ids[first + 1])}"
        )
        offences.append(Offence("not a vocabulary", name, detail))
    if not offences and flags is not None and not _agrees(ids, flags):
        n_flagged = int(flags.bool().sum())
        detail = f"flags {n_flagged} target ids, d2t names {ids.shape[0]} and not the same ones"
        offences.append(Offence("contradictory", TARGET_TO_DRAFT, detail))
    return offences


def _reads_as_absolute(offsets: Tensor, flags: Tensor | None, vocab_size: int) -> bool:
    """Whether `d2t` is a list of target ids rather than of offsets.

    With `t2d` the two readings can be compared. Without it, offsets that grow at every step
    would mean a vocabulary in which no two ids are neighbours: no list of frequent tokens is one.
    """
    ids = offsets.long()
    if ids.shape[0] < 2 or bool((ids < 0).any()) or bool((ids >= vocab_size).any()):
        return False
    if flags is not None:
        return _agrees(ids, flags) and not _agrees(target_ids(ids), flags)
    return bool((ids.diff() > 0).all())


def _agrees(ids: Tensor, flags: Tensor) -> bool:
    """Whether `t2d` flags exactly these target ids."""
    if bool((ids < 0).any()) or bool((ids >= flags.shape[0]).any()):
        return False
    marked = torch.zeros(flags.shape[0], dtype=torch.bool, device=flags.device)
    marked[ids.to(flags.device)] = True
    return torch.equal(marked, flags.bool())
