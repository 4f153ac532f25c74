"""Cards of the rows of a round: where verified trees, prompts and drafts stand, read and write.

A round runs in buffers of a bucket, which may be longer than what the batch needs. Rows and columns
that no request uses belong to one more request behind the others, the inert one: its rows are token
0 at position 0, they read and write slot 0, and no other row sees them.
"""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card
from aerie.kernels.cards.axes import BATCH, COLUMNS, MAX_VERIFY, ROWS, SEATED_ROWS, SEATED_WIDTH
from aerie.kernels.cards.dtypes import EACH, I32, I64, INDPTR
from aerie.kernels.cards.fields import POOL_ROW, TABLE, cost, reads, returns, scalar, updates

_LISTS = ("C",)
_FED_ROWS = ("B*F",)
_RUNS = ("B*run",)
_PROMPT = ("row_capacity",)
# Chunks of prompts are longer than trees.
MOST_PROMPT_ROWS = 1 << 20

_SEQ_LEN = reads(I64, EACH, "tokens with KV, root excluded")
_KV_INDPTR = reads(I32, INDPTR, "first entry of each request's list, from K8")
_KV_INDICES = updates(I32, _LISTS, "KV slots, from K8; behind the last list: 0")
_COLUMN_POSITIONS = returns(I32, _LISTS, "position of each column")
_ROW_INDPTR = returns(I32, ("B + 2",), "first row of each request, then of the inert one")
_COLUMN_INDPTR = returns(I32, ("B + 2",), "the same of columns; the inert request has one")
_WRITES = "slot each row writes, 0 for rows of no request"
_SEES = "columns it sees from the front of its list"
_LISTED = "kv_indptr begins with 0, never falls and ends within C."
_INERT = f"{_LISTED} Who looks at the inert request's column leaves room for it: an end below C."


class VerifyRows(Call, number="R1", name="place_verify_rows"):
    """The rows of K10c and the slot lists of K8 (seq_len + rows entries a request) as attention
    reads them, in buffers that may be longer. Row i of a request writes the slot at place seq_len +
    i of its list, slot 0 if the list ends before, and sees its prefix and its ancestors. A column
    of the prefix stands at its place in the list, one of the tree where its row does. Rows behind
    the last request's are inert, and see one column.
    """

    draft_tokens = reads(I64, ("R",), "from K10c; -1 behind the last row")
    positions = reads(I64, ("R",), "from K10c")
    qo_indptr = reads(I32, INDPTR, "first row of each request")
    kv_indptr = _KV_INDPTR
    kv_indices = _KV_INDICES
    seq_len = _SEQ_LEN
    tokens = returns(I64, ("R",), "token of each row, at least 0")
    kv_slots = returns(I64, ("R",), _WRITES)
    visible_prefix = returns(I32, ("R",), _SEES)
    row_indptr = _ROW_INDPTR
    column_indptr = _COLUMN_INDPTR
    column_positions = _COLUMN_POSITIONS
    tree_start = returns(I32, INDPTR, "columns before the tree; the inert request: 0")
    card = Card(
        axes=(BATCH, ROWS, COLUMNS),
        assumes=f"qo_indptr begins with 0, never falls and ends within R; {_INERT}",
        cost=cost(
            "16*R + 4*C + 8*(B+1) + 8*B", "20*R + 8*C + 8*(B+2) + 4*(B+1)", "(R + C)*8 + 4*B"
        ),
    )


class PromptRows(Call, number="R2", name="place_prompt_rows"):
    """The rows of prompt chunks as attention reads them: row i of a chunk is the token at position
    start + i, writes the slot at that place of its request's list (start + rows slots, from K8;
    slot 0 if the list ends before) and sees everything up to itself. Rows behind the last chunk are
    inert: position 0, and one visible column.
    """

    row_capacity = scalar("int", 0, MOST_PROMPT_ROWS, "rows of the output buffers")
    qo_indptr = reads(I32, INDPTR, "first row of each chunk")
    start = reads(I64, EACH, "position of each chunk's first token")
    kv_indptr = _KV_INDPTR
    kv_indices = _KV_INDICES
    positions = returns(I64, _PROMPT, "position of each row")
    kv_slots = returns(I64, _PROMPT, _WRITES)
    visible_prefix = returns(I32, _PROMPT, _SEES)
    row_indptr = _ROW_INDPTR
    column_indptr = _COLUMN_INDPTR
    column_positions = _COLUMN_POSITIONS
    tree_start = returns(I32, INDPTR, "start of each chunk; the inert request: 0")
    card = Card(
        axes=(BATCH, COLUMNS),
        assumes=f"qo_indptr begins with 0, never falls and ends within row_capacity; {_INERT}",
        cost=cost(
            "4*row_capacity + 8*(B+1) + 8*B",
            "20*row_capacity + 8*C + 8*(B+2) + 4*(B+1)",
            "(row_capacity + C)*6 + 4*B",
        ),
    )


class DraftRows(Call, number="R3", name="place_draft_rows"):
    """Where the rows stand that the draft takes in after a verdict, run rows a request: row i of
    the count ones stands at seq_len - count + i. Further rows stand where the last one does, so
    that attention looks at no other columns for them, and write slot 0; so do all rows of a request
    with count 0. Positions are at least 0.
    """

    run = scalar("int", 1, MAX_VERIFY, "rows of each request")
    seq_len = _SEQ_LEN
    count = reads(I64, EACH, "rows that hold a token, 0 to run")
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    positions = returns(I64, _RUNS, "position of each row")
    kv_slots = returns(I64, _RUNS, _WRITES)
    visible_prefix = returns(I32, _RUNS, _SEES)
    last = returns(I64, EACH, "row of each request's last token, its first row if it has none")
    tree_start = returns(I32, EACH, "seq_len")
    card = Card(
        axes=(BATCH, SEATED_ROWS, SEATED_WIDTH),
        assumes="req_pool_indices are rows of the table; 0 <= count <= run; 0 <= seq_len <= L.",
        cost=cost("B*(28*run + 24)", "B*(20*run + 12)", "8*B*run"),
    )


class DraftLevels(Call, number="R4", name="place_draft_levels"):
    """Where the nodes stand that the draft is fed level by level: node f of a request, of level
    node_level[f], at position seq_len + level and in the slot of position seq_len + f. Nodes are
    listed level by level, inside a level request by request: level d begins at B times the nodes
    before it. Each sees its prefix here, and its ancestors by R5's bits. Columns behind the prefix
    stand at their node's position, any further at their place.
    """

    seq_len = _SEQ_LEN
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    node_level = reads(I64, ("F",), "level of each fed node, ascending from 0")
    kv_indptr = _KV_INDPTR
    kv_indices = _KV_INDICES
    fed_positions = returns(I64, _FED_ROWS, "position of each node")
    fed_slots = returns(I64, _FED_ROWS, "slot each node writes")
    fed_visible = returns(I32, _FED_ROWS, "seq_len of its request")
    column_positions = _COLUMN_POSITIONS
    card = Card(
        axes=(
            BATCH,
            Axis("F", 0, 1024, "nodes fed per request"),
            SEATED_ROWS,
            SEATED_WIDTH,
            COLUMNS,
        ),
        assumes=(
            "req_pool_indices are rows of the table; 0 <= seq_len; node_level never falls;"
            f" {_LISTED} Nodes beyond the table's last column take its slot."
        ),
        cost=cost("8*F + 4*B*F + 20*B + 4*(B+1)", "20*B*F + 8*C", "8*B*F + 6*C"),
    )
