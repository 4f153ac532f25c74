"""Status words of the reference: the first refusal that applies to a request stays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.cards.axes import INT64_MAX
from aerie.kernels.numpy_types import Int32s, Ints
from aerie.kernels.status import Status


class Refusals:
    """`status[B]` and `detail[B]` of one call, filled request by request."""

    def __init__(self, batch: int) -> None:
        self.status: Int32s = np.zeros(batch, np.int32)
        self.detail: Ints = np.zeros(batch, np.int64)

    def add(self, request: int, code: Status, value: int) -> None:
        """Refuse a request, unless an earlier check already did."""
        if self.status[request] == Status.OK:
            self.status[request] = code
            # Sums of two lengths may pass int64; how far does not matter.
            self.detail[request] = min(value, INT64_MAX)

    def refused(self, request: int) -> bool:
        """True once a request has a status."""
        return bool(self.status[request] != Status.OK)

    def words(self) -> dict[str, NDArray[np.generic]]:
        """The two vectors, by name."""
        return {"status": self.status, "detail": self.detail}
