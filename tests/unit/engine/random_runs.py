"""Random runs: any proposer, option, order, memory and launcher write what plain decoding writes.

Also runs by itself and keeps its log:
python -m tests.unit.engine.random_runs reports/raw/random_runs.log
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor

from aerie.attention.rows import Bounds, causal_rows
from aerie.bench.provenance import provenance
from aerie.config import PartialConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request, Scored
from tests.unit.attention.trees import pad_rows
from tests.unit.engine.cores import (
    CHEAP,
    LAUNCHERS,
    LIMITS,
    PLAIN,
    PLANNERS,
    SPECULATION,
    Pair,
    assert_pool_is_unheld,
    core,
    finish_all,
    load_pair,
    write_pair,
)

PROPOSERS = {
    "none": PLAIN,
    **SPECULATION,
    "previewed": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=8),
}
# A text of 12 tokens has more blocks than a preview looks at, so that some of its runs break.
PARTIAL = PartialConfig(
    specpv="lossless",
    specpv_block_size=2,
    n_sink_blocks=1,
    n_retrieval_blocks=2,
    n_window_blocks=2,
    n_spec_tokens_buf=8,
    partial_threshold=4,
)
PARTIALS = {"previewed": PARTIAL}
BACKENDS = ("numpy", "pytorch")
# Every proposer with every launcher and backend, in turns.
TURNS = tuple(product(PROPOSERS, LAUNCHERS, BACKENDS))
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.7},
    "top_k": {"temperature": 0.9, "top_k": 7},
    "top_p": {"temperature": 1.1, "top_p": 0.8},
    "min_p": {"temperature": 1.3, "min_p": 0.05},
    "filters": {"temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    "repetition": {"repetition_penalty": 1.3},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {3: 1.5, 9: -4.0}},
    "everything": {
        "temperature": 0.8,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "logit_bias": {4: 2.0, 5: -1.0},
        "min_tokens": 3,
    },
    "floor": {"temperature": 0.9, "min_tokens": 4, "stop_token_ids": tuple(range(20))},
    "alone": {"temperature": 0.5, "speculative": False},
    "alone and greedy": {"speculative": False},
    "stops": {"temperature": 1.0, "stop_token_ids": tuple(range(5, 17))},
    "logprobs": {"temperature": 0.6, "logprobs": 3},
    "own logprobs": {"logprobs": 0, "repetition_penalty": 1.1},
    "prompt": {"prompt_logprobs": 2, "logprobs": 1},
    "prompt alone": {"prompt_logprobs": 1, "max_tokens": 0},
}


@dataclass(frozen=True)
class Job:
    """One request of a run; `option` is what it is counted under."""

    option: str
    prompt: list[int]
    params: SamplingParams
    cancel_at: int | None  # step after its submission at which it is given up


@dataclass(frozen=True)
class Run:
    """An engine and the requests it is given."""

    seed: int
    proposer: str
    launcher: str
    backend: str
    jobs: tuple[Job, ...]
    settings: dict[str, Any]
    most_stops: int  # that the device knows of one request
    chance: random.Random  # of when requests arrive and leave


@dataclass
class Expected:
    """What plain decoding writes and keeps of one job."""

    output: list[int]
    scored: list[Scored]
    prompt_scored: list[Scored]
    kv: tuple[Tensor, Tensor]  # keys and values of the text but its last token
    draft_kv: tuple[Tensor, Tensor] | None = None  # computed when it is asked for


@dataclass
class Tally:
    """What the runs met; a suite that meets nothing proves nothing."""

    runs: Counter[str] = field(default_factory=Counter)
    options: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)


def draw(seed: int, vocabulary: int = LIMITS.vocabulary) -> Run:
    """A run by its number: turns for what must be met, chance for the rest."""
    rng = random.Random(seed)
    proposer, launcher, backend = TURNS[seed % len(TURNS)]
    jobs = tuple(_job(rng, index, vocabulary) for index in range(rng.choice([1, 3, 5, 8])))
    page_size = rng.choice([1, 2, 3, 16])
    is_short = rng.random() < 0.4
    n_slots = rng.choice([110, 130]) if is_short else 2048
    settings = {
        "max_batch": rng.choice([1, 3, 4]) if not is_short else 4,
        "chunk": rng.choice([1, 3, 7, 64]),
        "page_size": page_size,
        "n_pages": n_slots // page_size + 2,
        "prefix_reuse": rng.random() < 0.7,
    }
    # A vocabulary of 61 has no 64 stop ids: the device is told of fewer instead.
    is_floored = any(job.params.min_tokens for job in jobs)
    most_stops = 64 if is_floored else rng.choice([4, 64])
    return Run(seed, proposer, launcher, backend, jobs, settings, most_stops, rng)


def _job(rng: random.Random, index: int, vocabulary: int) -> Job:
    # Few beginnings, so that some prompts are found again.
    length = rng.choice([1, 2, 3, 4, 5, 15, 16, 17, 33])
    first = rng.choice([1, 1, rng.randrange(vocabulary)])
    prompt = [(first + 3 * place * place) % vocabulary for place in range(length)]
    if rng.random() < 0.5:
        prompt[-1] = rng.randrange(vocabulary)
    option = rng.choice(list(OPTIONS))
    asked = {"max_tokens": rng.choice([1, 3, 12, 30, 50]), **OPTIONS[option]}
    asked["min_tokens"] = min(asked.get("min_tokens", 0), asked["max_tokens"])
    seed = 1000 * index + rng.randrange(1000)
    params = SamplingParams(seed=seed, ignore_eos=rng.random() < 0.8, **asked)
    return Job(option, prompt, params, rng.choice([None] * 5 + [rng.randrange(20)]))


def expect(pair: Pair, jobs: tuple[Job, ...]) -> list[Expected]:
    """Plain decoding of the jobs, and the KV it leaves."""
    engine = core(pair, speculation=PLAIN, max_batch=4, n_pages=1024)
    kept = keep_kv(engine)
    ids = [engine.submit(job.prompt, job.params) for job in jobs]
    finish_all(engine)
    requests = [engine.request(request_id) for request_id in ids]
    return [
        Expected(r.output, r.scored, r.prompt_scored, kept[r.job.request_id][-1].target)
        for r in requests
    ]


@dataclass(frozen=True, eq=False)
class Kept:
    """KV of a request when it gave its pages back."""

    target: tuple[Tensor, Tensor]
    draft: tuple[Tensor, Tensor] | None  # of the positions that another request might reuse


def keep_kv(engine: EngineCore) -> dict[int, list[Kept]]:
    """Copies of what every request held, each time that it gives its pages back."""
    memory, parts = engine.memory, engine.parts
    release, kept = memory.release, dict[int, list[Kept]]()

    def noted(request: Request) -> None:
        if request.held.pages:
            # A text that was clipped by the host may have KV of what it never had.
            n_kept = min(request.seq_len, len(request.tokens) - 1)
            slots = memory.slots(request)[:n_kept].long()
            seen = slots[: min(request.seen, n_kept)]
            target = parts.pool.keys[:, slots], parts.pool.values[:, slots]
            draft = None
            if parts.draft is not None:
                draft = parts.draft.pool.keys[:, seen], parts.draft.pool.values[:, seen]
            kept.setdefault(request.job.request_id, []).append(Kept(target, draft))
        release(request)

    memory.release = noted  # type: ignore[method-assign]
    return kept


@torch.inference_mode()
def fresh_draft_kv(pair: Pair, text: list[int]) -> tuple[Tensor, Tensor]:
    """The draft's keys and values of a text but its last token, read alone and in one piece."""
    n = len(text) - 1
    ends, slots = torch.tensor([0, n], dtype=torch.int32), torch.arange(1, n + 1).int()
    rows = pad_rows(causal_rows(torch.tensor(text[:-1]), ends, ends, slots, Bounds(n, n)), 32)
    none = torch.zeros(0, dtype=torch.int64)
    output = pair.target.forward(rows, pair.target.allocate_pool(n + 1), none, pair.head.taps)
    following = rows.tokens.clone()
    following[:n] = torch.tensor(text[1:])
    pool = pair.head.allocate_pool(n + 1)
    pair.head.extend(replace(rows, tokens=following), output.taps, pool, none)
    return pool.keys[:, 1:], pool.values[:, 1:]


def play(pair: Pair, run: Run, tally: Tally) -> list[Expected]:
    """Run it and compare everything with plain decoding, which is returned."""
    expected = expect(pair, run.jobs)
    with ExitStack() as stack:
        for module in ("engine.state", "engine.engine", "engine.audit", "requests.admission"):
            stack.enter_context(patch(f"aerie.{module}.MAX_STOPS", run.most_stops))
        engine = core(
            pair,
            speculation=PROPOSERS[run.proposer],
            planner=PLANNERS.get(run.proposer, CHEAP),
            partial=PARTIALS.get(run.proposer, PartialConfig()),
            engine=run.launcher,
            backend=run.backend,
            **run.settings,
        )
        kept = keep_kv(engine)
        ids = _live(engine, run)
    assert_pool_is_unheld(engine)
    tally.counts["stop ids beyond the device's"] += sum(
        len(job.params.stop_token_ids) > run.most_stops for job in run.jobs
    )
    tally.runs[f"{run.proposer}, {run.launcher}, {run.backend}"] += 1
    for job, wanted, request_id in zip(run.jobs, expected, ids, strict=True):
        request = engine.request(request_id)
        _compare(request, wanted)
        _compare_kv(pair, kept.get(request_id, []), wanted, request)
        counts = request.statistics
        tally.options[job.option] += 1
        tally.counts["requests"] += 1
        tally.counts["tokens"] += len(request.output)
        tally.counts["cancelled"] += request.ended is not None and not request.end_reason
        tally.counts["preemptions"] += counts.preemptions
        tally.counts["reused tokens"] += counts.reused_tokens
        tally.counts["accepted draft tokens"] += counts.num_accepted_tokens
        tally.counts["tokens of previews"] += counts.previews.tokens
        broken = counts.previews.judged - counts.previews.held
        tally.counts["tokens of previews that broke a run"] += broken
    return expected


def _live(engine: EngineCore, run: Run) -> list[int]:
    """Arrive at random, leave at random."""
    rng, n_steps = run.chance, 0
    arriving = list(enumerate(run.jobs))
    rng.shuffle(arriving)
    ids: dict[int, int] = {}
    leaving: list[tuple[int, int]] = []
    while arriving or not engine.is_idle:
        for _ in range(rng.choice([0, 0, 1, 2])):
            if arriving:
                index, job = arriving.pop()
                ids[index] = engine.submit(job.prompt, job.params)
                if job.cancel_at is not None:
                    leaving.append((n_steps + job.cancel_at, ids[index]))
        for at, request_id in leaving:
            if at == n_steps:
                engine.cancel(request_id)
        engine.step()
        n_steps += 1
        assert n_steps < 3000, "it does not come to an end"
    return [ids[index] for index in range(len(run.jobs))]


def _compare(request: Request, wanted: Expected) -> None:
    ended = request.ended
    assert ended is not None and ended.error is None, ended
    if ended.reason != "cancelled":
        assert request.output == wanted.output
        assert request.prompt_scored == wanted.prompt_scored
    n_output = len(request.output)
    assert request.output == wanted.output[:n_output]
    assert request.scored == wanted.scored[:n_output]


def _compare_kv(pair: Pair, kept: list[Kept], wanted: Expected, request: Request) -> None:
    """Bit for bit: of the target always, of the draft where another request might reuse it."""
    for own in kept:
        for ours, theirs in zip(own.target, wanted.kv, strict=True):
            assert torch.equal(ours, theirs[:, : ours.shape[1]]), "the target's KV differs"
        if own.draft is None or not own.draft[0].shape[1]:
            continue
        if wanted.draft_kv is None:
            wanted.draft_kv = fresh_draft_kv(pair, [*request.job.prompt, *wanted.output])
        for ours, theirs in zip(own.draft, wanted.draft_kv, strict=True):
            assert torch.equal(ours, theirs[:, : ours.shape[1]]), "the draft's KV differs"
    if kept and request.end_reason:
        assert kept[-1].target[0].shape[1] == len(request.tokens) - 1


def keep_log(n_runs: int, play_one: Callable[[int, Tally], object]) -> NoReturn:
    """Play so many runs, or as many as were asked for, and write what happened where asked."""
    out, n_runs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else n_runs
    lines = [f"provenance: {provenance('cpu')}"]
    tally, begin, failed = Tally(), time.time(), 0
    for seed in range(n_runs):
        try:
            play_one(seed, tally)
        except Exception as error:
            failed += 1
            lines.append(f"seed {seed}: {type(error).__name__}: {error}"[:2000])
            print(lines[-1], flush=True)
        if seed % 32 == 31:
            print(f"{seed + 1} runs, {failed} failed, {time.time() - begin:.0f} s", flush=True)
    lines.append(f"{n_runs} runs, {failed} failed, {time.time() - begin:.0f} s")
    for name, found in (("of", tally.runs), ("options", tally.options), ("met", tally.counts)):
        lines.append(f"{name}: {dict(sorted(found.items()))}")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[-4:]))
    sys.exit(bool(failed))


def main() -> None:
    """Run so many seeds (320 unless told) and keep the log."""
    with tempfile.TemporaryDirectory() as folder:
        pair = load_pair(write_pair(Path(folder)), "exact")
        keep_log(320, lambda seed, tally: play(pair, draw(seed), tally))


if __name__ == "__main__":
    main()
