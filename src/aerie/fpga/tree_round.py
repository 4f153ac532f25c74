"""One round of the tree kernels as data: levels of a draft, requests, the target's logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Call = Callable[..., Mapping[str, Any]]  # (kernel name, **inputs) to results by name

OUTCOME = (
    "out_tokens",
    "out_indptr",
    "out_rows",
    "rows_indptr",
    "new_seq_len",
    "finished",
    "unfinished",
    "unfinished_count",
    "kv_src",
    "kv_dst",
    "move_count",
    "free",
    "free_count",
)


@dataclass(frozen=True, eq=False)
class DraftLevel:
    """What the draft head gave for one frontier."""

    probas: Array  # [B, W*K] f32
    tokens: Array  # [B, W*K] i64
    hidden: Array  # [B*W, H] 16-bit

    def width(self, top_k: int) -> int:
        """Frontier slots."""
        return int(self.probas.shape[1]) // top_k


@dataclass(frozen=True, eq=False)
class Serving:
    """What the server knows of each request."""

    root_tokens: Array  # [B] i64
    seq_len: Array  # [B] i64
    length_limit: Array  # [B] i64
    stop_tokens: Array  # [B, S] i64
    req_to_token: Array  # [P, L] i32
    req_pool_indices: Array  # [B] i64

    @property
    def places(self) -> dict[str, Array]:
        """Where the requests' tokens lie, as arguments."""
        names = ("seq_len", "req_to_token", "req_pool_indices")
        return {name: getattr(self, name) for name in names}

    @property
    def ends(self) -> dict[str, Array]:
        """What ends requests, as arguments."""
        return {"length_limit": self.length_limit, "stop_tokens": self.stop_tokens}


@dataclass(frozen=True, eq=False)
class TreeRound:
    """A whole round: levels of the draft, then the target's logits for the rows it verified.

    `coins` None is the rule of argmax, for greedy requests.
    """

    top_k: int
    verify_num: int
    levels: tuple[DraftLevel, ...]
    serving: Serving
    logits: Array  # [R, V] f32
    temperature: Array  # [B] f32
    coins: Array | None  # [B, D+2] f32
    # Slots of each level where the levels themselves are made on the way.
    widths: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.serving.seq_len)

    @property
    def level_widths(self) -> tuple[int, ...]:
        """Frontier slots of each level."""
        return self.widths or tuple(level.width(self.top_k) for level in self.levels)

    @property
    def depth(self) -> int:
        """Levels."""
        return len(self.level_widths)

    def capacities(self, n_rows: int) -> dict[str, int]:
        """Entries of the slot list and bytes of the packed masks, as large as this round needs."""
        columns = self.serving.seq_len + self.verify_num
        slots = int(self.serving.seq_len.sum()) + n_rows
        mask_bytes = int(((self.verify_num * columns + 7) // 8).sum())
        return {"kv_capacity": slots, "mask_capacity": mask_bytes}

    def limits(self, n_rows: int) -> dict[str, int]:
        """What a region that grows the tree is told of it."""
        own = {"K": self.top_k, "verify_num": self.verify_num, "row_capacity": n_rows}
        return own | self.capacities(n_rows)


@dataclass(frozen=True, eq=False)
class Grown:
    """What a draft hands to the target: gains of each level, rows, slot lists and masks."""

    gains: Array  # [D, K+1] f32
    layout: Mapping[str, Any]
    mask: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RoundResult:
    """Both halves of a round."""

    grown: Grown
    outcome: Mapping[str, Any]  # K7's results by name


@dataclass(frozen=True, eq=False)
class Frontier:
    """What the tree kernels hand to the next level of a head."""

    number: int  # levels before it
    tokens: Array  # [B, W] i64
    hidden: Array  # [B, W, H] 16-bit, of the parents
    mask: Array  # [B, W, F] bool


NextLevel = Callable[[Frontier], DraftLevel]
