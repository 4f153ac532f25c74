"""Checks beside the matrix: same bytes again, the context's end, slots that finish, acceptance."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from aerie.bench.contract import PLAIN
from aerie.bench.experiment import Experiment
from aerie.bench.lane import captured
from aerie.bench.round.setup import Room
from aerie.bench.round.texts import write_texts
from aerie.by_context import ByContext
from aerie.requests.params import SamplingParams
from aerie.requests.request import State

SHORT = 512  # the shortest held-out prompts
REPEATS = 3
BEFORE_END = 40  # tokens that still fit behind a prompt of the tail check


def check_repeats(session: Experiment) -> dict[str, Any]:
    """Three runs from the same prompts: byte for byte the same tokens."""
    prompts = [p.tokens for p in session.book.choose(SHORT, 2)]
    found = {}
    for policy in _fixed(session):
        texts = [session.bed.run(policy, prompts, 96).texts for _ in range(REPEATS)]
        found[policy] = all(text == texts[0] for text in texts)
    return {"repeats": REPEATS, "tokens": 96, "identical": found, "ok": all(found.values())}


def check_tail(session: Experiment) -> dict[str, Any]:
    """Drafts that would pass the context's end: every text ends there, and is the plain one."""
    prompts = [p.tokens[: SHORT // 2] for p in session.book.choose(SHORT, 4)]
    room = Room(len(prompts), SHORT // 2 + BEFORE_END, margin=0)
    texts = {}
    for policy in _fixed(session):
        speculation = session.contract.policies[policy].speculation()
        core = session.setup.core(session.pair, speculation, room)
        texts[policy] = write_texts(core, prompts, 10 * BEFORE_END, 0.0)
    lengths = sorted({len(text) for own in texts.values() for text in own})
    equal = {policy: own == texts[PLAIN] for policy, own in texts.items() if policy != PLAIN}
    is_exact = lengths == [BEFORE_END]
    return {
        "context": room.context,
        "lengths": lengths,
        "same_as_plain": equal,
        # In bf16 two policies may part at a near tie; where a text ends they may not.
        "ok": is_exact and (session.contract.model.dtype != "float32" or all(equal.values())),
    }


def check_slots(session: Experiment) -> dict[str, Any]:
    """A batch of four whose requests end one after the other: what every round still computes."""
    policy = next(name for name in _fixed(session) if name != PLAIN)
    bed = session.bed
    prompts = [p.tokens for p in session.book.choose(SHORT, 4)]
    bed.read(prompts, policy)
    bed.take(policy)
    core = bed.core
    keys: list[Any] = []
    rows: list[dict[str, Any]] = []
    graphs = captured(core).graphs
    graphs.watch = keys.append
    for n_tokens, prompt in zip((24, 48, 72, 96), prompts, strict=True):
        core.submit(prompt, SamplingParams(max_tokens=n_tokens, ignore_eos=True))
    while not core.is_idle:
        keys.clear()
        core.step()
        lengths = [r.seq_len for r in core.running if r.state is State.DECODING]
        last = {key[0]: key for key in keys}  # of every kind of graph
        if lengths and "draft" in last:
            # The step that ends a request starts no round; the next one has the others alone.
            _, bucket, widths, *_ = last["draft"]
            rows.append(
                {
                    "round": len(rows),
                    "active": len(lengths),
                    "slots": bucket.seats,
                    "verify_rows": last["verify"][1].rows,
                    "draft_rows": bucket.seats * sum(widths),
                    "attention_tokens": sum(lengths),
                }
            )
    graphs.watch = lambda key: None
    return {"policy": policy, "rounds": rows, **proportion(rows)}


def proportion(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Draft rows and attention tokens of a round over the number of its requests.

    A round is launched before the report of the last one is read, so the first round after an
    end may still hold the row of the request that ended. Those are listed; no later round may.
    """
    late = [
        row["round"]
        for before, row in itertools.pairwise(rows)
        if before["active"] == row["slots"] > row["active"]
    ]
    settled = [row for row in rows if row["round"] not in late]
    per = {}
    for n in sorted({row["active"] for row in settled}, reverse=True):
        own = [row for row in settled if row["active"] == n]
        n_tokens = statistics.fmean(row["attention_tokens"] for row in own)
        n_rows = max(row["draft_rows"] for row in own)
        per[n] = {"draft_rows_each": n_rows / n, "attention_tokens_each": round(n_tokens / n, 1)}
    rows_each = {own["draft_rows_each"] for own in per.values()}
    tokens_each = [own["attention_tokens_each"] for own in per.values()]
    is_level = max(tokens_each) <= 1.35 * min(tokens_each)  # texts grow while others end
    active = [row["active"] for row in rows]
    return {
        "rounds_launched_before_an_end_was_known": late,
        "per_active": per,
        "disabled_finished": sum(max(active) - n for n in active),
        "active_count": {
            "mean": round(sum(active) / len(active), 3),
            "min": min(active),
            "max": max(active),
        },
        "ok": len(per) == 4 and len(rows_each) == 1 and is_level,
    }


def measure_acceptance(session: Experiment) -> dict[str, Any]:
    """Mean acceptance length over many short prompts, for a comparison between dtypes."""
    batch = session.contract.memory.max_batch
    prompts = session.book.choose(SHORT, session.contract.measure.acceptance_prompts)
    found: dict[str, Any] = {"prompts": len(prompts), "new_tokens": 128, "policies": {}}
    for policy in _fixed(session):
        if policy == PLAIN:
            continue
        drafts = accepted = 0
        met: list[ByContext] = []
        for first in range(0, len(prompts), batch):
            own = [prompt.tokens for prompt in prompts[first : first + batch]]
            for counts in session.bed.run(policy, own, 128).statistics:
                drafts += counts.num_drafts
                accepted += counts.num_accepted_tokens
                met.append(counts.by_context)
        length = round(1 + accepted / drafts, 4)
        found["policies"][policy] = {
            "drafts": drafts,
            "accepted": accepted,
            "mean_acceptance_length": length,
            "acceptance_by_context": ByContext.total(met).lengths(),
        }
    return {**found, "ok": True}


def _fixed(session: Experiment) -> list[str]:
    """Plain decoding and the policies that are checked beside it."""
    return [PLAIN, *session.contract.measure.checked]


CHECKS: dict[str, Callable[[Experiment], dict[str, Any]]] = {
    "repeats": check_repeats,
    "tail": check_tail,
    "slots": check_slots,
    "acceptance": measure_acceptance,
}
