"""What drafting asks of a draft head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from aerie.attention.contract import Reach
from aerie.attention.pool import KVPool
from aerie.attention.rows import Rows


class DraftOutput(Protocol):
    """What a forward of a draft head returns."""

    @property
    def hidden(self) -> Tensor:
        """[asked, hidden], what the next level reads."""
        ...

    @property
    def logits(self) -> Tensor:
        """[asked, draft vocab]."""
        ...

    @property
    def normed(self) -> Tensor:
        """[asked, hidden], what the LM head read."""
        ...


class DraftHead(Protocol):
    """The part of a draft head that drafting uses."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target it reads."""
        ...

    @property
    def reach(self) -> Reach:
        """How far back its own keys and values matter."""
        ...

    @property
    def token_map(self) -> Tensor | None:
        """Target id of each draft id [draft vocab] i64; None: the same."""
        ...

    def extend(
        self, rows: Rows, taps: Tensor, pool: KVPool, asked: Tensor | None = None
    ) -> DraftOutput:
        """Rows whose hidden states come from the target."""
        ...

    def step(
        self, rows: Rows, hidden: Tensor, pool: KVPool, *, rotation: Any = None
    ) -> DraftOutput:
        """Rows whose hidden states are its own."""
        ...

    def rotations(self, positions: Sequence[Tensor]) -> Sequence[Any]:
        """What `step` needs of several positions [rows] i64, computed together."""
        ...
