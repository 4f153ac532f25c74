"""One round: verify the trees that wait, commit, draft the next ones, choose, publish.

Every function here reads and writes the state's buffers and nothing else, with sizes from its
bucket and without a host read: a launcher may call them one by one, or record each in a graph and
replay it. Chains, trees, planned trees, copied paths and plain decoding differ in values only.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from aerie.engine.buckets import Bucket
from aerie.engine.commit import hand_over, keep_features, note_trees
from aerie.engine.masks import MOST_HIDDEN, Levels
from aerie.engine.parts import Parts
from aerie.engine.rows import accepted_rows, draft_place, verify_rows
from aerie.kernels.report import N_CHOSEN
from aerie.speculation.draft import Drafted
from aerie.speculation.policy import Growth


def verify(parts: Parts, bucket: Bucket) -> None:
    """What waits becomes committed tokens."""
    state, kernels, n = parts.state, parts.kernels, bucket.seats
    n_nodes = None if bucket.fit is None else bucket.fit.n_nodes
    tree, seq_len = state.store.first(n).tree(n_nodes), state.seq_len[:n]
    layout = kernels["update_node_data"](
        cumu_tokens=tree.tokens,
        cumu_deltas=tree.depths,
        prev_indexs=tree.parents,
        node_count=torch.full_like(seq_len, tree.n_nodes),
        selected=state.chosen[:n, : tree.n_nodes],
        seq_len=seq_len,
        row_capacity=bucket.rows,
    )
    rows = verify_rows(parts, bucket, layout)
    every = torch.arange(bucket.rows, device=layout.positions.device)
    if bucket.options.grammar:
        state.columns.masks.send(state.noted)  # the host makes them while the target thinks
    output = parts.target.forward(rows, parts.pool, every, parts.taps)
    verdict = parts.rule(parts, bucket, layout, output.logits)
    committed = kernels["update_verify_result"](
        accept_index=verdict.accept_index,
        accept_count=verdict.accept_count,
        bonus_token=verdict.bonus_token,
        draft_tokens=layout.draft_tokens,
        qo_indptr=layout.qo_indptr,
        seq_len=seq_len,
        length_limit=state.seats("length_limit", n),
        stop_tokens=state.seats("stop_tokens", n),
        req_to_token=parts.table,
        req_pool_indices=state.seats("table_row", n),
    )
    kernels["move_kv_slots"](
        keys=parts.pool.keys,
        values=parts.pool.values,
        kv_src=committed.kv_src,
        kv_dst=committed.kv_dst,
    )
    parts.target.moved(parts.pool, committed.kv_src, committed.kv_dst)
    hand_over(parts, bucket, layout, verdict, committed, output)


def draft(parts: Parts, bucket: Bucket, growth: Growth) -> Drafted:
    """What was committed becomes the next trees, and the nodes of them to verify."""
    state, n = parts.state, bucket.seats
    store, drafted = state.store.first(n), Drafted(1, (), ())
    if parts.draft is not None:
        place, own = draft_place(parts, bucket), parts.draft
        if bucket.options.grammar:
            known = store.arrays["cumu_tokens"], store.arrays["prev_indexs"], state.report.lines[:n]
            most = MOST_HIDDEN if bucket.fit is None else None
            allow = Levels(state.columns.masks, known, own.token_map(n), most)
            own = replace(own, allow=allow)
        drafted = own.run(growth, store, accepted_rows(parts, bucket), place)
    n_nodes, deepest = drafted.n_nodes, len(drafted.widths) + 1
    if parts.copied is not None:
        where = state.seats("table_row", n), state.seq_len[:n]
        n_nodes = parts.copied.merge(parts.kernels, store, n_nodes, *where)
        deepest = max(deepest, parts.copied.depth)
    tree, chosen = store.tree(n_nodes, deepest), state.chosen[:n, :n_nodes]
    parts.policy.select(parts.kernels, tree, chosen, state.report.lines[:n, N_CHOSEN])
    state.chosen[:n, n_nodes:] = False  # of a larger tree before
    note_trees(parts, tree, chosen)
    if drafted.gains:
        torch.stack(drafted.gains, out=state.report.gains[: len(drafted.gains)])
    return replace(drafted, n_nodes=n_nodes)


def close(parts: Parts, bucket: Bucket) -> None:
    """End a round without drafting: the next tree of everybody is the root."""
    state, n = parts.state, bucket.seats
    state.chosen[:n, 1:] = False
    note_trees(parts, state.store.first(n).tree(1), state.chosen[:n, :1])
    keep_features(state, n)


def publish(parts: Parts, page: int) -> None:
    """Send the report to the host: the round's one read, complete when the device has caught up.

    `page` is the host's copy it is sent to: the other one may be read meanwhile.
    """
    sent = parts.state.pages[page]
    if sent is not parts.state.report:
        sent.flat.copy_(parts.state.report.flat, non_blocking=True)
