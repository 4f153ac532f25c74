"""Status words of the NumPy backends: a check that finds nothing costs one comparison."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.cards.axes import INT64_MAX
from aerie.kernels.numpy_types import Bools, Int32s, Ints
from aerie.kernels.status import Status


class Refusals:
    """`status[B]` and `detail[B]` of one call; the first refusal of a request stays."""

    def __init__(self, batch: int) -> None:
        self.status: Int32s = np.zeros(batch, np.int32)
        self.detail: Ints = np.zeros(batch, np.int64)
        self.found = False

    def add(self, code: Status, applies: Bools, values: Ints) -> None:
        """Refuse the requests where `applies[B]` holds; `values[B]` are the offending ones."""
        if applies.any():
            self.add_at(code, applies.nonzero()[0], values[applies])

    def add_at(self, code: Status, requests: Ints, values: Ints) -> None:
        """Refuse some requests; of several values for one request the first stays."""
        for request, value in zip(requests.tolist(), values.tolist(), strict=True):
            self.refuse(request, code, value)

    def refuse(self, request: int, code: Status, value: int) -> None:
        """Refuse one request, unless an earlier check already did."""
        self.found = True
        if not self.status[request]:
            self.status[request] = code
            # Sums of two lengths may pass int64; how far does not matter.
            self.detail[request] = min(value, INT64_MAX)

    def words(self) -> dict[str, NDArray[np.generic]]:
        """The two vectors, by name."""
        return {"status": self.status, "detail": self.detail}


def outside(values: Ints, size: int) -> Bools:
    """Which entries are not in [0, size)."""
    # Read as unsigned, a negative number is larger than any size: one comparison instead of two.
    return values.view(np.uint64) >= size


def check_range(refusals: Refusals, code: Status, values: Ints, size: int) -> None:
    """Refuse requests with an entry of `values[B, n]` outside [0, size); value = the first."""
    is_out = outside(values, size)
    if is_out.any():
        refusals.add_at(code, is_out.nonzero()[0], values[is_out])


def check_twins(refusals: Refusals, code: Status, groups: Ints) -> None:
    """Refuse requests where a group of `groups[B, W, K]` holds a value twice; value = the twin."""
    if groups.shape[2] < 2:
        return
    ordered = np.sort(groups, axis=2)
    is_twin = ordered[:, :, 1:] == ordered[:, :, :-1]
    if is_twin.any():
        refusals.add_at(code, is_twin.nonzero()[0], ordered[:, :, 1:][is_twin])


def check_siblings(refusals: Refusals, request: Ints, parent: Ints, tokens: Ints) -> None:
    """Refuse requests in which two of the entries [T] share parent and token; value = the token.

    Parents of different requests are different numbers.
    """
    order = np.lexsort((tokens, parent))
    parent, ordered = parent[order], tokens[order]
    is_twin = (parent[1:] == parent[:-1]) & (ordered[1:] == ordered[:-1])
    if is_twin.any():
        refusals.add_at(Status.DUPLICATE_SIBLING, request[order[1:][is_twin]], ordered[1:][is_twin])
