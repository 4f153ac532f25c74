"""Card of K7: clip the accepted runs, compact the batch, plan the KV moves."""

from __future__ import annotations

from aerie.kernels.card import Call, Card, Refusal
from aerie.kernels.cards.axes import BATCH, DEPTH, ROWS, STOPS, TABLE_ROWS, TABLE_WIDTH
from aerie.kernels.cards.dtypes import BOOL, EACH, I32, I64, INDPTR
from aerie.kernels.cards.fields import POOL_ROW, STATUS, TABLE, cost, reads, returns
from aerie.kernels.cards.refusals import BROKEN_LAYOUT, MANY_ROWS, OF_TABLE
from aerie.kernels.status import Status

_RUNS = ("B*(D+1)",)
_ONE = ("1",)


class VerifyResult(Call, number="K7", name="update_verify_result", family="commit"):
    """Emit accepted tokens then the bonus, cut after the first stop token (kept) or at length_limit
    (prompt and output tokens together; seq_len + 1 are committed already). The KV of the root and
    of the emitted accepted rows is kept: row k of those must end up in the slot of position seq_len
    + k. Moves mean read-all-then-write. A request that stopped or reached its limit is finished.
    out_rows lists flat rows for the unfinished only, so nobody unfinished leaves nothing to launch.
    A request of no rows, and a refused one, emits nothing, keeps its seq_len and is not listed as
    unfinished.
    """

    accept_index = reads(I64, ("B", "D+1"), "from K6")
    accept_count = reads(I64, EACH, "from K6")
    bonus_token = reads(I64, EACH, "from K6")
    draft_tokens = reads(I64, ("R",), "from K10c")
    qo_indptr = reads(I32, INDPTR, "first row of each request")
    seq_len = reads(I64, EACH, "tokens with KV in the target, root excluded")
    length_limit = reads(I64, EACH, "most tokens the request may hold; any int64")
    stop_tokens = reads(I64, ("B", "S"), "stop ids, -1 for none")
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    out_tokens = returns(I64, _RUNS, "emitted tokens of all requests", -1)
    out_indptr = returns(I32, INDPTR, "first emitted token of each request")
    out_rows = returns(I64, _RUNS, "flat rows of root and kept rows, unfinished only", -1)
    rows_indptr = returns(I32, INDPTR, "first entry of each request in out_rows")
    new_seq_len = returns(I64, EACH, "tokens with KV after the commit")
    finished = returns(BOOL, EACH, "stopped or at its limit")
    unfinished = returns(I64, EACH, "requests that go on, packed to the front", -1)
    unfinished_count = returns(I32, _ONE, "how many")
    kv_src = returns(I32, _RUNS, "slot each moved row is read from", -1)
    kv_dst = returns(I32, _RUNS, "slot it is written to", -1)
    move_count = returns(I32, _ONE, "moves")
    free = returns(I32, ("R",), "tree slots that hold nothing any more", -1)
    free_count = returns(I32, _ONE, "freed slots")
    status = STATUS
    card = Card(
        axes=(BATCH, DEPTH, ROWS, STOPS, TABLE_ROWS, TABLE_WIDTH),
        refusals=(
            BROKEN_LAYOUT,
            MANY_ROWS,
            Refusal(Status.TOO_DEEP, "D", "accept_count outside [0, D]"),
            Refusal(Status.BROKEN_TREE, "R", "accepted rows do not ascend from row 0"),
            *OF_TABLE,
        ),
        ties="None: integers. Moves and freed slots go by request, then by position.",
        cost=cost(
            "B*(8*(D+1) + 8*S + 44) + 12*R",
            "B*(32*(D+1) + 29) + 4*R",
            "B*((D+1)*(S+4)) + R",
        ),
    )
