"""Decode speed of vLLM and of aerie in process: same prompts, same clock, in turns.

    python3 scripts/peers/offline.py vllm  ROWS --policies plain,chain3,chain7 --points 1x1024 ...
    python3 scripts/peers/offline.py aerie ROWS --policies plain,planner --points 1x1024 ...
    python3 scripts/peers/offline.py turns ROWS --lanes vllm:chain7,aerie:planner --points ...
    python3 scripts/peers/offline.py table ROWS ...

`vllm` and `aerie` measure policies one after the other: to find a point's best, and to try things.
`turns` holds all lanes in memory and gives each group of prompts to one after the other: only such
rows are divided by each other. Every lane has a process of its own. README.md says what rows mean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from peer_engines import ENGINES, Answer, PeerEngine, check_lane
from peer_tables import print_tables

START = time.perf_counter()
ACCEPTANCE_POINTS = "1x512,1x1024,4x1024,8x1024,32x1024,1x32768,4x16384"
DONE = "-- this lane has had its turn"
END_SECONDS = 60
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # or names are looked up
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # flashinfer is not in the bundle
}


def run_lane(asked: argparse.Namespace) -> None:
    """One engine with one policy, in this process: every point, every group."""
    engine_name, _, policy = asked.lane.partition(":")
    engine = ENGINES[engine_name](policy, asked)
    ready = time.perf_counter() - START
    # Not before: vLLM starts processes of its own, and should find nothing opened.
    from aerie.bench.provenance import peer_provenance
    from aerie.bench.record import append_row
    from aerie.bench.round.setup import read_prompts, tokenizer_of_pair

    made, tokenizer = peer_provenance(), tokenizer_of_pair()
    mark = partial(tokenizer.encode, add_special_tokens=False)
    common = {"lane": f"{engine_name} {policy}", "run": asked.run, "sampling": asked.sampling}

    def log(kind: str, **values: Any) -> None:
        append_row(asked.out, {"kind": kind, **common, **values, "made": made})
        shown = {name: value for name, value in values.items() if name not in ("ids", "accepted")}
        print(common["lane"], kind, shown, flush=True)

    log("ready", seconds=ready, phases=engine.phases)
    hand_over(asked.in_turns)
    for batch, context in asked.points:
        point = f"{batch}x{context}"
        prompts = read_prompts(asked.groups * batch, context, tokenizer.vocab_size)
        for group in range(asked.groups):
            own = prompts[group * batch : (group + 1) * batch]
            if group == 0:
                engine.generate(marked(own, mark(f"# {point} before\n")), asked.tokens)
            for row in measure(engine, marked(own, mark(f"# {point}\n")), asked):
                log("decode", point=point, group=group, **row)
            hand_over(asked.in_turns)


def measure(engine: PeerEngine, prompts: list[list[int]], asked: argparse.Namespace) -> list[Any]:
    """One group: a fresh token, then one and all of them, the prompts cached."""
    fresh = engine.generate(prompts, 1)
    rows = []
    for turn in range(asked.turns):
        one, full = engine.generate(prompts, 1), engine.generate(prompts, asked.tokens)
        rows.append(
            {
                "turn": turn,
                "tokens": asked.tokens,
                "fresh_s": None if turn else fresh.seconds,
                "one_s": one.seconds,
                "full_s": full.seconds,
                "tokens_per_second": decode_speed(one, full),
                "acceptance_length": full.acceptance_length,
                "accepted": full.accepted,
                "ids": None if turn else full.ids,
            }
        )
    return rows


def decode_speed(one: Answer, full: Answer) -> float:
    """Tokens after the first by the seconds after the first.

    Something that happens once (a compilation) inside either part makes it wrong, negative even:
    written as it is, for it should not happen.
    """
    n_tokens = sum(len(ids) - 1 for ids in full.ids)
    return n_tokens / (full.seconds - one.seconds)


def marked(prompts: Sequence[Sequence[int]], mark: Sequence[int]) -> list[list[int]]:
    """Prompts of the same length behind a line of their own, which no cached text begins with.

    The first token stays: it says that a text begins.
    """
    return [[prompt[0], *mark, *prompt[1:]][: len(prompt)] for prompt in prompts]


def hand_over(is_in_turns: bool) -> None:
    """Say that this turn is over, and wait for the next; where none will come, end."""
    if is_in_turns:
        print(DONE, flush=True)
        if not sys.stdin.readline():
            raise SystemExit("the run was broken off")


def run_alone(lanes: Sequence[str]) -> int:
    """One lane after the other; one that fails does not take the others with it."""
    runs = [subprocess.run(_command(lane)) for lane in lanes]
    return int(any(run.returncode for run in runs))


def run_turns(lanes: Sequence[str], n_turns: int) -> int:
    """All lanes in memory; each group is measured by one after the other, the first in rotation."""
    children: list[subprocess.Popen[str]] = []
    try:
        for lane in lanes:
            pipe, command = subprocess.PIPE, [*_command(lane), "--in-turns"]
            children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            wait_for(children[-1], lane)  # an engine that counts free memory must be alone with it
        for turn in range(n_turns):
            for place in range(len(lanes)):
                index = (turn + place) % len(lanes)
                start_turn(children[index])
                wait_for(children[index], lanes[index])
        for child in children:
            start_turn(child)  # which finds nothing left
        statuses = [child.wait(END_SECONDS) for child in children]
        return int(any(statuses))
    finally:
        end(children)


def start_turn(child: subprocess.Popen[str]) -> None:
    """Let a lane go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def end(children: Sequence[subprocess.Popen[str]]) -> None:
    """Where a run is broken off, lanes end by themselves: vLLM then ends what it has started."""
    for child in children:
        if child.poll() is None:
            assert child.stdin is not None
            child.stdin.close()
    for child in children:
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for(child: subprocess.Popen[str], lane: str) -> None:
    """Until it has had its turn; what it prints is passed on."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.rstrip("\n") == DONE:
            return
        print(line, end="", flush=True)
    raise SystemExit(f"{lane} ended with status {child.wait()} before its turn was over")


def _command(lane: str) -> list[str]:
    """This script again, for one lane; the last --lane counts."""
    return [sys.executable, *sys.argv, "--lane", lane]


def _points(text: str) -> list[tuple[int, int]]:
    pairs = (point.split("x") for point in text.split(","))
    return [(int(batch), int(context)) for batch, context in pairs]


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in (*ENGINES, "turns"):
        one = kinds.add_parser(name)
        one.add_argument("out", type=Path, help="JSON lines are appended")
        if name == "turns":
            one.add_argument("--lanes", required=True, help="vllm:chain7,aerie:planner")
        else:
            one.add_argument("--policies", required=True, help="plain,chain7")
        one.add_argument("--points", type=_points, default=ACCEPTANCE_POINTS, help="BATCHxCONTEXT")
        one.add_argument("--groups", type=int, default=8, help="of prompts, at each point")
        one.add_argument("--turns", type=int, default=1, help="of each group")
        one.add_argument("--tokens", type=int, default=256)
        one.add_argument("--target", help="folder; aerie: the built-in pair unless told")
        one.add_argument("--draft", help="folder of the EAGLE-3 head")
        one.add_argument("--dtype", default="bfloat16")
        one.add_argument("--device", default="cuda", help="aerie: cuda or cpu")
        one.add_argument("--longest", type=int, default=33792, help="positions of a request")
        one.add_argument("--share", type=float, default=0.3, help="vllm: of the GPU's memory")
        one.add_argument("--pages", type=int, default=6144, help="aerie: KV pages of 16 positions")
        one.add_argument("--sampling", type=json.loads, default={}, help="JSON, as of a request")
        one.add_argument("--run", default=datetime.now(UTC).isoformat(timespec="seconds"))
        one.add_argument("--lane", help=argparse.SUPPRESS)
        one.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)
    kinds.add_parser("table").add_argument("rows", nargs="+", type=Path)
    asked = parser.parse_args()
    if asked.kind != "table":
        asked.sampling = {"temperature": 0.0, **asked.sampling}
        if asked.tokens < 2 or asked.groups < 1 or asked.turns < 1:
            parser.error("at least 2 tokens (speed is measured after the first), 1 group, 1 turn")
    return asked


def main() -> int:
    """Measure, or print."""
    asked = read_arguments()
    if asked.kind == "table":
        print_tables(asked.rows)
        return 0
    if asked.lane:
        run_lane(asked)
        return 0
    named = asked.lanes if asked.kind == "turns" else asked.policies
    prefix = "" if asked.kind == "turns" else f"{asked.kind}:"
    lanes = [prefix + name for name in named.split(",")]
    for lane in lanes:
        engine, _, policy = lane.partition(":")
        check_lane(engine, policy)
        if engine == "vllm" and (asked.target is None or asked.draft is None):
            raise SystemExit("vllm needs --target and --draft: aerie inflate writes such a pair")
    sys.argv += ["--run", asked.run]  # one name for all lanes
    if asked.kind == "turns":
        return run_turns(lanes, len(asked.points) * asked.groups)
    return run_alone(lanes)


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    sys.exit(main())
