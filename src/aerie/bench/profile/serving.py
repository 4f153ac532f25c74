"""How an engine serves: time to the first token, and requests that arrive while others decode."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from aerie.bench.bytes import prompt_flops, weight_bytes
from aerie.bench.profile.session import CHUNK, POLICIES, Session, release
from aerie.bench.provenance import metered
from aerie.bench.record import formatted, page, percentiles, write_json
from aerie.bench.round.setup import Room, read_prompts
from aerie.config import GraphConfig
from aerie.engine.engine import EngineCore
from aerie.requests.events import TokenEvent
from aerie.requests.params import SamplingParams

HURRY = 4.0  # how much faster requests arrive in the run that warms up
# Of both scenarios; a row leaves empty what it does not have.
COLUMNS = ("scenario", "policy", "run", "context", "arrival_s", "ttft_ms", "ceiling_ms",
           "compute_ms", "weights_ms", "tokens", "itl_p50_ms", "kind")  # fmt: skip
FIRST = {
    "policy": "{policy}",
    "prompt": "{context}",
    "runs": "{runs}",
    "TTFT p50 ms": "{ttft_ms[p50]}",
    "p99": "{ttft_ms[p99]}",
    "ceiling ms": "{ceiling_ms}",
    "of ceiling": "{share_of_ceiling:.2f}",
}
MIXED = {
    "policy": "{policy}",
    "requests": "{requests}",
    "tokens/s": "{tokens_per_second}",
    "TTFT p50 / p99 ms": "{ttft_ms[p50]} / {ttft_ms[p99]}",
    "ITL p50 / p99 ms": "{itl_ms[p50]} / {itl_ms[p99]}",
    "gap p50 / p99 ms": "{gap_ms[p50]} / {gap_ms[p99]}",
    "J/token": "{joules_per_token}",
    "W": "{watts}",
    "graphs captured meanwhile": "{graphs_captured_meanwhile}",
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Sizes of both scenarios."""

    contexts: tuple[int, ...] = (1024, 8192, 32768)
    repeats: int = 5
    prompts: tuple[int, ...] = (1024, 2048, 4096, 8192)  # of arriving requests, in turn
    n_requests: int = 20
    mean_gap: float = 0.15  # seconds between two arrivals
    new_tokens: int = 128
    batch: int = 8
    chunk: int = 1024  # prompt tokens a step: longer ones make decoding requests wait


REHEARSAL = Plan((48, 96), 2, (32, 64), 5, 0.02, 12, 4, 32)


@dataclass
class Request:
    """A request, when it comes, and when its tokens came: (seconds from the start, how many)."""

    at: float
    prompt: list[int]
    emissions: list[tuple[float, int]] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        """From its arrival to its first token."""
        return 1e3 * (self.emissions[0][0] - self.at)

    @property
    def gaps_ms(self) -> list[float]:
        """Between one emission and the next."""
        return [1e3 * (late - early) for (early, _), (late, _) in pairwise(self.emissions)]

    @property
    def itl_ms(self) -> list[float]:
        """The gaps over the tokens of the later emission."""
        return [gap / n for gap, (_, n) in zip(self.gaps_ms, self.emissions[1:], strict=True)]

    @property
    def n_tokens(self) -> int:
        """All that it wrote."""
        return sum(n for _, n in self.emissions)


def run_serving(session: Session) -> dict[str, Any]:
    """Both scenarios, plain and speculating; raw rows, a page, and JSON values."""
    plan = REHEARSAL if session.is_rehearsal else Plan()
    first: list[Row] = []
    arrived: list[Row] = []
    met: list[Row] = []
    for policy in dict.fromkeys(("plain", session.policy)):
        first += first_tokens(session, plan, policy)
        release()
        write_serving(session, first, arrived, met)
        rows, summary = mixed(session, plan, policy)
        arrived += rows
        met.append(summary)
        release()
        write_serving(session, first, arrived, met)
    is_whole = all(entry["requests"] == plan.n_requests for entry in met)
    found = {"plan": vars(plan), "ttft": _first(first), "mixed": met}
    return {**found, "kind": "measured", "ok": is_whole}


def write_serving(
    session: Session, first: Sequence[Row], arrived: Sequence[Row], met: Sequence[Row]
) -> None:
    """CSV, JSON and page, named by the device; again after every part, so that none is lost."""
    name, origin = f"{session.device_name}_serving", session.origin("serving")
    whole = [{column: row.get(column, "") for column in COLUMNS} for row in (*first, *arrived)]
    origin.write_csv(session.out / "raw" / f"{name}.csv", whole)
    record = {"ttft": list(first), "mixed": list(met), "kind": "measured", **origin.record()}
    write_json(session.out / f"{name}.json", record)
    tables = {"first": formatted(FIRST, _first(first)), "mixed": formatted(MIXED, met)}
    made = page("serving", **tables, origin=origin.lines())
    (session.out / f"{name}.md").write_text(made, encoding="utf-8")


def first_tokens(session: Session, plan: Plan, policy: str) -> list[Row]:
    """One request at a time on an idle engine: from its submission to its first token."""
    ceilings, target = session.ceilings, session.pair.target
    longest = max(plan.contexts)
    room = Room(1, longest + 16, chunk=min(CHUNK, longest))
    core = session.setup.core(session.pair, POLICIES[policy], room)
    (prompt,) = read_prompts(1, longest, target.geometry.vocab_size)
    rows: list[Row] = []
    for context in plan.contexts:
        compute = prompt_flops(target, context) / ceilings.matmul_tflops / 1e9
        n_chunks = -(-context // room.chunk)
        weights = n_chunks * weight_bytes(target) / ceilings.copy_gbps / 1e6
        bounds = {"ceiling_ms": max(compute, weights), "compute_ms": compute, "weights_ms": weights}
        # Also where the chunks are the same again: the first prompt of 32K took seconds longer.
        drive(core, [Request(0.0, prompt[:context])], 2)
        for run in range(plan.repeats):
            own = Request(0.0, prompt[:context])
            drive(core, [own], 2)
            place = {"scenario": "ttft", "policy": policy, "run": run, "context": context}
            times = {"ttft_ms": own.ttft_ms, **bounds}
            rounded = {name: round(ms, 3) for name, ms in times.items()}
            rows.append({**place, **rounded, "kind": "measured"})
    print(_first(rows), flush=True)
    return rows


def _first(rows: Sequence[Row]) -> list[Row]:
    """By policy and length of the prompt."""
    found = []
    for policy, context in dict.fromkeys((row["policy"], row["context"]) for row in rows):
        own = [row for row in rows if (row["policy"], row["context"]) == (policy, context)]
        times, ceiling = percentiles([row["ttft_ms"] for row in own]), own[0]["ceiling_ms"]
        place = {"policy": policy, "context": context, "runs": len(own), "ttft_ms": times}
        share = round(ceiling / times["p50"], 4)
        found.append({**place, "ceiling_ms": ceiling, "share_of_ceiling": share})
    return found


def arrivals(plan: Plan, vocabulary: int, mean_gap: float) -> list[Request]:
    """The same requests at the same times for every policy."""
    texts = read_prompts(len(plan.prompts), max(plan.prompts), vocabulary)
    chance, at, found = random.Random(8), 0.0, []
    for number in range(plan.n_requests):
        length = plan.prompts[number % len(plan.prompts)]
        found.append(Request(at, texts[number % len(texts)][:length]))
        at += chance.expovariate(1 / mean_gap)
    return found


def mixed(session: Session, plan: Plan, policy: str) -> tuple[list[Row], Row]:
    """Requests that arrive at random times: a row of each, and a policy's figures.

    A quicker run of the same requests first captures the graphs.
    """
    # One length of columns for all, so that few graphs exist and none is captured while measured.
    graphs = GraphConfig(columns=(2 * max(plan.prompts),))
    room = Room(plan.batch, max(plan.prompts) + plan.new_tokens, plan.chunk, graphs=graphs)
    core = session.setup.core(session.pair, POLICIES[policy], room)
    vocabulary, counts = session.pair.target.geometry.vocab_size, core.launcher.graphs.counts
    drive(core, arrivals(plan, vocabulary, plan.mean_gap / HURRY), plan.new_tokens)
    coming, captured = arrivals(plan, vocabulary, plan.mean_gap), counts.captures
    driving = partial(drive, core, coming, plan.new_tokens)
    seconds, joules = metered(session.meter, driving)
    n_tokens = sum(own.n_tokens for own in coming)
    summary = {
        "policy": policy,
        "requests": sum(own.n_tokens > 0 for own in coming),
        "tokens": n_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(n_tokens / seconds, 1),
        "ttft_ms": percentiles([own.ttft_ms for own in coming]),
        "itl_ms": percentiles([ms for own in coming for ms in own.itl_ms]),
        "gap_ms": percentiles([ms for own in coming for ms in own.gaps_ms]),
        "joules_per_token": None if joules is None else round(joules / n_tokens, 4),
        "watts": None if joules is None else round(joules / seconds, 1),
        "graphs_captured_meanwhile": counts.captures - captured,
    }
    print(summary, flush=True)
    rows = [
        {
            "scenario": "mixed",
            "policy": policy,
            "run": number,
            "context": len(own.prompt),
            "arrival_s": round(own.at, 4),
            "ttft_ms": round(own.ttft_ms, 3),
            "tokens": own.n_tokens,
            "itl_p50_ms": round(statistics.median(own.itl_ms), 3),
            "kind": "measured",
        }
        for number, own in enumerate(coming)
    ]
    return rows, summary


def drive(core: EngineCore, coming: Sequence[Request], new_tokens: int) -> float:
    """Submit what is due, step, and note when tokens came; the seconds until all have ended."""
    waiting, running = list(coming), dict[int, Request]()
    begin = time.perf_counter()
    while waiting or not core.is_idle:
        now = time.perf_counter() - begin
        while waiting and waiting[0].at <= now:
            due = waiting.pop(0)
            running[core.submit(due.prompt, SamplingParams(new_tokens, ignore_eos=True))] = due
        if core.is_idle:
            time.sleep(max(0.0, waiting[0].at - now))
            continue
        events = core.step()
        now = time.perf_counter() - begin
        for event in events:
            if isinstance(event, TokenEvent):
                running[event.request_id].emissions.append((now, len(event.tokens)))
    seconds = time.perf_counter() - begin
    for request_id in running:
        core.forget(request_id)
    return seconds
