"""How an engine serves: time to the first token, and requests that arrive while others decode."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aerie.bench.profile.bytes import prompt_flops, weight_bytes
from aerie.bench.profile.point import CHUNK, POLICIES
from aerie.bench.profile.serving_report import Served, write_serving
from aerie.bench.profile.session import Session, release
from aerie.bench.provenance import Meter
from aerie.bench.round.setup import Room, read_prompts
from aerie.config import GraphConfig
from aerie.engine.engine import EngineCore
from aerie.requests.events import TokenEvent
from aerie.requests.params import SamplingParams

NEW_TOKENS = 128
HURRY = 4.0  # how much faster requests arrive in the run that warms up


@dataclass(frozen=True)
class Plan:
    """Sizes of both scenarios."""

    contexts: tuple[int, ...] = (1024, 8192, 32768)
    repeats: int = 5
    prompts: tuple[int, ...] = (1024, 2048, 4096, 8192)  # of arriving requests, in turn
    n_requests: int = 20
    mean_gap: float = 0.15  # seconds between two arrivals
    new_tokens: int = NEW_TOKENS
    batch: int = 8
    chunk: int = 1024  # prompt tokens a step: longer ones make decoding requests wait


REHEARSAL = Plan((48, 96), 2, (32, 64), 5, 0.02, 12, 4, 32)


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes, in seconds from the start."""

    at: float
    prompt: list[int]


@dataclass
class Stamps:
    """When a request's tokens came: (seconds from the start, how many)."""

    arrival: Arrival
    emissions: list[tuple[float, int]] = field(default_factory=list)


def run_serving(session: Session) -> dict[str, Any]:
    """Both scenarios, plain and speculating; raw rows, a page, and JSON values."""
    plan = REHEARSAL if session.is_rehearsal else Plan()
    served: list[Served] = []
    first: list[dict[str, Any]] = []
    for policy in dict.fromkeys(("plain", session.policy)):
        first += first_tokens(session, plan, policy)
        release()
        write_serving(session, first, served)
        served.append(mixed(session, plan, policy))
        release()
        write_serving(session, first, served)
    return {
        "plan": {**vars(plan)},
        "ttft": [_summary(rows) for rows in _grouped(first)],
        "mixed": [entry.summary() for entry in served],
        "itl_raw_ms": {entry.policy: entry.itl_ms for entry in served},
        "kind": "measured",
        "ok": all(entry.n_finished == plan.n_requests for entry in served),
    }


def first_tokens(session: Session, plan: Plan, policy: str) -> list[dict[str, Any]]:
    """One request at a time on an idle engine: from its submission to its first token."""
    ceilings, target = session.ceilings, session.pair.target
    longest = max(plan.contexts)
    room = Room(1, longest + 16, chunk=min(CHUNK, longest))
    core = session.setup.core(session.pair, POLICIES[policy], room)
    prompts = read_prompts(1, longest, target.geometry.vocab_size)[0]
    rows = []
    for context in plan.contexts:
        compute = prompt_flops(target, context) / ceilings.matmul_tflops / 1e9
        n_chunks = -(-context // room.chunk)
        weights = n_chunks * weight_bytes(target) / ceilings.copy_gbps / 1e6
        # Also where the chunks are the same again: the first prompt of 32K took seconds longer.
        _first_token(core, prompts[:context])
        for run in range(plan.repeats):
            rows.append(
                {
                    "scenario": "ttft",
                    "policy": policy,
                    "run": run,
                    "context": context,
                    "ttft_ms": round(1e3 * _first_token(core, prompts[:context]), 3),
                    "ceiling_ms": round(max(compute, weights), 3),
                    "compute_ms": round(compute, 3),
                    "weights_ms": round(weights, 3),
                }
            )
    print([_summary(entry) for entry in _grouped(rows)], flush=True)
    return rows


def _first_token(core: EngineCore, prompt: Sequence[int]) -> float:
    request_id = core.submit(prompt, SamplingParams(2, ignore_eos=True))
    begin = time.perf_counter()
    while not any(isinstance(event, TokenEvent) for event in core.step()):
        pass
    seconds = time.perf_counter() - begin
    while not core.is_idle:
        core.step()
    core.forget(request_id)
    return seconds


def arrivals(plan: Plan, vocabulary: int, mean_gap: float) -> list[Arrival]:
    """The same requests at the same times for every policy."""
    texts = read_prompts(len(plan.prompts), max(plan.prompts), vocabulary)
    chance, at, found = random.Random(8), 0.0, []
    for number in range(plan.n_requests):
        length = plan.prompts[number % len(plan.prompts)]
        found.append(Arrival(at, texts[number % len(texts)][:length]))
        at += chance.expovariate(1 / mean_gap)
    return found


def mixed(session: Session, plan: Plan, policy: str) -> Served:
    """Requests that arrive at random times; a quicker run of the same first captures the graphs."""
    shape = POLICIES[policy]
    longest = max(plan.prompts) + plan.new_tokens
    # One length of columns for all, so that few graphs exist and none is captured while measured.
    graphs = GraphConfig(columns=(2 * max(plan.prompts),))
    room = Room(plan.batch, longest, plan.chunk, graphs=graphs)
    core = session.setup.core(session.pair, shape, room)
    vocabulary = session.pair.target.geometry.vocab_size
    drive(core, arrivals(plan, vocabulary, plan.mean_gap / HURRY), plan.new_tokens)
    captures = _captures(core)
    joules = _joules(session.meter)
    stamps, seconds = drive(core, arrivals(plan, vocabulary, plan.mean_gap), plan.new_tokens)
    after = _joules(session.meter)
    spent = None if joules is None or after is None else after - joules
    served = _served(policy, stamps, seconds, spent, _captures(core) - captures)
    print(served.summary(), flush=True)
    return served


def drive(
    core: EngineCore, coming: Sequence[Arrival], new_tokens: int
) -> tuple[list[Stamps], float]:
    """Submit what is due, step, and note when tokens came; until every request has ended."""
    waiting = list(coming)
    stamps: dict[int, Stamps] = {}
    begin = time.perf_counter()
    while waiting or not core.is_idle:
        now = time.perf_counter() - begin
        while waiting and waiting[0].at <= now:
            arrival = waiting.pop(0)
            params = SamplingParams(new_tokens, ignore_eos=True)
            stamps[core.submit(arrival.prompt, params)] = Stamps(arrival)
        if core.is_idle:
            time.sleep(max(0.0, waiting[0].at - now))
            continue
        events = core.step()
        now = time.perf_counter() - begin
        for event in events:
            if isinstance(event, TokenEvent):
                stamps[event.request_id].emissions.append((now, len(event.tokens)))
    seconds = time.perf_counter() - begin
    for request_id in stamps:
        core.forget(request_id)
    return list(stamps.values()), seconds


def _served(
    policy: str, stamps: list[Stamps], seconds: float, joules: float | None, captures: int
) -> Served:
    itl, gaps, rows = [], [], []
    for number, entry in enumerate(stamps):
        times = entry.emissions
        between = [1e3 * (b[0] - a[0]) for a, b in pairwise(times)]
        own = [gap / b[1] for gap, b in zip(between, times[1:], strict=True)]
        gaps += between
        itl += own
        rows.append(
            {
                "scenario": "mixed",
                "policy": policy,
                "run": number,
                "context": len(entry.arrival.prompt),
                "arrival_s": round(entry.arrival.at, 4),
                "ttft_ms": round(1e3 * (times[0][0] - entry.arrival.at), 3),
                "tokens": sum(n for _, n in times),
                "itl_p50_ms": round(statistics.median(own), 3),
            }
        )
    return Served(policy, rows, itl, gaps, seconds, joules, captures)


def _captures(core: EngineCore) -> int:
    return core.launcher.graphs.counts.captures


def _joules(meter: Meter | None) -> float | None:
    return meter.joules() if meter is not None else None


def _grouped(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    keys = dict.fromkeys((row["policy"], row["context"]) for row in rows)
    return [[row for row in rows if (row["policy"], row["context"]) == key] for key in keys]


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    times = sorted(row["ttft_ms"] for row in rows)
    return {
        "policy": rows[0]["policy"],
        "context": rows[0]["context"],
        "ttft_ms": {"p50": statistics.median(times), "p99": times[-1]},
        "ceiling_ms": rows[0]["ceiling_ms"],
        "share_of_ceiling": round(rows[0]["ceiling_ms"] / statistics.median(times), 4),
    }
