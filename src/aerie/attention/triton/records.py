"""The int32 records that the planning kernels write and the attention kernels read.

A *unit* is a run of rows of one request that share a program's query stack. The columns its rows
may see are cut into blocks and listed in this order, so that most need no mask at all:

    plain   [plain_start, plain_end)    seen by every row of the unit: no mask
    sinks   [0, sinks_end)              the first tokens of the text, where a window hides the rest
    edge    [edge_start, plain_start)   where the window begins for some rows only
    rest    [plain_end, end)            the causal diagonal and the tree

A *program* is a run of blocks of one unit; it holds a copy of its unit, so that it starts after
one read.
"""

from __future__ import annotations

import triton.language as tl

FIRST_ROW = tl.constexpr(0)
N_ROWS = tl.constexpr(1)  # 0: nothing to do
FIRST_COLUMN = tl.constexpr(2)  # of the request, in kv_indices
TREE_START = tl.constexpr(3)
N_BLOCKS = tl.constexpr(4)
N_PLAIN = tl.constexpr(5)  # blocks of each kind
N_SINKS = tl.constexpr(6)
N_EDGE = tl.constexpr(7)
PLAIN_START = tl.constexpr(8)
PLAIN_END = tl.constexpr(9)
SINKS_END = tl.constexpr(10)
EDGE_START = tl.constexpr(11)
END = tl.constexpr(12)
UNIT_FIELDS = tl.constexpr(16)

# Of a program, behind its unit's.
FIRST_BLOCK = tl.constexpr(16)
END_BLOCK = tl.constexpr(17)
N_SPLITS = tl.constexpr(18)  # 1: the program writes the result itself
PARTIAL = tl.constexpr(19)  # where it leaves its part otherwise
PROGRAM_FIELDS = tl.constexpr(32)

# Of a row, for the merge.
ROW_PARTIAL = tl.constexpr(0)  # first part of its unit
ROW_SPLITS = tl.constexpr(1)
ROW_OF_UNIT = tl.constexpr(2)
ROW_FIELDS = tl.constexpr(4)
