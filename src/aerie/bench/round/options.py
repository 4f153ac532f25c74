"""What the options of requests cost a captured round: sampling, log-probabilities, newcomers.

The same engine runs the same prompts with one set of options after the other, in turns. Rounds of
a fixed tree: every one verifies as many rows, whatever was accepted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aerie.assemble.choices import CHUNKS
from aerie.bench.lane import captured
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import Clocked, launch_counts, run_without_waiting, step_to_room
from aerie.bench.trace import trace_rounds
from aerie.bench.turns import in_turns
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import EVERYTHING, GREEDY
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams

TREE = SpeculationConfig(top_k=4, depth=3, nodes=8)
SAMPLED = {
    "temperature": 0.8,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "seed": 7,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "logprobs": {"logprobs": 5},
    "sampled logprobs": {**SAMPLED, "logprobs": 5},
}
# Which rounds are held against which, and what they may take of their time.
LIMITS = {
    ("sampled", "greedy"): 1.06,
    ("logprobs", "greedy"): 1.10,
    ("sampled logprobs", "sampled"): 1.10,
}
BATCHES = {True: (8, 32), False: (2, 4)}  # on a GPU; in a rehearsal
N_TURNS = 4  # timed; one before them warms up
COUNTED = 8  # rounds in which waits and launches are counted
# No request comes or goes; a long prompt is read chunk by chunk; a short one is read and seated.
WINDOWS = ("steady", "reading", "joining")
WATCHED = ("greedy", "sampled")  # options whose rounds are counted
LONG = (COUNTED + 2) * CHUNKS["cuda"][1]  # tokens of the long one


def new_tokens(n_rounds: int) -> int:
    """Tokens that no request reaches in its rounds."""
    return (TREE.limits.depth + 1) * (n_rounds + 16 * COUNTED + 1024)


def measure_options(
    setup: RoundSetup, pair: LargePair, context: int, n_rounds: int
) -> dict[str, Any]:
    """Rounds of every batch size with every set of options; JSON values."""
    is_gpu = setup.device.startswith("cuda")
    vocabulary = pair.target.geometry.vocab_size
    batches = {}
    for batch in BATCHES[is_gpu]:
        prompts = read_prompts(batch, context, vocabulary)
        core = _engine(setup, pair, batch, context, n_rounds)
        ways = {name: partial(_turn, core, prompts, n_rounds, name) for name in OPTIONS}
        batches[str(batch)] = {
            **compared(in_turns(ways, N_TURNS)),
            "counts": launch_counts(core),
            **{name: _waits_and_launches(core, prompts, n_rounds, name) for name in WATCHED},
        }
    met = {
        f"{name}, batch {batch}": ratio["median"] <= ratio["limit"]
        for batch, own in batches.items()
        for name, ratio in own["ratios"].items()
    }
    windows = [own[n][kind] for own in batches.values() for n in WATCHED for kind in WINDOWS]
    is_quiet = all(
        own["waits_beside_the_read"] is None and not own["profile"]["launches_outside_graphs"]
        for own in windows
    )
    # A CPU calls every function: its times say nothing about graphs.
    is_ok = not is_gpu or (all(met.values()) and is_quiet)
    found = {"vocabulary": vocabulary, "context": context, "batches": batches, "met": met}
    return {**found, "quiet": is_quiet, "ok": is_ok}


def _engine(
    setup: RoundSetup, pair: LargePair, batch: int, context: int, n_rounds: int
) -> EngineCore:
    longest = max(context, LONG) + new_tokens(n_rounds)
    core = setup.core(pair, TREE, Room(batch, longest, graphs=GraphConfig(record_every=0)))
    for options in (GREEDY, EVERYTHING):
        captured(core).record(batch, context, options)
    return core


def _turn(core: EngineCore, prompts: Sequence[list[int]], n_rounds: int, name: str) -> Clocked:
    ids = start(core, prompts, new_tokens(n_rounds), **OPTIONS[name])
    clocked = Clocked(core)
    clocked.block(n_rounds)
    abandon(core, ids)
    return clocked


def compared(times: Mapping[str, Sequence[Clocked]]) -> dict[str, Any]:
    """Medians of every set of options, the ratios turn by turn, and their medians."""
    walls = {name: [statistics.median(own.wall) for own in turns] for name, turns in times.items()}
    options = {
        name: {
            "ms": round(statistics.median(walls[name]), 4),
            "turns_ms": [round(ms, 4) for ms in walls[name]],
            "device_ms": turns[-1].phases(),
        }
        for name, turns in times.items()
    }
    ratios = {}
    for (own, other), limit in LIMITS.items():
        turns = [a / b for a, b in zip(walls[own], walls[other], strict=True)]
        ratios[f"{own} / {other}"] = {
            "median": round(statistics.median(turns), 4),
            "turns": [round(ratio, 4) for ratio in turns],
            "limit": limit,
        }
    n_rounds = sum(len(own.wall) for own in times["greedy"])
    return {"rounds": n_rounds, "options": options, "ratios": ratios}


def _waits_and_launches(
    core: EngineCore, prompts: Sequence[list[int]], n_rounds: int, name: str
) -> dict[str, Any]:
    """Of rounds without arrivals and ends, and of rounds that read a prompt and seat it."""
    *seated, short = prompts
    params = SamplingParams(new_tokens(n_rounds), ignore_eos=True, **OPTIONS[name])
    ids = start(core, seated, params.max_tokens, **OPTIONS[name])
    # What comes, and in how many steps it is admitted, which takes pages.
    long = (short * (1 + LONG // len(short)))[:LONG]
    coming: dict[str, tuple[list[list[int]], int]] = {
        "steady": ([], 0),
        "reading": ([long], 1),
        "joining": ([short], 0),
    }

    def window(kind: str, count: Callable[[EngineCore, int], Any]) -> Any:
        own, n_steps = coming[kind]
        step_to_room(core, (TREE.limits.depth + 1) * (COUNTED + 4))
        newcomers = [core.submit(prompt, params) for prompt in own]
        _stepped(core, n_steps)
        found = count(core, COUNTED)
        for request_id in newcomers:
            core.discard(request_id)
        core.step()
        return found

    found = {}
    for kind in WINDOWS:
        window(kind, _stepped)  # so that all graphs exist
        found[kind] = {what: window(kind, count) for what, count in COUNTERS.items()}
    assert all(core.request(i).ended is None for i in ids), "a counted request ended"
    abandon(core, ids)
    return found


def _stepped(core: EngineCore, n_rounds: int) -> None:
    for _ in range(n_rounds):
        core.step()


COUNTERS: dict[str, Callable[[EngineCore, int], Any]] = {
    "waits_beside_the_read": run_without_waiting,
    "profile": lambda core, n_rounds: trace_rounds(core, n_rounds).summary(),
}
