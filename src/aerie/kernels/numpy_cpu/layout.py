"""NumPy K10c: the rows of a verify layout, their links and ancestor bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_VERIFY
from aerie.kernels.cards.layout import NodeData
from aerie.kernels.numpy_types import Bools, Ints, Words
from aerie.kernels.ragged import filled, running
from aerie.kernels.refusals import Refusals, check_siblings, outside
from aerie.kernels.status import Status


def _own_bits() -> Words:
    """Bit `row` of four words, for every row a request can have. [128, 4]"""
    rows = np.arange(MAX_VERIFY)
    bits = np.zeros((MAX_VERIFY, 4), np.uint32)
    bits[rows, rows // 32] = 1 << (rows % 32)
    return bits


OWN_BITS = _own_bits()


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The chosen nodes of a batch as flat rows, ascending by request and node id."""

    request: Ints  # [T]
    node: Ints  # [T]
    place: Ints  # [T] of the node among the nodes of all requests
    parent: Ints  # [T] node id, -1 for a root
    count: Ints  # [B]
    offsets: Ints  # [B+1]

    @classmethod
    def of(cls, selected: Bools, prev_indexs: Ints) -> _Chosen:
        request, node = selected.nonzero()
        place = request * selected.shape[1] + node
        count = np.add.reduce(selected, axis=1, dtype=np.int64)
        return cls(request, node, place, prev_indexs.take(place), count, running(count))


@takes_call
def update_node_data(call: NodeData) -> dict[str, Any]:
    """K10c: the chosen nodes as flat rows with links and ancestor bits."""
    selected = call.selected
    refusals = Refusals(len(call.seq_len))
    chosen = _Chosen.of(selected, call.prev_indexs)
    _check_trees(refusals, chosen, call)
    if refusals.found or chosen.offsets.item(-1) > call.row_capacity:
        asked = running(chosen.count * (refusals.status == 0))[1:]
        refusals.add(Status.SLOT_CAPACITY, asked > call.row_capacity, asked)
        selected = selected & (refusals.status == 0)[:, None]
        chosen = _Chosen.of(selected, call.prev_indexs)

    first = chosen.offsets[chosen.request]
    row = np.arange(len(first)) - first
    is_root = chosen.node == 0
    # Row of every node in its request; where a root looks for its parent does not matter.
    row_of = np.add.accumulate(selected, axis=1, dtype=np.int64) - 1
    above = row_of.take(chosen.place - chosen.node + chosen.parent, mode="clip")
    parent_row = np.where(is_root, -1, above)
    up = np.where(is_root, first, first + above)
    first_child, next_sibling = _links(up, row, is_root)
    bits = OWN_BITS.take(row, axis=0)
    # Pointer doubling: after n rounds a row holds its ancestors up to 2^n levels above.
    for _ in range((int(chosen.count.max(initial=1)) - 1).bit_length()):
        bits |= bits.take(up, axis=0)
        up = up.take(up)
    tokens, capacity = call.cumu_tokens.take(chosen.place), call.row_capacity
    positions = call.seq_len[chosen.request] + call.cumu_deltas.take(chosen.place)
    return {
        "qo_indptr": chosen.offsets.astype(np.int32),
        "draft_tokens": filled(tokens, capacity, -1, np.int64),
        "positions": filled(positions, capacity, 0, np.int64),
        "parent_row": filled(parent_row, capacity, -1, np.int64),
        "first_child_row": filled(first_child, capacity, -1, np.int64),
        "next_sibling_row": filled(next_sibling, capacity, -1, np.int64),
        "ancestor_bits": filled(bits, capacity, 0, np.uint32),
        **refusals.words(),
    }


def _check_trees(refusals: Refusals, chosen: _Chosen, call: NodeData) -> None:
    """Every choice is a tree of existing nodes whose siblings differ, in the card's order."""
    request, node, parent = chosen.request, chosen.node, chosen.parent
    selected, node_count, seq_len = call.selected, call.node_count, call.seq_len
    refusals.add(Status.OUT_OF_RANGE, outside(node_count - 1, selected.shape[1]), node_count)
    refusals.add(Status.NEGATIVE_LENGTH, seq_len < 0, seq_len)
    refusals.add(Status.BROKEN_TREE, ~selected[:, 0], np.zeros_like(seq_len))
    # A parent that is no node looks anywhere here, and fails a test beside it.
    is_linked = selected.take(chosen.place - node + parent, mode="clip") & (parent < node)
    is_linked = np.where(node == 0, parent == -1, is_linked & (parent >= 0))
    is_linked &= node < node_count[request]
    if not is_linked.all():
        refusals.add_at(Status.BROKEN_TREE, request[~is_linked], node[~is_linked])
    if node.any():  # roots have no siblings
        tokens = call.cumu_tokens.take(chosen.place)
        check_siblings(refusals, request, chosen.place - node + parent, tokens)
    refusals.add(Status.ROW_CAPACITY, chosen.count > MAX_VERIFY, chosen.count)


def _links(above: Ints, row: Ints, is_root: Bools) -> tuple[Ints, Ints]:
    """First child and next sibling of every row, -1 for none; `above` is the parent's flat row."""
    first_child, next_sibling = np.full_like(row, -1), np.full_like(row, -1)
    children = (~is_root).nonzero()[0]
    if not len(children):
        return first_child, next_sibling
    above = above[children]
    # Stable: children of one parent stay in order of their rows.
    order = above.argsort(kind="stable")
    children, above = children[order], above[order]
    is_later = above[1:] == above[:-1]
    next_sibling[children[:-1][is_later]] = row[children[1:][is_later]]
    # Written last child first: of several, the first one stays.
    first_child[above[::-1]] = row[children[::-1]]
    return first_child, next_sibling
