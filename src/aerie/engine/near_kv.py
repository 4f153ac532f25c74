"""The memory of previews: the blocks of the KV they look at, the run they leave, their shadow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
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
    scratch: int  # positions a round may use behind a text
    row_multiple: int  # verified rows are padded to it
    tiles: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Previews:
    """The memory of previews; seat b of every buffer is one request."""

    config: PartialConfig
    sizes: PreviewSizes
    pool: KVPool  # of all layers but the dense ones: chosen blocks, then a run and its trees
    table: Tensor  # [previewed seats, positions] i32, slots of that pool
    queries: Tensor  # [layers, table rows, kv_heads, group, dim] of each text's last row, scaled
    scales: Tensor  # [layers, 1, 1, 1, 1]
    near_len: Tensor  # [B] i64, positions in that pool
    roots: Tensor  # [B] i64, before the run
    run: Tensor  # [B, longest + 1] i64, its tokens; the last column is for what does not exist
    count: Tensor  # [B] i64, how many they are; 0 behind a draft without a preview
    seq_len: Tensor  # [B] i64, of the shadow
    is_live: Tensor  # [B] bool, of the shadow
    report: Report  # of the shadow: nobody reads it

    @classmethod
    def empty(
        cls, config: PartialConfig, sizes: PreviewSizes, target: Decoder, report: Report
    ) -> Previews:
        """Room for the chosen blocks, a run and a round's scratch of every previewed seat."""
        device, n = target.embedding.device, sizes.n_seats
        later, attention = target.layers[config.n_dense_layers :], target.geometry.attention
        n_near = sizes.n_near
        width = config.n_blocks * config.specpv_block_size + sizes.scratch + 1
        slots = torch.arange(1, 1 + n_near * width, dtype=torch.int32, device=device)
        whole = target.allocate_pool(1 + n_near * width)
        groups = attention.n_kv_heads, attention.n_heads // attention.n_kv_heads
        scales = [layer.attention.rule.scale for layer in later]

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            config,
            sizes,
            KVPool(whole.keys[: len(later)].clone(), whole.values[: len(later)].clone()),
            slots.view(n_near, width),
            torch.zeros(
                (len(later), sizes.n_rows, *groups, attention.head_dim),
                dtype=target.embedding.dtype,
                device=device,
            ),
            torch.tensor(scales, dtype=target.embedding.dtype, device=device).view(-1, 1, 1, 1, 1),
            *(integers(n), integers(n), integers(n, sizes.longest + 1), integers(n), integers(n)),
            torch.zeros(n, dtype=torch.bool, device=device),
            report,
        )

    def padded(self, n_rows: int) -> int:
        """Rows as the numerics want them."""
        return -(-n_rows // self.sizes.row_multiple) * self.sizes.row_multiple
