"""Prompts: a chunk of them is rows like any others, shown to the target and then to the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from aerie.engine.buckets import Bucket, Sizes
from aerie.engine.graphs import Graphs, Recording
from aerie.engine.packed import Packed
from aerie.engine.parts import Parts
from aerie.engine.preview import keep_queries
from aerie.engine.rows import prompt_rows
from aerie.engine.scheduler import Plan, Reading
from aerie.engine.state import Chunk
from aerie.requests.request import Scored, State

SCORED_ROWS = 128  # of a prompt, in one call: as many as a request may verify


def read(parts: Parts, bucket: Bucket, chunk: Chunk) -> None:
    """Write the KV of a chunk, the target's and the draft's.

    The features of each stretch's last position wait by table row: a draft begins with them.
    """
    _forward(parts, bucket, chunk, chunk.start.new_empty(0))


def _read_scored(parts: Parts, bucket: Bucket, chunk: Chunk, wanted: int) -> list[Scored]:
    """The same, and what the target thought of the token after every row; waits for the device."""
    n_rows = int(chunk.qo_indptr[-1])
    every = torch.arange(n_rows, device=chunk.tokens.device)
    logits = _forward(parts, bucket, chunk, every)
    n_groups = -(-n_rows // SCORED_ROWS)
    padded = torch.full((n_groups * SCORED_ROWS,), -1, dtype=torch.int64, device=every.device)
    rows, tokens = padded.clone(), padded.clamp_min(0)
    rows[:n_rows], tokens[:n_rows] = every, chunk.following[:n_rows]
    found = parts.kernels["score_target_tokens"](
        logits=logits,
        rows=rows.view(n_groups, SCORED_ROWS),
        tokens=tokens.view(n_groups, SCORED_ROWS),
        wanted=torch.full((n_groups,), wanted, dtype=torch.int32, device=every.device),
        top_n=max(wanted, 1),
    )
    own = found.chosen_logprobs.flatten()[:n_rows].tolist()
    ids, values = (
        part.flatten(0, 1)[:n_rows, :wanted].tolist()
        for part in (found.top_tokens, found.top_logprobs)
    )
    return [
        Scored(logprob, tuple(zip(best, scores, strict=True)))
        for logprob, best, scores in zip(own, ids, values, strict=True)
    ]


def _forward(parts: Parts, bucket: Bucket, chunk: Chunk, asked: Tensor) -> Tensor:
    rows = prompt_rows(parts, bucket, chunk)
    n, aside = bucket.seats, dict[str, Any]()
    last = (chunk.qo_indptr[1 : n + 1].long() - 1).clamp_min(0)
    if parts.previews is not None:
        aside["watched"] = parts.target.watch(n, last)
    output = parts.target.forward(rows, parts.pool, asked, parts.taps, **aside)
    if parts.previews is not None:
        keep_queries(parts.previews, chunk.table_row[:n], aside["watched"].queries)
    if parts.draft is not None:
        shown = replace(rows, tokens=chunk.following[: bucket.rows])
        none = chunk.start.new_empty(0)
        parts.draft.head.extend(shown, output.taps, parts.draft.pool, none)
        parts.state.features.last[chunk.table_row[:n]] = output.taps[last]
    return output.logits


def read_chunk(parts: Parts, sizes: Sizes, reading: Sequence[Reading]) -> None:
    """Read stretches of prompts in a size that fits; score those that ask for it one by one."""
    plain = [part for part in reading if not part.request.wants_scores]
    for own in ([plain] if plain else []) + [[p] for p in reading if p not in plain]:
        bucket = sizes.chunk([part.start for part in own], [part.end for part in own])
        chunk = _make_chunk(own, bucket.rows, parts.table.device)
        request = own[0].request
        if request.wants_scores:
            wanted = request.params.prompt_logprobs or 0
            request.prompt_scored += _read_scored(parts, bucket, chunk, wanted)
        else:
            read(parts, bucket, chunk)
    _note_read(reading)


def _note_read(reading: Sequence[Reading]) -> None:
    """The prompts are so far read, by everything that is launched from here on."""
    for part in reading:
        request = part.request
        request.seq_len = request.seen = part.end
        request.statistics.prefill_tokens += part.end - part.start
        if not request.n_unread:
            request.state = State.DECODING


def _make_chunk(reading: Sequence[Reading], n_rows: int, device: torch.device) -> Chunk:
    """The stretches as arrays, padded to so many rows."""
    made = _lists(reading)
    padding = [0] * (n_rows - len(made["tokens"]))

    def integers(
        name: str, padding: Sequence[int] = (), dtype: torch.dtype = torch.int64
    ) -> Tensor:
        return torch.tensor([*made[name], *padding], dtype=dtype).to(device, non_blocking=True)

    return Chunk(
        tokens=integers("tokens", padding),
        following=integers("following", padding),
        qo_indptr=integers("qo_indptr", dtype=torch.int32),
        start=integers("start"),
        table_row=integers("table_row"),
    )


def _lists(reading: Sequence[Reading]) -> dict[str, list[int]]:
    """The stretches one behind the other, by the names of `Chunk`."""
    tokens, following = list[int](), list[int]()
    for part in reading:
        text = part.request.tokens
        tokens += text[part.start : part.end]
        following += text[part.start + 1 : part.end + 1]
    return {
        "tokens": tokens,
        "following": following,
        "qo_indptr": [0, *accumulate(part.end - part.start for part in reading)],
        "start": [part.start for part in reading],
        "table_row": [part.request.held.row for part in reading],
    }


class Reader:
    """Reads the prompts of a plan once, in recorded sizes; what is to be scored, directly."""

    def __init__(self, parts: Parts, sizes: Sizes, graphs: Graphs) -> None:
        self._parts = parts
        self._sizes = sizes
        self._graphs = graphs
        self._last: Plan | None = None
        n_seats, most = parts.state.n_seats, sizes.chunk_rows(sizes.max_chunk)
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "tokens": (torch.int64, (most,)),
            "following": (torch.int64, (most,)),
            "qo_indptr": (torch.int32, (n_seats + 1,)),
            "start": (torch.int64, (n_seats,)),
            "table_row": (torch.int64, (n_seats,)),
        }
        self._there = Packed.empty(self._shapes, str(parts.table.device))
        self._chunk = Chunk(**self._there.arrays)

    def is_due(self, plan: Plan) -> bool:
        """Whether a plan reads something that was not launched yet."""
        return plan is not self._last and bool(plan.reading)

    def read(self, plan: Plan) -> None:
        """Launch what a plan reads, unless that was done."""
        if plan is self._last:
            return
        self._last = plan
        scored = [part for part in plan.reading if part.request.wants_scores]
        plain = [part for part in plan.reading if part not in scored]
        if scored:
            read_chunk(self._parts, self._sizes, scored)
        if plain:
            bucket = self._sizes.recorded_chunk([p.start for p in plain], [p.end for p in plain])
            self._fill(plain)
            self._graphs.run(("read", bucket), partial(read, self._parts, bucket, self._chunk))
            _note_read(plain)

    def recordings(self, n_seats: int, columns: int) -> list[Recording]:
        """Every size of chunk that so many requests of so many positions may read."""
        self._fill([])  # no request's rows, should one be run
        sizes, most = self._sizes, self._sizes.chunk_rows(self._sizes.max_chunk)
        totals = {n for n in map(sizes.chunk_rows, sizes.graphs.chunks) if n <= most}
        # No request reads more tokens than it may have positions.
        fitting = (n for n in sorted({*totals, most}) if n <= n_seats * columns)
        buckets = [Bucket(n_seats, n, columns) for n in fitting]
        return [(("read", own), partial(read, self._parts, own, self._chunk)) for own in buckets]

    def _fill(self, reading: Sequence[Reading]) -> None:
        """Write the stretches into the buffers that the graphs read; no wait for the device."""
        here, is_cuda = self._there, self._there.flat.is_cuda
        if is_cuda:  # pinned and new: the last copy may be under way, of other memory one waits
            here = Packed.empty(self._shapes, "cpu", is_pinned=True)
        made = _lists(reading)
        # Requests beyond those that read have no rows.
        rest = {"qo_indptr": made["qo_indptr"][-1], "table_row": self._parts.state.told.inert_row}
        for name, own in here.host.items():
            own[: len(made[name])] = made[name]
            own[len(made[name]) :] = rest.get(name, 0)
        if is_cuda:
            self._there.flat.copy_(here.flat, non_blocking=True)
