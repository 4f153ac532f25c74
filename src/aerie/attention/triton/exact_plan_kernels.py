"""Planning exact attention on the device: the rows of a program, the spans of a text, its work.

Spans end at fixed positions: plain decoding, a tree and a chunk of a prompt cut a text alike.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.attention.triton.plan_kernels import FAR, rows_of_unit

# A unit: a run of rows of one request that share a program's query stack.
FIRST_ROW = tl.constexpr(0)
N_ROWS = tl.constexpr(1)  # 0: nothing to do
FIRST_COLUMN = tl.constexpr(2)  # of the request, in kv_indices
TREE_START = tl.constexpr(3)  # column and position of the root
N_BLOCKS = tl.constexpr(4)  # up to the last position that any of its rows sees
N_PLAIN = tl.constexpr(5)  # leading blocks that every row sees whole
IS_BRANCHING = tl.constexpr(6)
N_WALKS = tl.constexpr(7)  # paths through the tree that hold all rows of the unit
UNIT_FIELDS = tl.constexpr(8)

# An item of work: some rows of a unit, and a run of blocks that one program folds for them. What
# a program wants to know is here, so that it starts after one read.
ITEM_ROW = tl.constexpr(0)  # the first; of a path the one that it ends at
ITEM_ROWS = tl.constexpr(1)
ITEM_COLUMN = tl.constexpr(2)  # of the request, in kv_indices
ITEM_TREE = tl.constexpr(3)
FIRST_BLOCK = tl.constexpr(4)
MASKED_BLOCK = tl.constexpr(5)  # the first that some row does not see whole
END_BLOCK = tl.constexpr(6)
PART = tl.constexpr(7)  # the span it is stored as; less than 0: it is all, and the result
IS_PATH = tl.constexpr(8)  # rows of a branching tree that stand on one path, behind its root
ITEM_ORDER = tl.constexpr(9)  # of a path: where its rows stand among those in the order of paths
ITEM_FIELDS = tl.constexpr(16)

# Rows of a branching unit, path after path; then of each path, at the unit's first rows, the row
# that it ends at, where its rows begin and how many they are.
ORDER = tl.constexpr(0)
WALK_ROW = tl.constexpr(1)
WALK_FIRST = tl.constexpr(2)
WALK_ROWS = tl.constexpr(3)
WALK_FIELDS = tl.constexpr(4)

# A row, for the merge: parts stand at 0 and then from NEXT_PART to N_PARTS, one a span.
N_PARTS = tl.constexpr(0)  # 0: nothing seen; less: the result is there already
NEXT_PART = tl.constexpr(1)
ROW_FIELDS = tl.constexpr(2)

# Positions of a span: few at first, where a text is short and wants many programs; more behind
# NEAR, where parts of many spans would cost as much to write as keys to read.
NEAR_SPAN = tl.constexpr(256)
FAR_SPAN = tl.constexpr(1024)
NEAR = tl.constexpr(4096)
N_NEAR = tl.constexpr(16)  # spans before NEAR
PATH = tl.constexpr(128)  # nodes of a path at most, as many as bits of a mask
MOST_LAYERS = tl.constexpr(256)  # each has a counter of the items that were taken


@triton.jit
def span_of(position: tl.tensor) -> tl.tensor:
    """The span that holds a position."""
    near = position // NEAR_SPAN
    far = N_NEAR + (position - NEAR) // FAR_SPAN
    return tl.where(position < NEAR, near, far)


@triton.jit
def span_start(span: tl.tensor) -> tl.tensor:
    """The first position of a span."""
    return tl.where(span < N_NEAR, span * NEAR_SPAN, NEAR + (span - N_NEAR) * FAR_SPAN)


@triton.jit
def is_span_end(position: tl.tensor) -> tl.tensor:
    """Whether a span ends before a position that begins a block."""
    return position % tl.where(position <= NEAR, NEAR_SPAN, FAR_SPAN) == 0


@triton.jit
def _across(values: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """A vector of rows as one of columns."""
    return tl.sum(tl.where(offset[:, None] == offset[None, :], values[:, None], 0), 0)


@triton.jit
def _walk_paths(
    walks: tl.tensor, row: tl.tensor, offset: tl.tensor, is_own: tl.tensor, node: tl.tensor,
    is_ancestor: tl.tensor, request_row: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Order a unit's rows by the paths that hold them; the number of paths.

    Each row takes the path to the last row below it: chains of a tree are one path, and of what
    stands beside them every leaf has one. The rows of a path share its keys.
    """
    place = row - request_row
    below = tl.where((is_ancestor != 0) & is_own[:, None], place[:, None], -1)
    last_below = tl.max(below, 0)
    leaf = tl.sum(tl.where(node[None, :] == place[:, None], last_below[None, :], 0), 1)
    leaf = tl.where(is_own, leaf, FAR)
    other = _across(leaf, offset)[None, :]
    is_before = offset[None, :] < offset[:, None]
    is_same = other == leaf[:, None]
    rank = tl.sum(((other < leaf[:, None]) | (is_same & is_before)).to(tl.int32), 1)
    is_first = (tl.sum((is_same & is_before).to(tl.int32), 1) == 0) & is_own
    is_other_first = _across(is_first.to(tl.int32), offset)[None, :] != 0
    walk = tl.sum((is_other_first & (other < leaf[:, None])).to(tl.int32), 1)
    first = tl.sum(tl.where(offset == 0, row, 0), 0)
    tl.store(walks + (first + rank) * WALK_FIELDS + ORDER, row, mask=is_own)
    own = walks + (first + walk) * WALK_FIELDS
    tl.store(own + WALK_ROW, request_row + leaf, mask=is_first)
    tl.store(own + WALK_FIRST, first + rank, mask=is_first)
    tl.store(own + WALK_ROWS, tl.sum(is_same.to(tl.int32), 1), mask=is_first)
    return tl.sum(is_first.to(tl.int32), 0)


@triton.jit(do_not_specialize=["n_requests", "n_rows"])
def exact_unit_kernel(
    units: tl.tensor,
    taken: tl.tensor,
    row_parts: tl.tensor,
    paths: tl.tensor,
    walks: tl.tensor,
    qo_indptr: tl.tensor,
    kv_indptr: tl.tensor,
    tree_start: tl.tensor,
    positions: tl.tensor,
    ancestor_bits: tl.tensor,
    n_requests: tl.tensor,
    n_rows: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    HAS_TREE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
) -> None:
    """One program a unit: its rows, the blocks they see, and the path of each through a tree."""
    unit = tl.program_id(0)
    layer = tl.arange(0, MOST_LAYERS)
    tl.store(taken + layer, tl.zeros_like(layer), mask=unit == 0)
    record = units + unit * UNIT_FIELDS
    owner, first_row, n_own = rows_of_unit(
        unit, qo_indptr, n_requests, n_rows, ROWS, BLOCK_REQUESTS
    )
    tl.store(record + N_ROWS, n_own)
    tl.store(record + N_BLOCKS, 0)
    if n_own == 0:
        return
    has_columns = owner < n_requests
    offset = tl.arange(0, BLOCK_ROWS)
    is_own = (offset < n_own) & has_columns
    row = first_row + offset
    position = tl.load(positions + row, mask=is_own, other=0).to(tl.int32)
    tl.store(record + FIRST_ROW, first_row)
    # The bucket's padding has no columns: its rows become zero.
    tl.store(record + FIRST_COLUMN, tl.load(kv_indptr + owner, mask=has_columns, other=0))
    tree = tl.load(tree_start + owner, mask=has_columns, other=0)
    tl.store(record + TREE_START, tree)
    last = tl.max(tl.where(is_own, position, -1), 0)
    n_shared = tl.min(tl.where(is_own, position, FAR - 1), 0) + 1
    is_branching = 0
    n_walks = 0
    if HAS_TREE:
        node = tl.arange(0, PATH)
        at_word = row[:, None] * 4 + node[None, :] // 32
        word = tl.load(ancestor_bits + at_word, mask=is_own[:, None], other=0)
        is_ancestor = (word >> (node % 32)[None, :]) & 1
        depth = tl.cumsum(is_ancestor, 1) - 1
        at_path = row[:, None] * PATH + depth
        tl.store(paths + at_path, node[None, :] + tl.zeros_like(depth), mask=is_ancestor != 0)
        # On a chain the node of a depth is the node of that number: columns are positions.
        is_apart = (is_ancestor != 0) & (depth != node[None, :])
        is_branching = (tl.sum(tl.sum(is_apart.to(tl.int32), 1), 0) > 0).to(tl.int32)
        n_shared = tl.where(is_branching != 0, tl.minimum(n_shared, tree), n_shared)
        request_row = tl.load(qo_indptr + owner, mask=has_columns, other=0)
        n_walks = _walk_paths(walks, row, offset, is_own, node, is_ancestor, request_row)
    tl.store(record + N_BLOCKS, (last + BLOCK_N) // BLOCK_N)
    tl.store(record + N_PLAIN, tl.where(last < 0, 0, n_shared // BLOCK_N))
    tl.store(record + IS_BRANCHING, is_branching)
    tl.store(record + N_WALKS, n_walks)
    n_parts = tl.where(is_own, span_of(position) + 1, 0)
    next_part = tl.zeros_like(offset) + 1
    if not IS_SPLIT:
        n_parts = tl.where(is_branching != 0, n_parts, -1)
        next_part = tl.zeros_like(offset) + tl.maximum(span_of(tree), 1)
    own = row_parts + row * ROW_FIELDS
    tl.store(own + N_PARTS, n_parts, mask=offset < n_own)
    tl.store(own + NEXT_PART, next_part, mask=offset < n_own)


@triton.jit(do_not_specialize=["n_units"])
def exact_item_kernel(
    units: tl.tensor,
    walks: tl.tensor,
    items: tl.tensor,
    n_items: tl.tensor,
    n_units: tl.tensor,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_SPLIT: tl.constexpr,
) -> None:
    """One program a unit: list its work behind that of the units before.

    Rows of a branching tree share the spans before the tree, and behind it those of one path do.
    """
    own = tl.program_id(0)
    unit = tl.arange(0, BLOCK_UNITS)
    is_unit = unit < n_units
    record = units + unit * UNIT_FIELDS
    n_rows = tl.load(record + N_ROWS, mask=is_unit, other=0)
    is_working = is_unit & (n_rows > 0)
    n_blocks = tl.load(record + N_BLOCKS, mask=is_working, other=0)
    is_branching = tl.load(record + IS_BRANCHING, mask=is_working, other=0) != 0
    tree = tl.load(record + TREE_START, mask=is_working, other=0)
    # A unit that sees nothing is still an item: its rows become zero.
    n_spans = tl.where(n_blocks > 0, span_of(n_blocks * BLOCK_N - 1) + 1, 1)
    n_shared = tl.where(is_branching, span_of(tree), n_spans)
    n_walks = tl.load(record + N_WALKS, mask=is_working & is_branching, other=0)
    n_apart = (n_spans - n_shared) * n_walks
    n_joint = n_shared if IS_SPLIT else tl.minimum(n_shared, 1)
    count = tl.where(is_working, n_joint + n_apart, 0)
    if own == 0:
        tl.store(n_items, tl.sum(count, 0))
    first = tl.sum(tl.where(unit < own, count, 0), 0)
    is_own = unit == own
    rows = tl.sum(tl.where(is_own, n_rows, 0), 0)
    shared = tl.sum(tl.where(is_own, n_shared, 0), 0)
    joint = tl.sum(tl.where(is_own, n_joint, 0), 0)
    branches = tl.sum(tl.where(is_own, n_apart, 0), 0) > 0
    ways = tl.maximum(tl.sum(tl.where(is_own, n_walks, 0), 0), 1)
    blocks = tl.sum(tl.where(is_own, n_blocks, 0), 0)
    record = units + own * UNIT_FIELDS
    first_row = tl.load(record + FIRST_ROW)
    first_column = tl.load(record + FIRST_COLUMN)
    root = tl.load(record + TREE_START)
    n_plain = tl.load(record + N_PLAIN)
    for index in range(tl.sum(tl.where(is_own, count, 0), 0)):
        is_joint = index < joint
        apart = tl.maximum(index - joint, 0)
        # The later spans first: those are long.
        span = tl.where(is_joint, (shared - 1 - index) if IS_SPLIT else 0, shared + apart // ways)
        end = tl.where(is_joint & (not IS_SPLIT), shared, span + 1)
        is_all = is_joint & (not IS_SPLIT) & (branches == 0)
        first_block = span_start(span) // BLOCK_N
        end_block = tl.minimum(span_start(end) // BLOCK_N, blocks)
        item = items + (first + index) * ITEM_FIELDS
        walk = walks + (first_row + apart % ways) * WALK_FIELDS
        end_row = tl.load(walk + WALK_ROW, mask=index >= joint, other=0)
        n_on_path = tl.load(walk + WALK_ROWS, mask=index >= joint, other=0)
        order = tl.load(walk + WALK_FIRST, mask=index >= joint, other=0)
        tl.store(item + ITEM_ROW, tl.where(is_joint, first_row, end_row))
        tl.store(item + ITEM_ROWS, tl.where(is_joint, rows, n_on_path))
        tl.store(item + ITEM_ORDER, order)
        tl.store(item + ITEM_COLUMN, first_column)
        tl.store(item + ITEM_TREE, root)
        tl.store(item + FIRST_BLOCK, first_block)
        masked = tl.minimum(tl.maximum(first_block, n_plain), end_block)
        tl.store(item + MASKED_BLOCK, masked)
        tl.store(item + END_BLOCK, end_block)
        tl.store(item + PART, tl.where(is_all, -1, span))
        tl.store(item + IS_PATH, (index >= joint).to(tl.int32))
