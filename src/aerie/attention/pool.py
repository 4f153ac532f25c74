"""KVPool: the keys and values of every layer, addressed by slot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KVPool:
    """Storage shared by all requests. The value is frozen, the tensors are written in place.

    Slot 0 is reserved: padding rows of a captured batch write there and it is never read.
    """

    keys: Tensor  # [layers, slots, kv_heads, head_dim]
    values: Tensor  # [layers, slots, kv_heads, head_dim]

    @property
    def n_slots(self) -> int:
        """Slots in the pool, the inert one included."""
        return self.keys.shape[1]

    @cached_property
    def layers(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Keys and values of each layer: views [slots, kv_heads, head_dim], made once."""
        return tuple(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots in every layer; all reads happen before any write, as K7's moves need."""
        # index_select gathers into fresh memory, so overlapping lists are safe.
        self.keys.index_copy_(1, destination, self.keys.index_select(1, source))
        self.values.index_copy_(1, destination, self.values.index_select(1, source))


def allocate_pool(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device | str
) -> KVPool:
    """A pool of zeros; `shape` is (layers, slots, kv_heads, head_dim), slot 0 included."""
    return KVPool(
        keys=torch.zeros(shape, dtype=dtype, device=device),
        values=torch.zeros(shape, dtype=dtype, device=device),
    )
