"""The sizes a round is cut to: exactly what a batch needs, or the smallest graph that holds it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from aerie.config import GraphConfig
from aerie.engine.graphs import Graphs, smallest
from aerie.engine.sampler import GREEDY, Options
from aerie.engine.seat import Seat
from aerie.speculation.policy import TreeShape, Widths

# Rows of a request that has many, in those of the mean. One more tile costs another pass over its
# text, a tile too large some arithmetic: a layer of 8 x 8K with 12 rows each took 87 µs in tiles of
# 64 and 115 in tiles of 16, at 32K 330 and 399; with 8 each 86 and 89, 323 and 293 (H200, 2026-11).
SPREAD = 2


@dataclass(frozen=True)
class Fit:
    """What the host knows of a batch: sizes then fit exactly."""

    n_rows: int  # to verify, or of a prompt
    lengths: tuple[int, ...]  # tokens with KV of each request
    counts: tuple[int, ...] = ()  # rows that the draft of each request takes in
    n_nodes: int | None = None  # stored by the last draft, per request


@dataclass(frozen=True)
class Bucket:
    """The sizes of one launch."""

    seats: int  # requests
    rows: int = 0  # verified rows, all requests together
    columns: int = 0  # KV positions of one request, a round's own included
    options: Options = GREEDY
    tile: int = 0  # verified rows of one request that attention is tuned for
    fit: Fit | None = None  # None: sizes are bounds, and what they hold is known to the device

    @property
    def is_padded(self) -> bool:
        """Whether there may be rows that belong to no request."""
        return self.fit is None or self.fit.n_rows != self.rows

    @property
    def n_columns(self) -> int:
        """Entries of all slot lists of a verification or a chunk, at most."""
        if self.fit is None:
            return self.seats * self.columns
        return sum(self.fit.lengths) + self.fit.n_rows

    @property
    def mask_bytes(self) -> int:
        """Bytes of all packed masks of a verification that fits, at most: `tile` rows each."""
        lengths = () if self.fit is None else self.fit.lengths
        return sum((self.tile * (length + self.tile) + 7) // 8 for length in lengths)

    def holds(self, other: Bucket) -> bool:
        """Whether a round that fits the other one fits this one: empty seats verify roots."""
        n_rows = other.rows + self.seats - other.seats
        return (
            self.seats >= other.seats
            and self.rows >= n_rows
            and self.columns >= other.columns
            and self.options.holds(other.options)
            # Where no request has a grammar, the host shall not be asked for masks.
            and self.options.grammar == other.options.grammar
        )

    def without_rows(self) -> Bucket:
        """What follows the verification depends neither on its rows nor on the sampling."""
        return Bucket(self.seats, columns=self.columns)


@dataclass(frozen=True, eq=False)
class Sizes:
    """What the buckets of an engine follow from."""

    graphs: GraphConfig
    row_multiple: int  # verified rows are padded to it
    scratch: int  # positions a round may use beyond seq_len + 1
    shape: TreeShape  # the largest tree
    n_nodes: int  # node capacity of a tree, copied paths included
    max_chunk: int  # prompt tokens of a step, at most
    longest_run: int = 0  # tokens that previews may leave before a tree

    @property
    def longest_path(self) -> int:
        """Tokens a round can emit for one request."""
        return self.shape.depth + 1 + self.longest_run

    def reach(self, seat: Seat, n_under_way: int) -> int:
        """Positions that a round may use for a seat, launched behind so many others."""
        limit = max(seat.request.job.length_limit, seat.seq_len)
        return min(seat.seq_len + n_under_way * self.longest_path, limit) + 1 + self.scratch

    def exact(self, seats: Sequence[Seat], n_nodes: int | None = None) -> Bucket:
        """What a round of these seats needs and nothing more."""
        n_rows = sum(seat.n_rows for seat in seats)
        return Bucket(
            seats=len(seats),
            rows=self._padded(n_rows),
            columns=max(seat.seq_len + seat.n_rows for seat in seats),
            options=Options.of([seat.request for seat in seats]),
            tile=max(seat.n_rows for seat in seats),
            fit=Fit(
                n_rows=n_rows,
                lengths=tuple(seat.seq_len for seat in seats),
                counts=tuple(seat.n_kept for seat in seats),
                n_nodes=n_nodes,
            ),
        )

    def chunk(self, starts: Sequence[int], ends: Sequence[int]) -> Bucket:
        """What a chunk of prompts needs and nothing more."""
        n_rows = sum(ends) - sum(starts)
        fit = Fit(n_rows, tuple(starts))
        return Bucket(len(starts), self._padded(n_rows), max(ends), fit=fit)

    def recorded_chunk(self, starts: Sequence[int], ends: Sequence[int]) -> Bucket:
        """The smallest graph that holds a chunk of prompts; of one, or of as many as there may be.

        Beside hundreds of rows an empty seat costs nothing, and there are fewer graphs.
        """
        n_rows = self.chunk_rows(sum(ends) - sum(starts))
        few, most = self.graphs.slots[0], self.graphs.slots[-1]
        n_seats = few if len(starts) <= few else self.seats(max(len(starts), most))
        return Bucket(n_seats, n_rows, self.columns(max(ends)))

    def chunk_rows(self, n_tokens: int) -> int:
        """Rows of the smallest graph that reads so many tokens."""
        return self._padded(smallest(self.graphs.chunks, n_tokens))

    def seats(self, n_requests: int) -> int:
        """The bucket of so many requests."""
        return smallest(self.graphs.slots, n_requests)

    def bucket(self, seats: Sequence[Seat], n_under_way: int, agreed: int | None = None) -> Bucket:
        """The smallest that holds a round of these seats, launched behind so many others.

        It is not known yet how far those went, nor how many nodes they chose; `agreed` rows, all
        seats together, will have been chosen for it.
        """
        n_seats, most = self.seats(len(seats)), self._most_rows
        # Every seat verifies its root at least, an empty one too.
        n_rows, each = agreed, most if agreed is None else min(most, agreed - n_seats + 1)
        if n_rows is None:
            rows = [most if n_under_way else seat.n_rows for seat in seats]
            n_rows, each = sum(rows) + n_seats - len(seats), max(rows)
        total = smallest(self.graphs.rows, n_rows)
        asked = Options.of([seat.request for seat in seats])
        return Bucket(
            seats=n_seats,
            rows=self._padded(total),
            columns=self.columns(max(self.reach(seat, n_under_way) for seat in seats)),
            options=asked.recorded,
            tile=min(smallest(self.graphs.tiles, each), self._tile(total, n_seats)),
        )

    def columns(self, n_positions: int) -> int:
        """The bucket of the longest request."""
        return smallest(self.graphs.columns, n_positions)

    def verified(self, n_seats: int, columns: int, most: int, options: Options) -> list[Bucket]:
        """Every bucket of rows that so many trees may need, of `most` rows together."""
        totals = _up_to(self.graphs.rows, n_seats, most)
        if options.grammar:
            totals = [n for n in totals if n // n_seats in (8, 16) or n == totals[-1]]
        tiles = _up_to(self.graphs.tiles, 1, self._most_rows + self.longest_run)
        found = {
            Bucket(n_seats, self._padded(total), columns, options, min(most_each, common))
            for fewer, total in itertools.pairwise((0, *totals))
            for less, most_each in itertools.pairwise((0, *tiles))
            # One seat has more than `less`, all together more than `fewer`.
            if n_seats * most_each > fewer and less + n_seats <= total
            for common in (self._tile(total, n_seats),)
        }
        return sorted(found, key=lambda bucket: (bucket.rows, bucket.tile))

    def _tile(self, total: int, n_seats: int) -> int:
        """The tile that nearly all requests fit, where they share so many rows unevenly.

        A tile for the most rows would be mostly empty for all others: at 8 x 32K, 96 rows took 25
        ms that way, and 64 rows 13 (H200). The few with more rows are cut into several tiles. The
        smallest tile is for batches in which no seat has more: it saves too little to be cut.
        """
        return smallest(self.graphs.tiles[1:] or self.graphs.tiles, -(-SPREAD * total // n_seats))

    @property
    def _most_rows(self) -> int:
        """Of one request: a tree may have fewer nodes than could be verified."""
        return min(self.shape.verify, self.n_nodes)

    def _padded(self, n_rows: int) -> int:
        """Rows as the numerics want them."""
        return -(-n_rows // self.row_multiple) * self.row_multiple


def _up_to(sizes: Sequence[int], least: int, most: int) -> list[int]:
    """What `smallest` may answer for anything from `least` to `most`."""
    last = smallest(sizes, most)
    larger = range(2 * sizes[-1], last + 1, sizes[-1])
    return [size for size in (*sizes, *larger) if smallest(sizes, least) <= size <= last]


class Recorded:
    """Use an existing larger graph while the right one is not recorded: recording stalls the batch.

    There are hundreds of buckets and shapes, and a recording takes some 50 ms on an H200, six
    rounds. So one is due every so many rounds. No token depends on it.
    """

    def __init__(self, graphs: Graphs, every: int) -> None:
        self._graphs = graphs
        self._every = every  # rounds between two recordings; 0: whenever one is missing
        self._waited = every

    def next_round(self) -> None:
        """A round has begun."""
        self._waited += 1

    def bucket(self, kind: str, wanted: Bucket) -> Bucket:
        """The wanted bucket, or the smallest recorded one that holds what it would."""
        if not self._lacks((kind, wanted)):
            return wanted
        known: list[Bucket] = [key[1] for key in self._graphs.keys if key[0] == kind]
        fitting = [bucket for bucket in known if bucket.holds(wanted)]
        if fitting and not self._is_due:
            return min(fitting, key=lambda b: (b.seats, b.rows, b.columns, b.options))
        self._waited = 0
        return wanted

    def instead(
        self, rest: Bucket, wanted: Widths, shapes: Sequence[Widths | None]
    ) -> list[Widths]:
        """Recorded shapes to choose from instead of the wanted one; none: it may be had."""
        if not self._lacks(("draft", rest, wanted, None)):
            return []
        known = [w for w in shapes if w is not None and not self._lacks(("draft", rest, w, None))]
        if known and not self._is_due:
            return known
        self._waited = 0
        return []

    @property
    def _is_due(self) -> bool:
        return not self._graphs.is_warm and self._waited >= self._every

    def _lacks(self, key: Hashable) -> bool:
        return not self._graphs.has(key)
