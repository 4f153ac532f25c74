"""Previews: the target runs on over a part of its KV, and leaves a run for the full pass to judge.

A preview is a round inside a draft, on a shadow of the state: the head's trees are verified over
blocks of the text that were chosen by the last full pass and copied into a pool of their own. What
is accepted there is a run of draft tokens like any others, and the full pass decides every token.
Nothing is rolled back: all that a preview writes lies behind the text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aerie.engine.buckets import Bucket, Fit
from aerie.engine.graphs import smallest
from aerie.engine.near_kv import Previews
from aerie.engine.parts import Parts
from aerie.engine.rows import Texts, owners, verify_rows
from aerie.kernels.report import N_CHOSEN, N_EMITTED
from aerie.models.decoder import NearPass, Watched
from aerie.speculation.preview import Preview
from aerie.speculation.tree import DraftTree

SCORED_BY = {"mass": "weigh_kv_blocks", "bounds": "bound_kv_blocks"}
SPLICED = ("cumu_tokens", "cumu_scores", "cumu_deltas", "prev_indexs")


def begin_run(parts: Parts, bucket: Bucket) -> Parts:
    """Copy the blocks that matter; the parts of rounds that go on behind the text over them."""
    own, state, n = _of(parts), parts.state, bucket.seats
    config, texts = own.config, Texts.of(parts, n)
    where = {"req_to_token": texts.table, "req_pool_indices": texts.rows, "seq_len": texts.seq_len}
    size, first = config.specpv_block_size, config.n_dense_layers
    keys, values = parts.pool.keys[first:], parts.pool.values[first:]
    scored = parts.kernels[SCORED_BY[config.specpv_select]](
        queries=own.queries[:, texts.rows],
        keys=keys,
        **where,
        block_size=size,
        n_blocks=-(-bucket.columns // size),
    )
    chosen = parts.kernels["choose_kv_blocks"](
        block_scores=scored.block_scores,
        seq_len=texts.seq_len,
        block_size=size,
        n_sink=config.n_sink_blocks,
        n_retrieval=config.n_retrieval_blocks,
        n_window=config.n_window_blocks,
    )
    parts.kernels["gather_kv_blocks"](
        near_keys=own.pool.keys,
        near_values=own.pool.values,
        keys=keys,
        values=values,
        blocks=chosen.blocks,
        **where,
        near_table=own.table[:n],
        block_size=size,
    )
    own.near_len[:n] = chosen.near_len
    own.roots[:n] = state.store.arrays["cumu_tokens"][:n, 0]
    own.shadow.seq_len[:n] = texts.seq_len
    own.shadow.is_live[:n] = state.is_live[:n] & state.seats("takes_drafts", n)
    draft = None if parts.draft is None else replace(parts.draft, weighs=False)
    return replace(parts, state=replace(state, **vars(own.shadow)), draft=draft, near_limit=None)


def fitted(ahead: Parts, bucket: Bucket) -> Bucket:
    """The sizes of a draft behind a run: the host looks where the launcher's sizes fit exactly."""
    if bucket.fit is None:
        return bucket
    n, state = bucket.seats, ahead.state
    lengths, counts = state.seq_len[:n].tolist(), state.kept.count[:n].tolist()
    return replace(bucket, fit=replace(bucket.fit, lengths=tuple(lengths), counts=tuple(counts)))


def judged(ahead: Parts, bucket: Bucket, plan: Preview, n_nodes: int) -> Bucket:
    """The sizes of a verification over a part of the KV."""
    own, n = _of(ahead), bucket.seats
    # Counts of tokens are not kept for what may never be said, and its scores are not read.
    options = replace(bucket.options, penalties=False, logprobs=False, grammar=False)
    if bucket.fit is None:
        rows, tile = own.padded(n * plan.rows), smallest(own.sizes.tiles, plan.rows)
        return replace(bucket, rows=rows, options=options, tile=tile)
    lengths = ahead.state.seq_len[:n].tolist()
    each = ahead.state.report.lines[:n, N_CHOSEN].tolist()
    return Bucket(
        seats=n,
        rows=own.padded(sum(each)),
        columns=max(length + rows for length, rows in zip(lengths, each, strict=True)),
        options=options,
        tile=max(each),
        fit=Fit(sum(each), tuple(lengths), n_nodes=n_nodes),
    )


def near_texts(own: Previews, n: int) -> Texts:
    """Where the texts of the first seats lie among the chosen blocks."""
    rows = torch.arange(n, device=own.near_len.device)
    return Texts(own.table, rows, own.near_len[:n])


def near_pass(parts: Parts, bucket: Bucket, layout: Any) -> NearPass:
    """The rows of a verification among the chosen blocks."""
    own, texts = _of(parts), near_texts(_of(parts), bucket.seats)
    sizes = replace(bucket, columns=own.table.shape[1], fit=None)
    rows = verify_rows(parts, sizes, layout, texts)
    # Attention that counts columns by position finds a row where it stands among the blocks.
    owner = owners(layout.qo_indptr, bucket.rows)
    nearer = (texts.seq_len - parts.state.seq_len[: bucket.seats])[owner]
    rows = replace(rows, positions=(rows.positions + nearer).clamp_min(0))
    return NearPass(rows, own.pool, own.config.n_dense_layers)


def add_to_run(parts: Parts, n: int) -> None:
    """What a preview accepted follows what those before it did."""
    own, tokens = _of(parts), parts.state.kept.tokens[:n]
    n_emitted = parts.state.report.lines[:n, N_EMITTED].long()
    step, longest = torch.arange(tokens.shape[1], device=tokens.device), own.sizes.longest
    column = own.count[:n, None] + step
    is_real = (step < n_emitted[:, None]) & (column < longest)
    own.run[:n].scatter_(1, torch.where(is_real, column, longest), tokens)
    own.count[:n] = (own.count[:n] + n_emitted).clamp_max(longest)
    own.near_len[:n] += parts.state.kept.count[:n]


def note_queries(parts: Parts, n: int, kept_rows: Tensor, watched: Watched) -> None:
    """Keep the queries of the last row of every text: they choose the blocks of its preview."""
    own = _of(parts)
    last = (parts.state.kept.count[:n] - 1).clamp_min(0)
    rows = kept_rows.gather(1, last[:, None])[:, 0]
    keep_queries(own, parts.state.seats("table_row", n), watched.queries[:, rows])


def keep_queries(own: Previews, table_rows: Tensor, queries: Tensor) -> None:
    """Queries [layers, B, heads, dim] of one row of each text, by row of the table."""
    own.queries[:, table_rows] = queries[own.config.n_dense_layers :] * own.scales


def splice(parts: Parts, tree: DraftTree, n_chosen: Tensor, grown: int) -> DraftTree:
    """The run of a preview, then the tree that was drafted behind it, as nodes of one tree."""
    own, state, n = _of(parts), parts.state, tree.tokens.shape[0]
    arrays, longest = state.store.first(n).arrays, own.sizes.longest
    found = parts.kernels["splice_drafted_run"](
        **{name: arrays[name] for name in SPLICED},
        selected=state.chosen[:n],
        n_chosen=n_chosen,
        root_tokens=own.roots[:n],
        run_tokens=own.run[:n, :longest],
        run_count=own.count[:n],
        node_count=grown,
    )
    whole = state.store.first(n).tree(grown + longest, tree.deepest + longest)
    return replace(whole, depths=found.noted_depths[:, : grown + longest])


def _of(parts: Parts) -> Previews:
    assert parts.previews is not None, "previews are off"
    return parts.previews
