"""How captured rounds are cut to size: the bucket that holds them, and all that may be asked for.

Of a round that is launched while another is under way only bounds are known: nobody has read yet
how far that one went, nor how many nodes it chose.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from aerie.config import GraphConfig
from aerie.engine.device_report import Seat
from aerie.engine.device_round import Bucket
from aerie.engine.graphs import smallest
from aerie.speculation.policy import TreeShape

# Rows of a request that has many, in those of the mean. One more tile costs another pass over its
# text, a tile too large some arithmetic: a layer of 8 x 8K with 12 rows each took 87 µs in tiles of
# 64 and 115 in tiles of 16, at 32K 330 and 399; with 8 each 86 and 89, 323 and 293 (H200, 2026-11).
SPREAD = 2


@dataclass(frozen=True, eq=False)
class RoundSizes:
    """What the buckets of an engine follow from."""

    graphs: GraphConfig
    row_multiple: int  # verified rows are padded to it
    scratch: int  # positions a round may use beyond seq_len + 1
    shape: TreeShape  # the largest tree
    longest_path: int  # tokens a round can emit for one request

    def reach(self, place: Seat, n_under_way: int) -> int:
        """Positions that a round may use for a seat, launched behind so many others."""
        limit = max(place.request.job.length_limit, place.seq_len)
        return min(place.seq_len + n_under_way * self.longest_path, limit) + 1 + self.scratch

    def slots(self, n_requests: int) -> int:
        """The bucket of so many requests."""
        return smallest(self.graphs.slots, n_requests)

    def bucket(self, seats: Sequence[Seat], n_under_way: int, agreed: int | None = None) -> Bucket:
        """The smallest that holds a round of these seats, launched behind so many others.

        `agreed` rows, all slots together, will have been chosen for it.
        """
        slots, most = self.slots(len(seats)), self._most_rows
        # Every slot verifies its root at least, an empty one too.
        n_rows, each = agreed, most if agreed is None else min(most, agreed - slots + 1)
        if n_rows is None:
            rows = [most if n_under_way else place.n_rows for place in seats]
            n_rows, each = sum(rows) + slots - len(seats), max(rows)
        total = smallest(self.graphs.rows, n_rows)
        return Bucket(
            slots=slots,
            rows=self._padded(total),
            columns=self.columns(max(self.reach(place, n_under_way) for place in seats)),
            is_sampled=any(place.request.params.temperature > 0 for place in seats),
            tile=min(smallest(self.graphs.tiles, each), self._tile(total, slots)),
        )

    def columns(self, n_positions: int) -> int:
        """The bucket of the longest request."""
        return smallest(self.graphs.columns, n_positions)

    def verified(self, slots: int, columns: int, most: int, is_sampled: bool) -> list[Bucket]:
        """Every bucket of rows that so many trees may need, of `most` rows together."""
        totals = _up_to(self.graphs.rows, slots, most)
        tiles = _up_to(self.graphs.tiles, 1, self._most_rows)
        found = {
            Bucket(slots, self._padded(total), columns, is_sampled, min(most_each, common))
            for fewer, total in itertools.pairwise((0, *totals))
            for less, most_each in itertools.pairwise((0, *tiles))
            # Somebody has more than `less`, all together more than `fewer`.
            if slots * most_each > fewer and less + slots <= total
            for common in (self._tile(total, slots),)
        }
        return sorted(found, key=lambda bucket: (bucket.rows, bucket.tile))

    def _tile(self, total: int, slots: int) -> int:
        """The tile that nearly all requests fit, where they share so many rows unevenly.

        A tile for the most rows would be mostly empty for all others: at 8 x 32K, 96 rows took 25
        ms that way, and 64 rows 13 (H200). The few with more rows are cut into several tiles. The
        smallest tile is for batches in which nobody has more: it saves too little to be cut.
        """
        return smallest(self.graphs.tiles[1:] or self.graphs.tiles, -(-SPREAD * total // slots))

    @property
    def _most_rows(self) -> int:
        """Of one request: a tree may have fewer nodes than could be verified."""
        return min(self.shape.verify, self.shape.capacity)

    def _padded(self, n_rows: int) -> int:
        """Rows as the numerics want them."""
        return -(-n_rows // self.row_multiple) * self.row_multiple


def _up_to(sizes: Sequence[int], least: int, most: int) -> list[int]:
    """What `smallest` may answer for anything from `least` to `most`."""
    last = smallest(sizes, most)
    larger = range(2 * sizes[-1], last + 1, sizes[-1])
    return [size for size in (*sizes, *larger) if smallest(sizes, least) <= size <= last]
