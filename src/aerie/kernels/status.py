"""Per-request status words: why a kernel refused a request, in one table for every backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aerie.errors import KernelBoundsError, KernelDataError, KernelError


class Status(IntEnum):
    """Codes of the per-request status word; 0 is success. Values are frozen: HLS emits them."""

    OK = 0
    OUT_OF_RANGE = 1
    ROW_CAPACITY = 2
    KV_CAPACITY = 3
    MASK_CAPACITY = 4
    SLOT_CAPACITY = 5
    OVERFLOW = 6
    TOO_DEEP = 7
    DUPLICATE_SIBLING = 8
    NOT_INJECTIVE = 9
    NOT_FINITE = 10
    ALL_MASKED = 11
    BROKEN_TREE = 12
    BROKEN_LAYOUT = 13
    BAD_PARAMETER = 14
    DUPLICATE_REQUEST = 15
    TABLE_ROW = 16
    CANDIDATE = 17
    NEGATIVE_LENGTH = 18


@dataclass(frozen=True)
class StatusMeaning:
    """The error a status becomes on a CPU, and its sentence."""

    error: type[KernelError]
    sentence: str


_BOUNDS, _DATA = KernelBoundsError, KernelDataError

MEANINGS: dict[Status, StatusMeaning] = {
    Status.OUT_OF_RANGE: StatusMeaning(_BOUNDS, "an index points outside its table"),
    Status.ROW_CAPACITY: StatusMeaning(_BOUNDS, "more rows than the buffer holds"),
    Status.KV_CAPACITY: StatusMeaning(_BOUNDS, "more KV slots than the list holds"),
    Status.MASK_CAPACITY: StatusMeaning(_BOUNDS, "more mask bytes than the buffer holds"),
    Status.SLOT_CAPACITY: StatusMeaning(_BOUNDS, "more slots asked for than were given"),
    Status.OVERFLOW: StatusMeaning(_BOUNDS, "a running sum passes int32"),
    Status.TOO_DEEP: StatusMeaning(_BOUNDS, "a path is deeper than tree_depth"),
    Status.DUPLICATE_SIBLING: StatusMeaning(_DATA, "two children of one node carry the same token"),
    Status.NOT_INJECTIVE: StatusMeaning(_DATA, "hot_token_id maps two draft ids to one target id"),
    Status.NOT_FINITE: StatusMeaning(_DATA, "a target row holds NaN or +inf"),
    Status.ALL_MASKED: StatusMeaning(_DATA, "every token of a target row is masked"),
    Status.BROKEN_TREE: StatusMeaning(
        _DATA, "the nodes are not an ancestor-closed tree with parents first"
    ),
    Status.BROKEN_LAYOUT: StatusMeaning(_DATA, "the ragged row layout is inconsistent"),
    Status.BAD_PARAMETER: StatusMeaning(_DATA, "a sampling parameter is impossible"),
    Status.DUPLICATE_REQUEST: StatusMeaning(_DATA, "two requests of the batch share one table row"),
    Status.TABLE_ROW: StatusMeaning(_BOUNDS, "a row the slot table does not have"),
    Status.CANDIDATE: StatusMeaning(_BOUNDS, "a candidate the layer does not have"),
    Status.NEGATIVE_LENGTH: StatusMeaning(_BOUNDS, "a length below zero"),
}
