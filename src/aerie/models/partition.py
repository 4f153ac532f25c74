"""Partition: which part of a decoder's weights one rank of several holds.

Products that widen a row (q, k, v, gate, up, the LM head) are split by columns of their result,
those that bring it back (o, down) by rows: what those give is summed over the ranks. Everything
else is whole everywhere. Where there are more ranks than KV heads, several hold the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from aerie.errors import UsageError
from aerie.models.blueprint import HEAD
from aerie.models.geometry import Geometry
from aerie.models.linear import Linear

WIDENING = ("q_proj", "gate_proj", "up_proj")
KEYED = ("k_proj", "v_proj")
SUMMED = ("o_proj", "down_proj")


@dataclass(frozen=True, eq=False)
class Partition:
    """One part of `size`, and the two ways in which ranks meet.

    `sum` adds up what all of them bring, `gather` puts it side by side; only rank 0 needs the
    latter.
    """

    rank: int
    size: int
    sum: Callable[[Tensor], Tensor]
    gather: Callable[[Tensor], Tensor]

    def summed(self, linear: Linear) -> Linear:
        """A layer split by rows, given this rank's part of it."""
        return lambda x: self.sum(linear(x))

    def gathered(self, linear: Linear, n_out: int) -> Linear:
        """A layer split by columns, of which so many are no padding."""
        return lambda x: self.gather(linear(x))[:, :n_out]

    def own(self, geometry: Geometry) -> Geometry:
        """The geometry of this part; the vocabulary, which is gathered, stays whole."""
        check_split(geometry, self.size)
        whole, size = geometry.attention, self.size
        n_kv_heads = max(whole.n_kv_heads // size, 1)
        attention = replace(whole, n_heads=whole.n_heads // size, n_kv_heads=n_kv_heads)
        return replace(geometry, attention=attention, mlp_width=geometry.mlp_width // size)

    def cutter(self, geometry: Geometry) -> Callable[[str, Tensor], Tensor]:
        """What cuts this rank's part out of a tensor of the whole geometry, by its name."""
        attention, vocabulary = geometry.attention, geometry.vocab_size

        def cut(name: str, tensor: Tensor) -> Tensor:
            layer, _, kind = name.rpartition(".")
            layer = layer.rpartition(".")[2]
            if layer in WIDENING:
                return self._share(tensor, 0)
            if layer in KEYED:
                first = self.rank * attention.n_kv_heads // self.size * attention.head_dim
                n_own = max(attention.n_kv_heads // self.size, 1) * attention.head_dim
                return tensor.narrow(0, first, n_own)
            if layer in SUMMED:
                return self._summand(tensor, kind)
            return self._rows(tensor, vocabulary) if layer == HEAD else tensor

        return cut

    def _share(self, tensor: Tensor, axis: int) -> Tensor:
        width = tensor.shape[axis] // self.size
        return tensor.narrow(axis, self.rank * width, width)

    def _summand(self, tensor: Tensor, kind: str) -> Tensor:
        """Of a layer whose results are summed; a bias is added once, by rank 0."""
        if kind == "weight":
            return self._share(tensor, 1).contiguous()
        return tensor if self.rank == 0 else torch.zeros_like(tensor)

    def _rows(self, tensor: Tensor, vocabulary: int) -> Tensor:
        """Of the LM head, equally many everywhere: zeros stand behind the last."""
        n_own = -(-vocabulary // self.size)
        own = tensor[self.rank * n_own : (self.rank + 1) * n_own]
        return functional.pad(own, (0, 0, 0, n_own - own.shape[0])) if len(own) < n_own else own


def check_split(geometry: Geometry, size: int) -> None:
    """Raise UsageError where a decoder cannot be split over so many ranks, with all reasons."""
    if geometry.experts is not None:
        raise UsageError(
            f"tensor_parallel {size}: experts ({geometry.architecture}) are not split over ranks; "
            "use tensor_parallel 1"
        )
    uneven = _uneven(geometry, size)
    if uneven:
        others = range(1, geometry.attention.n_heads + 1)
        possible = [str(n) for n in others if not _uneven(geometry, n)]
        raise UsageError(
            f"tensor_parallel {size} does not divide {' nor '.join(uneven)}; this model can be "
            f"split in {' or '.join(possible)}"
        )


def _uneven(geometry: Geometry, size: int) -> list[str]:
    n_heads, n_kv = geometry.attention.n_heads, geometry.attention.n_kv_heads
    is_even = {
        f"{n_heads} heads": n_heads % size == 0,
        f"{n_kv} KV heads": n_kv % size == 0 or size % n_kv == 0,
        f"an MLP {geometry.mlp_width} wide": geometry.mlp_width % size == 0,
    }
    return [what for what, holds in is_even.items() if not holds]
