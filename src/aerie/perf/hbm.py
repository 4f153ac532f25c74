"""A pseudo-channel HBM: stripes, bursts, open rows and refresh; how much of the peak a stream gets.

A small event model. Every access is cut into bursts; each channel serves its bursts in order and
keeps one row a bank open. Opening a row costs, unless another bank's data hides it. What is not
published is swept, not guessed: `miss_ns` is the parameter that decides for short accesses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

BURST = 32  # bytes
# Shuhai (Wang et al., FCCM 2020, arXiv 2005.04324): 425 GB/s of an Alveo U280's 460.8.
PUBLISHED_GBPS, PUBLISHED_PEAK = 425.0, 460.8


@dataclass(frozen=True)
class Hbm:
    """Stacks as one memory."""

    peak_gbps: float = 820.0
    channels: int = 64
    row_bytes: int = 1024
    banks: int = 16
    miss_ns: float = 45.0  # a row closed and another opened in the same bank
    activate_ns: float = 8.0  # between two rows opened in different banks
    refresh: float = 0.078  # share of time: 350 ns of every 3.9 us, less what overlaps

    @property
    def burst_ns(self) -> float:
        """A burst on the wires of one channel."""
        return BURST / (self.peak_gbps / self.channels)


@dataclass(frozen=True)
class Access:
    """Consecutive bytes."""

    address: int
    n_bytes: int


@dataclass(frozen=True)
class Served:
    """What a list of accesses took."""

    seconds: float
    n_bytes: int
    misses: int

    def gbps(self) -> float:
        """Bytes asked for, a second."""
        return self.n_bytes / self.seconds / 1e9


class _Channel:
    """Time of one channel, its open rows, and when each bank may open another."""

    def __init__(self, hbm: Hbm) -> None:
        self.hbm = hbm
        self.now = 0.0
        self.opened = -1e9  # when the last row was
        self.rows: dict[int, int] = {}
        self.free: dict[int, float] = {}
        self.misses = 0

    def burst(self, offset: int) -> None:
        """The burst at an offset inside the channel; rows go round the banks."""
        hbm = self.hbm
        row = offset // hbm.row_bytes
        bank = row % hbm.banks
        if self.rows.get(bank) != row:
            # Commands run ahead of data: a row is opened as soon as its bank and the channel may.
            begun = max(self.free.get(bank, 0.0), self.opened + hbm.activate_ns)
            self.opened = begun
            self.rows[bank] = row
            self.now = max(self.now, begun + hbm.miss_ns)
            self.misses += 1
        self.now += hbm.burst_ns
        self.free[bank] = self.now


def serve(hbm: Hbm, accesses: Iterable[Access], stripe: int) -> Served:
    """Stripes go round the channels; all channels work at once, the slowest counts."""
    channels = [_Channel(hbm) for _ in range(hbm.channels)]
    n_bytes = 0
    for access in accesses:
        n_bytes += access.n_bytes
        first, end = access.address // BURST, -(-(access.address + access.n_bytes) // BURST)
        for number in range(first, end):
            address = number * BURST
            piece = address // stripe
            offset = piece // hbm.channels * stripe + address % stripe
            channels[piece % hbm.channels].burst(offset)
    seconds = max(channel.now for channel in channels) * 1e-9 / (1 - hbm.refresh)
    return Served(seconds, n_bytes, sum(channel.misses for channel in channels))


def published() -> tuple[float, float]:
    """The model's sequential read of the card in the paper, and the paper's, in GB/s."""
    card = replace(Hbm(), peak_gbps=PUBLISHED_PEAK, channels=32)
    return serve(card, [Access(0, 1 << 21)], card.row_bytes).gbps(), PUBLISHED_GBPS
