"""What one round decided for one request, whichever loop ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerie.kernels.status import MEANINGS, Status
from aerie.speculation.proposer import Features


@dataclass(frozen=True)
class Decision:
    """The verdict on one request after clipping, in host values."""

    tokens: tuple[int, ...] = ()  # emitted, in order
    n_nodes: int = 0  # draft nodes that were verified
    n_accepted: int = 0  # of them, before clipping
    seq_len: int = 0  # tokens with KV after the commit
    is_finished: bool = False
    failure: str | None = None  # why the request cannot go on
    features: list[Features] = field(default_factory=list)  # for the draft's next extend
    is_extended: bool = True  # the draft took in what waited before; else `features` join it
    logprobs: list[float] = field(default_factory=list)


def describe_failure(words: Sequence[int]) -> str | None:
    """The first status word that is not zero as a sentence; None when all is well."""
    for word in words:
        if word:
            return f"{MEANINGS[Status(word)].sentence} (status {Status(word).name})"
    return None
