"""One round: verify the trees that wait, commit, draft the next ones, choose, publish.

Every function here reads and writes the state's buffers and nothing else, with sizes from its
bucket and without a host read: a launcher may call them one by one, or record each in a graph and
replay it. Chains, trees, planned trees, copied paths and plain decoding differ in values only. So
do previews: rounds inside a draft, in which the target looks at a part of its KV.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.engine.buckets import Bucket
from aerie.engine.commit import hand_over, keep_features, note_trees
from aerie.engine.masks import MOST_HIDDEN, MOST_LEVELS, Levels
from aerie.engine.parts import Parts, Verdict
from aerie.engine.preview import (
    add_to_run,
    begin_run,
    fitted,
    judged,
    near_pass,
    near_texts,
    note_queries,
    splice,
)
from aerie.engine.rows import Texts, accepted_rows, draft_place, verify_rows
from aerie.kernels.report import N_CHOSEN
from aerie.speculation.draft import Drafted
from aerie.speculation.policy import Growth, Settled
from aerie.speculation.preview import Preview


def verify(parts: Parts, bucket: Bucket) -> None:
    """What waits becomes committed tokens."""
    state, kernels, n = parts.state, parts.kernels, bucket.seats
    n_nodes = None if bucket.fit is None else bucket.fit.n_nodes
    tree, texts = state.store.first(n).tree(n_nodes), Texts.of(parts, n)
    layout = kernels["update_node_data"](
        cumu_tokens=tree.tokens,
        cumu_deltas=tree.depths,
        prev_indexs=tree.parents,
        node_count=torch.full_like(texts.seq_len, tree.n_nodes),
        selected=state.chosen[:n, : tree.n_nodes],
        seq_len=texts.seq_len,
        row_capacity=bucket.rows,
    )
    rows = verify_rows(parts, bucket, layout, texts)
    if bucket.options.grammar:
        # The host makes them while the target thinks.
        state.columns.masks.send(state.noted, state.report.lines[:n])
    aside: dict[str, Any] = {}
    if parts.is_preview:
        aside["near"] = near_pass(parts, bucket, layout)
    elif parts.previews is not None:
        aside["watched"] = parts.target.watch(bucket.rows)
    output = parts.target.forward(rows, parts.pool, None, parts.taps, **aside)
    verdict = parts.rule(parts, bucket, layout, output.logits)
    limit = state.seats("length_limit", n)
    committed = _keep(parts, layout, verdict, (texts, limit), parts.pool)
    parts.target.moved(parts.pool, committed.kv_src, committed.kv_dst)
    if parts.is_preview and parts.previews is not None:
        near = near_texts(parts.previews, n)
        # A text ends where it ends, however much of it lies in a pool.
        own = near, limit - texts.seq_len + near.seq_len
        _keep(parts, layout, verdict, own, parts.previews.pool)
    kept = hand_over(parts, bucket, layout, verdict, committed, output)
    if "watched" in aside:
        note_queries(parts, n, kept, aside["watched"])


def _keep(
    parts: Parts, layout: Any, verdict: Verdict, ends: tuple[Texts, Tensor], pool: KVPool
) -> Any:
    """Clip what was accepted, and move its KV into place in a pool."""
    (texts, limit), state = ends, parts.state
    committed = parts.kernels["update_verify_result"](
        accept_index=verdict.accept_index,
        accept_count=verdict.accept_count,
        bonus_token=verdict.bonus_token,
        draft_tokens=layout.draft_tokens,
        qo_indptr=layout.qo_indptr,
        seq_len=texts.seq_len,
        length_limit=limit,
        stop_tokens=state.seats("stop_tokens", limit.shape[0]),
        req_to_token=texts.table,
        req_pool_indices=texts.rows,
    )
    parts.kernels["move_kv_slots"](
        keys=pool.keys, values=pool.values, kv_src=committed.kv_src, kv_dst=committed.kv_dst
    )
    return committed


def preview(parts: Parts, bucket: Bucket, plan: Preview) -> Parts:
    """Let the target run on over a part of its KV; the parts of what goes on behind its run."""
    ahead, n = begin_run(parts, bucket), bucket.seats
    for _ in range(plan.n_passes):
        drafted, _ = grow(ahead, fitted(ahead, bucket), Settled(plan.widths))
        tree, chosen = ahead.state.store.first(n).tree(drafted.n_nodes), ahead.state.chosen[:n]
        parts.kernels["choose_best_nodes"](
            cumu_scores=tree.scores,
            verify_num=plan.rows,
            selected=chosen[:, : tree.n_nodes],
            n_chosen=ahead.state.report.lines[:n, N_CHOSEN],
        )
        chosen[:, tree.n_nodes :] = False
        verify(ahead, judged(ahead, bucket, plan, tree.n_nodes))
        add_to_run(ahead, n)
    return ahead


def grow(parts: Parts, bucket: Bucket, growth: Growth) -> tuple[Drafted, int]:
    """What was committed becomes trees in the store, so deep at most."""
    state, n = parts.state, bucket.seats
    store, drafted = state.store.first(n), Drafted(1, (), ())
    if parts.draft is not None:
        place, own = draft_place(parts, bucket), parts.draft
        if bucket.options.grammar:
            known = store.arrays["cumu_tokens"], store.arrays["prev_indexs"], state.report.lines[:n]
            most = (None, own.shape.depth + 1) if bucket.fit else (MOST_HIDDEN, MOST_LEVELS)
            ids = own.token_map(n)
            ids = ids[None] if ids is not None and ids.dim() == 1 else ids
            allow = Levels(state.columns.masks, parts.kernels, known, ids, *most)
            own = replace(own, allow=allow)
        drafted = own.run(growth, store, accepted_rows(parts, bucket), place)
    n_nodes, deepest = drafted.n_nodes, len(drafted.widths) + 1
    if parts.copied is not None:
        where = state.seats("table_row", n), state.seq_len[:n]
        n_nodes = parts.copied.merge(parts.kernels, store, n_nodes, *where)
        deepest = max(deepest, parts.copied.depth)
    return replace(drafted, n_nodes=n_nodes), deepest


def draft(parts: Parts, bucket: Bucket, growth: Growth) -> Drafted:
    """What was committed becomes the next trees, and the nodes of them to verify."""
    state, n, ahead = parts.state, bucket.seats, parts
    if parts.previews is not None:
        parts.previews.count[:n] = 0
    if growth.preview is not None:
        ahead = preview(parts, bucket, growth.preview)
        bucket = fitted(ahead, bucket)
    drafted, deepest = grow(ahead, bucket, growth)
    n_nodes, n_chosen = drafted.n_nodes, state.report.lines[:n, N_CHOSEN]
    tree = state.store.first(n).tree(n_nodes, deepest)
    parts.policy.select(parts.kernels, tree, state.chosen[:n, :n_nodes], n_chosen)
    state.chosen[:n, n_nodes:] = False  # of a larger tree before
    if growth.preview is not None:
        tree = splice(parts, tree, n_chosen, n_nodes)
    note_trees(parts, tree, state.chosen[:n, : tree.n_nodes])
    if drafted.gains:
        torch.stack(drafted.gains, out=state.report.gains[: len(drafted.gains)])
    return replace(drafted, n_nodes=tree.n_nodes)


def close(parts: Parts, bucket: Bucket) -> None:
    """End a round without drafting: the next tree of every request is the root."""
    state, n = parts.state, bucket.seats
    state.chosen[:n, 1:] = False
    if parts.previews is not None:
        parts.previews.count[:n] = 0
    note_trees(parts, state.store.first(n).tree(1), state.chosen[:n, :1])
    keep_features(state, n)


def publish(parts: Parts, page: int) -> None:
    """Send the report to the host: the round's one read, complete when the device has caught up.

    `page` is the host's copy it is sent to: the other one may be read meanwhile.
    """
    sent = parts.state.pages[page]
    if sent is not parts.state.report:
        sent.flat.copy_(parts.state.report.flat, non_blocking=True)
