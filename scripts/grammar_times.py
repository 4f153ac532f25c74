"""What grammars cost rounds: a batch with them against the same one without, and bystanders.

    python3 -m scripts.grammar_times --device cuda --geometry llama-3.1-8b \
        --out reports/raw/grammar_times_h200.json

A rehearsal: --device cpu --geometry none --batch 2 --rounds 3 --turns 2 --out FILE.json. On a bare
machine PYTHONPATH names the folder that holds llguidance, and AERIE_COMMIT the commit.

The built-in pair is inflated in memory, in exact numerics; its tokenizer is grown to the vocabulary
of the geometry, text for every id, so that masks are as large as a real model's. Ids beyond the
pair's own have the lowest logits of all and are never the best token that a mask leaves. Texts are
JSON arrays so long that nobody ends. Engines take turns, `rounds` at a time:

- `rounds`: all requests with a grammar against none, for a chain of seven and for the planner, in
  milliseconds a round, with tokens a second and tokens a round and request beside it;
- `bystanders`: one of the requests has a grammar; tokens a second of the others against the same
  ones in a batch without grammars;
- `texts`: the tokens of plain constrained decoding, and how much faster they are written;
- `masks_us`: the host's time for all masks of a round, nearly all of it while a model thinks, and
  `look_us` for those of one request at one level or of one verification.

Exits 1 where a floor is missed on a GPU or a text differs anywhere. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aerie.bench.provenance import provenance
from aerie.bench.record import interval, write_json
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, tokenizer_of_pair
from aerie.bench.round.speed import LEAD_IN, Clocked, launch_counts
from aerie.bench.turns import in_turns
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams
from aerie.requests.request import State
from aerie.text.grammar import Compiled, Grammars, JsonSchema
from aerie.text.walker import Walker
from scripts import ROOT
from scripts.grown_tokenizer import grown_tokenizer

SHAPES = {
    "chain7": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "planner": SpeculationConfig(policy="planner", nodes=16),
}
PLAIN = SpeculationConfig(method="none")
LIMITS = {"round": 1.15, "bystanders": 0.95}
LONGEST = 17  # tokens of a round and request, at most
VALUE = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null", "object")]}
# Arrays of so many arrays of so many values: no text of a measurement comes to its end.
MANY = 64
SCHEMA = JsonSchema(
    {
        "type": "array",
        "minItems": MANY,
        "items": {"type": "array", "minItems": MANY, "items": VALUE},
    }
)


MASK_SECONDS: list[float] = []  # of the host, a seat's rows each


def timed_fill(self: Walker, *given: Any) -> None:
    """`Walker.fill`, timed."""
    begin = time.perf_counter()
    FILL(self, *given)
    MASK_SECONDS.append(time.perf_counter() - begin)


FILL, Walker.fill = Walker.fill, timed_fill  # type: ignore[method-assign]


@dataclass(eq=False)
class Side:
    """One engine and its requests, as long as it is measured."""

    core: EngineCore
    grammars: Sequence[Compiled | None]  # one for each request
    ids: list[int] = field(default_factory=list)
    turns: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clocked = Clocked(self.core)

    def start(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
        """Submit, and step until all decode."""
        for prompt, grammar in zip(prompts, self.grammars, strict=True):
            constraint = None if grammar is None else SCHEMA
            params = SamplingParams(max_tokens, ignore_eos=grammar is None, grammar=constraint)
            self.ids.append(self.core.submit(prompt, params, grammar=grammar))
        while any(self.core.request(i).state in (State.WAITING, State.READING) for i in self.ids):
            self.core.step()

    def turn(self, n_rounds: int) -> None:
        """Rounds one after the other; tokens of the first request and of the others."""
        for _ in range(LEAD_IN):
            self.core.step()
        before, n_timed = self._written(), len(self.clocked.wall)
        MASK_SECONDS.clear()
        for _ in range(n_rounds):
            self.clocked.round()
        wall, after = self.clocked.wall[n_timed:], self._written()
        written = [new - old for old, new in zip(before, after, strict=True)]
        assert all(self.core.request(i).ended is None for i in self.ids), "a measured text ended"
        self.turns.append(
            {
                "ms": sum(wall) / n_rounds,
                "tokens_per_second": 1e3 * sum(written) / sum(wall),
                "others_per_second": 1e3 * sum(written[1:]) / sum(wall),
                "tokens_per_round": sum(written) / n_rounds / len(written),
                "masks_us": 1e6 * sum(MASK_SECONDS) / n_rounds,
                "look_us": 1e6 * sum(MASK_SECONDS) / max(1, len(MASK_SECONDS)),
            }
        )

    def _written(self) -> list[int]:
        return [len(self.core.request(i).output) for i in self.ids]

    def forget(self) -> None:
        """Drop what was timed so far: warm-up."""
        self.turns.clear()
        self.clocked.forget()
        self.captured_before = launch_counts(self.core)["captures"]

    def summary(self) -> dict[str, Any]:
        """Medians over the turns with their intervals, and the device's time by graph."""
        found: dict[str, Any] = {
            name: rounded(asdict(interval([turn[name] for turn in self.turns])))
            for name in self.turns[0]
        }
        recorded = launch_counts(self.core)["captures"] - self.captured_before
        return {**found, "recorded_meanwhile": recorded, "device_ms": self.clocked.phases()}


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def ratio(own: Side, other: Side, what: str) -> dict[str, float]:
    """Turn by turn: median and interval."""
    turns = zip(own.turns, other.turns, strict=True)
    return rounded(asdict(interval([mine[what] / theirs[what] for mine, theirs in turns])))


@dataclass(frozen=True, eq=False)
class Bench:
    """The pair in memory, and how much is asked of it."""

    setup: RoundSetup
    pair: LargePair
    grammar: Compiled
    prompts: list[list[int]]
    args: argparse.Namespace

    def side(self, shape: SpeculationConfig, n_constrained: int) -> Side:
        """An engine whose first requests have the grammar."""
        args, most = self.args, self.most_tokens
        context = args.context + most
        graphs = GraphConfig(columns=(context + 512,), record_every=0)
        core = self.setup.core(self.pair, shape, Room(args.batch, context, graphs=graphs))
        n_free = args.batch - n_constrained
        return Side(core, [self.grammar] * n_constrained + [None] * n_free)

    @property
    def most_tokens(self) -> int:
        """That no request reaches, however long the paths of its rounds."""
        return LONGEST * (self.args.turns + 1) * (self.args.rounds + LEAD_IN) + 64

    def in_turns(self, shape: SpeculationConfig) -> dict[str, Side]:
        """Nobody, everybody and one with a grammar; a turn before those that count warms up."""
        counts = {"free": 0, "all": self.args.batch, "one": 1}
        sides = {name: self.side(shape, n) for name, n in counts.items()}
        for side in sides.values():
            side.start(self.prompts, self.most_tokens)
        ways = {name: partial(side.turn, self.args.rounds) for name, side in sides.items()}
        in_turns(ways, 0)
        for side in sides.values():
            side.forget()
        in_turns(ways, self.args.turns, 0)
        for side in sides.values():
            abandon(side.core, side.ids)
        return sides

    def write(self, shape: SpeculationConfig) -> tuple[list[list[int]], float]:
        """The texts of all prompts, and tokens a second; written twice, the second time counts."""
        side, n_tokens, rate = self.side(shape, self.args.batch), self.args.tokens, 0.0
        texts: list[list[int]] = []
        for _ in range(2):
            side.ids.clear()
            side.start(self.prompts, n_tokens)
            begun, begin = sum(side._written()), time.perf_counter()
            while not side.core.is_idle:
                side.core.step()
            n_written = len(side.ids) * n_tokens - begun
            rate = n_written / (time.perf_counter() - begin)
            texts = [side.core.forget(i).output for i in side.ids]
        return texts, rate


def measure(bench: Bench) -> dict[str, Any]:
    """Everything, as JSON values."""
    found: dict[str, Any] = {"rounds": {}, "bystanders": {}}
    for name, shape in SHAPES.items():
        sides = bench.in_turns(shape)
        each = {kind: side.summary() for kind, side in sides.items()}
        found["rounds"][name] = {
            "ratio": ratio(sides["all"], sides["free"], "ms"),
            "limit": LIMITS["round"],
            **each,
        }
        found["bystanders"][name] = {
            "ratio": ratio(sides["one"], sides["free"], "others_per_second"),
            "limit": LIMITS["bystanders"],
        }
        print(name, json.dumps(found["rounds"][name]["ratio"]), flush=True)
    plain, plain_rate = bench.write(PLAIN)
    found["texts"] = {"tokens": bench.args.tokens, "plain_tokens_per_second": round(plain_rate, 2)}
    for name, shape in SHAPES.items():
        texts, rate = bench.write(shape)
        found["texts"][name] = {
            "equal": sum(own == other for own, other in zip(texts, plain, strict=True)),
            "of": len(plain),
            "speed_up": round(rate / plain_rate, 3),
        }
    # Followed again from the beginning, by a matcher of their own.
    checked = [bench.grammar.matcher(text) for text in plain]
    found["texts"]["of_the_grammar"] = sum(own.error is None for own in checked)
    return found


def verdicts(found: dict[str, Any], vocabulary: int) -> dict[str, bool]:
    """By name, whether it is as it must be."""
    texts, names = found["texts"], list(SHAPES)
    medians = {
        (kind, name): found[kind][name]["ratio"]["median"]
        for kind in ("rounds", "bystanders")
        for name in names
    }
    return {
        **{f"{name}: round": medians["rounds", name] <= LIMITS["round"] for name in names},
        **{
            f"{name}: bystanders": medians["bystanders", name] >= LIMITS["bystanders"]
            for name in names
        },
        **{f"{name}: texts": texts[name]["equal"] == texts[name]["of"] for name in names},
        "texts are of the grammar": texts["of_the_grammar"] == texts[names[0]]["of"],
        "vocabulary": vocabulary >= 128_000,
    }


def main() -> None:
    """Inflate, measure, judge, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--geometry", default="llama-3.1-8b")
    parser.add_argument("--out", type=Path, required=True)
    for name, number in (("batch", 8), ("context", 256), ("rounds", 16), ("turns", 6)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    begin, is_gpu = time.perf_counter(), args.device.startswith("cuda")
    geometry = None if args.geometry == "none" else args.geometry
    dtype, backend = ("bfloat16", "triton") if is_gpu else ("float32", "pytorch")
    # A rehearsal plans by the table of another device: what is chosen does not matter.
    costs = None if is_gpu else str(ROOT / "src/aerie/costs/costs_h200.json")
    exact = {"numerics": "exact", "costs": costs, "foreign_costs": not is_gpu}
    setup = RoundSetup(args.device, dtype, geometry, backend, **exact)
    pair = setup.load()
    vocabulary = pair.target.geometry.vocab_size
    own = tokenizer_of_pair()
    tokenizer = own if vocabulary == own.vocab_size else grown_tokenizer(vocabulary)
    loaded = time.perf_counter()
    grammar = Grammars(tokenizer, vocabulary).compiled(SCHEMA)
    compiled = time.perf_counter()
    prompts = read_prompts(args.batch, args.context, vocabulary)
    found = measure(Bench(setup, pair, grammar, prompts, args))
    met = verdicts(found, vocabulary)
    seconds = {"load": loaded - begin, "grammar": compiled - loaded}
    record = {
        **found,
        "met": met,
        "vocabulary": vocabulary,
        "asked": {name: value for name, value in vars(args).items() if name != "out"},
        "setup": asdict(setup) | {"costs": None if costs is None else Path(costs).name},
        "seconds": rounded(seconds | {"all": time.perf_counter() - begin}),
        "kind": "measured",
        "provenance": provenance(args.device),
    }
    write_json(args.out, record)
    # A CPU calls every function of a round and masks 4,096 tokens: its times say nothing.
    judged = met if is_gpu else {name: is_met for name, is_met in met.items() if "texts" in name}
    print(json.dumps({"ok": all(judged.values()), "met": met, "seconds": record["seconds"]}))
    sys.exit(not all(judged.values()))


if __name__ == "__main__":
    main()
