"""Cards of what a verdict changes: KV that moves, and the state that the next round reads."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card
from aerie.kernels.cards.axes import BATCH, MAX_ROWS, MAX_VERIFY, NODES
from aerie.kernels.cards.dtypes import BOOL, EACH, F32, HIDDEN, I32, I64, INDPTR, RUN, STORE
from aerie.kernels.cards.fields import cost, reads, returns, updates
from aerie.kernels.report import REPORT

_POOL = ("Y", "S", "H", "D")


class MovedSlots(Call, number="R11", name="move_kv_slots"):
    """K7's moves in every layer of a KV pool: slot kv_dst takes what slot kv_src held before any of
    them. Entries of -1 move nothing.
    """

    keys = updates(HIDDEN, _POOL, "keys of the pool")
    values = updates(HIDDEN, _POOL, "values of the pool")
    kv_src = reads(I32, ("T",), "slot each move reads, -1 for none; from K7")
    kv_dst = reads(I32, ("T",), "slot it writes, -1 for none")
    card = Card(
        axes=(
            Axis("T", 0, MAX_ROWS, "moves at most"),
            Axis("Y", 0, 1024, "layers of the pool"),
            Axis("S", 1, 1 << 28, "slots of the pool"),
            Axis("H", 1, 1024, "KV heads"),
            Axis("D", 1, 1024, "size of a head"),
        ),
        ties="None: copies.",
        assumes=(
            "Moves as K7 lists them: slots of the pool other than slot 0, no two write the same"
            " one, and none reads a slot that a move listed before it writes."
        ),
        cost=cost("2*E*T*Y*H*D + 8*T", "2*E*T*Y*H*D", "2*T*Y*H*D"),
    )


class HandedOver(Call, number="R12", name="hand_over_verdict"):
    __doc__ = f"""Write what follows from a verdict where the next round finds it. A request's
    status is the first of its four words that is not 0; it is decided if it lives and that is 0. A
    decided request takes its new length, its last emitted token becomes the root, and the draft
    takes in the rows whose KV it keeps, a finished request's too, which lives no longer; any other
    stays as it is, and the draft takes in nothing. Nodes below the roots lose their scores: a layer
    that is refused later must not leave nodes of this round in the running. Emitted tokens are
    written for all, 0 behind; token i of a decided request was decided by its i-th kept row. The
    report is {", ".join(REPORT)}, then the tokens; n_emitted is 0 unless decided, and n_chosen is
    1, the root, until a choice is made.
    """

    layout_status = reads(I32, EACH, "from K10c")
    sample_status = reads(I32, EACH, "from sample_target_tokens")
    walk_status = reads(I32, EACH, "from K6")
    commit_status = reads(I32, EACH, "from K7")
    out_tokens = reads(I64, ("B*n",), "from K7")
    out_indptr = reads(I32, INDPTR, "from K7")
    new_seq_len = reads(I64, EACH, "from K7")
    finished = reads(BOOL, EACH, "from K7")
    qo_indptr = reads(I32, INDPTR, "from K10c")
    accept_index = reads(I64, RUN, "from K6")
    accept_count = reads(I64, EACH, "from K6")
    is_live = updates(BOOL, EACH, "false for an empty seat, and for one that has ended")
    seq_len = updates(I64, EACH, "tokens with KV")
    cumu_tokens = updates(I64, STORE, "entry 0: the root")
    cumu_scores = updates(F32, STORE, "entries behind 0: no score")
    accepted_tokens = updates(I64, RUN, "emitted tokens, at least 0; 0 behind them")
    accepted_count = updates(I64, EACH, "rows the draft takes in")
    report = updates(I32, ("B", f"n+{len(REPORT)}"), "columns of the report, then tokens")
    kept_rows = returns(I64, RUN, "flat rows whose features the draft takes in, 0 behind")
    deciding_rows = returns(I64, RUN, "flat row that decided each counted token, -1 behind")
    card = Card(
        version=2,
        axes=(BATCH, NODES, Axis("n", 1, MAX_VERIFY, "tokens a round can emit for one request")),
        assumes="Arrays as those kernels return them; tokens and lengths fit int32.",
        cost=cost("B*(16*n + 56)", f"B*(4*N + 28*n + {4 * len(REPORT)} + 24)", "B*(N + 4*n + 16)"),
    )
