"""What a round runs on, and what its verdict is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.engine.buckets import Bucket
from aerie.engine.near_kv import Previews
from aerie.engine.state import State
from aerie.kernels.registry import Kernels
from aerie.models.decoder import Decoder
from aerie.speculation.draft import Draft
from aerie.speculation.ngram import CopiedPaths
from aerie.speculation.policy import Policy


@dataclass(frozen=True, eq=False)
class Verdict:
    """The accepted root path of each request and the one token after it, from K6."""

    accept_index: Tensor  # [B, D+1] i64
    accept_count: Tensor  # [B] i64
    bonus_token: Tensor  # [B] i64
    sample_status: Tensor  # [B] i32, not zero for a request whose logits cannot be used
    walk_status: Tensor  # [B] i32
    # What `sample_target_tokens` chose from, by its arguments; None: coins chose.
    sampled: Mapping[str, Tensor] | None = None


# How a verdict is reached from a layout and its logits [rows, vocab] f32 (`engine/rules.py`).
Rule = Callable[["Parts", Bucket, Any, Tensor], Verdict]


@dataclass(frozen=True, eq=False)
class Parts:
    """Wired once, in `assemble/core.py`."""

    target: Decoder
    pool: KVPool
    table: Tensor  # [requests, positions] i32
    kernels: Kernels
    state: State
    policy: Policy
    rule: Rule
    draft: Draft | None  # None: no head
    copied: CopiedPaths | None  # None: no path is copied from the text
    # Attention that leaves rows without an owner alone needs no request for a bucket's padding.
    has_inert_request: bool
    near_limit: Tensor | None  # [B] f32, of `find_near_ties`; None: they are not counted
    previews: Previews | None = None  # None: every pass looks at the whole KV

    @property
    def is_preview(self) -> bool:
        """Whether its rounds are inside a draft, over a part of the KV."""
        return self.previews is not None and self.state.report is self.previews.shadow.report

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target whose features the draft reads."""
        return () if self.draft is None else self.draft.head.taps

    @property
    def longest_path(self) -> int:
        """Tokens a round can emit for one request."""
        return self.state.kept.tokens.shape[1]
