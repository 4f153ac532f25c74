"""What a planner's choice on the device is made by: sizes, prices, rate and corrections."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.kernels.cards.axes import KNOTS
from aerie.speculation.calibration import DEEPEST
from aerie.speculation.running import Floats


@dataclass(frozen=True, eq=False)
class Offer:
    """Row counts a batch may be given, and the numbers that decide between them.

    The host writes its copy before a launch; the captured choice begins with the copy to the
    device, so that nothing else is launched.
    """

    sizes: NDArray[np.int64]  # [S] rows in all, ascending
    row_sizes: Tensor  # the same on the device
    host: Tensor  # [1 + S + corrections] f64: rate, seconds of each size, calibration, flat
    numbers: Tensor  # the same on the device

    def write(self, rate: float, seconds: Floats, corrections: Floats) -> None:
        """What the next choice is made by."""
        n_sizes = len(self.sizes)
        self.host[0] = rate
        self.host[1 : 1 + n_sizes] = torch.from_numpy(seconds)
        self.host[1 + n_sizes :] = torch.from_numpy(corrections.reshape(-1))

    def send(self) -> Tensor:
        """The numbers on the device."""
        if self.numbers is not self.host:
            self.numbers.copy_(self.host, non_blocking=True)
        return self.numbers


@dataclass(eq=False)
class Offers:
    """The offers of every batch size, made when it is first met and never moved.

    `ladder` are the sizes that graphs exist for; None: any number of rows.
    """

    ladder: tuple[int, ...] | None
    verify: int  # rows of one request, at most
    device: str
    _made: dict[int, Offer] = field(default_factory=dict)

    def of(self, n_seats: int) -> Offer:
        """The offer of a batch."""
        if n_seats not in self._made:
            most = n_seats * self.verify
            if self.ladder is None:
                sizes = list(range(n_seats, most + 1))
            else:
                sizes = [size for size in self.ladder if n_seats <= size <= most] or [n_seats]
            host = torch.ones(1 + len(sizes) + DEEPEST * KNOTS, dtype=torch.float64)
            is_cuda = self.device.startswith("cuda")
            host = host.pin_memory() if is_cuda else host
            self._made[n_seats] = Offer(
                sizes=np.array(sizes),
                row_sizes=torch.tensor(sizes, device=self.device),
                host=host,
                numbers=host.to(self.device, copy=True) if is_cuda else host,
            )
        return self._made[n_seats]
