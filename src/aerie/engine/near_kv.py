"""The memory of previews: the blocks of the KV they look at, the run they leave, their shadow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.pool import KVPool, allocate_pool
from aerie.config import PartialConfig
from aerie.engine.report import Report
from aerie.models.decoder import Decoder

# Requests that are previewed together: their copies take memory, and more of them hide it less.
MOST_SEATS = 8


@dataclass(frozen=True)
class PreviewSizes:
    """What the memory of previews is sized by."""

    n_seats: int  # of the batch
    n_near: int  # of them previewed together at most
    n_rows: int  # of the request-to-slot table, the inert one included
    longest: int  # tokens of a run
    width: int  # positions of each previewed seat: chosen blocks, and a round's behind them
    row_multiple: int  # verified rows are padded to it
    tiles: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Shadow:
    """What rounds inside a draft write instead of the state's own; all else they share."""

    seq_len: Tensor  # [B] i64
    is_live: Tensor  # [B] bool
    report: Report  # never read


@dataclass(frozen=True, eq=False)
class Previews:
    """The memory of previews; seat b of every buffer is one request."""

    config: PartialConfig
    sizes: PreviewSizes
    pool: KVPool  # of all layers but the dense ones: chosen blocks, then a run and its trees
    table: Tensor  # [previewed seats, positions] i32, slots of that pool
    queries: Tensor  # [layers, table rows, heads, dim] of each text's last row, scaled
    scales: Tensor  # [layers, 1, 1, 1]
    near_len: Tensor  # [B] i64, positions in that pool
    roots: Tensor  # [B] i64, before the run
    run: Tensor  # [B, longest + 1] i64, its tokens; the last column is for what does not exist
    count: Tensor  # [B] i64, how many they are; 0 behind a draft without a preview
    shadow: Shadow

    @classmethod
    def empty(
        cls, config: PartialConfig, sizes: PreviewSizes, target: Decoder, report: Report
    ) -> Previews:
        """Room for the chosen blocks, a run and a round's scratch of every previewed seat."""
        device, n = target.embedding.device, sizes.n_seats
        later, attention = target.layers[config.n_dense_layers :], target.geometry.attention
        n_slots = sizes.n_near * sizes.width
        slots = torch.arange(1, 1 + n_slots, dtype=torch.int32, device=device)
        own = attention.n_kv_heads, attention.head_dim
        heads = attention.n_heads, attention.head_dim
        scales = torch.tensor([layer.attention.rule.scale for layer in later], device=device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            config=config,
            sizes=sizes,
            pool=allocate_pool((len(later), 1 + n_slots, *own), target.embedding.dtype, device),
            table=slots.view(sizes.n_near, sizes.width),
            queries=target.embedding.new_zeros((len(later), sizes.n_rows, *heads)),
            scales=scales.to(target.embedding.dtype).view(-1, 1, 1, 1),
            near_len=integers(n),
            roots=integers(n),
            run=integers(n, sizes.longest + 1),
            count=integers(n),
            shadow=Shadow(integers(n), integers(n).bool(), report),
        )

    def padded(self, n_rows: int) -> int:
        """Rows as the numerics want them."""
        return -(-n_rows // self.sizes.row_multiple) * self.sizes.row_multiple
