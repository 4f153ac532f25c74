"""What masks cost with a vocabulary of 128,256 tokens: writes reports/mask_times.json.

    PYTHONPATH=src python scripts/mask_times.py [--device cuda] [--rounds 30]

Eight requests of sixteen verified nodes each, all with a grammar, round after round as texts grow.
The vocabulary is the built-in pair's, grown here: byte-level BPE, words of several alphabets,
numbers and punctuation, all merges of shorter tokens. Half of the drafted nodes follow the
grammar, as with a good draft.
`masks_ms` is the host's time for all masks of a round, which a GPU hides behind the target's pass,
`processor_ms` the same without other processes of a busy machine, `levels_ms` likewise for a draft
of seven levels, one node a request each, which a GPU hides behind the head's passes; `masked_ms` is
the device's time for the logits of all rows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
# A bare machine has no installed package: the source is beside us.
sys.path[:0] = [str(ROOT / "src")]

from aerie.bench.provenance import provenance  # noqa: E402
from aerie.engine.masks import Masks, of_trees  # noqa: E402
from aerie.engine.report import PARENTS, TOKENS  # noqa: E402
from aerie.engine.seat import Seat  # noqa: E402
from aerie.kernels import load  # noqa: E402
from aerie.kernels.report import N_CHOSEN, REPORT  # noqa: E402
from aerie.models.hub import find_pair  # noqa: E402
from aerie.requests.params import SamplingParams  # noqa: E402
from aerie.requests.request import Job, Request  # noqa: E402
from aerie.text.grammar import Constraint, Grammar, Grammars, JsonSchema, Regex  # noqa: E402
from aerie.text.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from aerie.text.walker import Walker  # noqa: E402

VOCABULARY = 128_256
BATCH, NODES, LEVELS = 8, 16, 7
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
        "kind": {"enum": ["alpha", "beta", "γάμμα"]},
        "friend": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "kind", "friend"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, Constraint] = {
    "schema": JsonSchema(PERSON),
    "any object": JsonSchema({"type": "object"}),
    "regex": Regex(r"([A-Z][a-z]{2,9} ){3,40}\([0-9]{4}-[0-9]{2}-[0-9]{2}\)\."),
    "arithmetic": Grammar(
        'start: term (("+" | "-" | "*") term)*\nterm: /[0-9]{1,6}/ | "(" start ")"'
    ),
}


def grown_tokenizer(size: int) -> Tokenizer:
    """The built-in pair's tokenizer with text for every id of a larger vocabulary.

    Its own ids keep their meaning. Every new token is the merge of two others, so that the file is
    a real BPE.
    """
    source, _ = find_pair(None, None)
    file = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = file["model"]["vocab"], file["model"]["merges"]
    assert len(vocab) <= size, f"{len(vocab)} tokens, more than {size}"
    rng, space, met = random.Random(0), "Ġ", set[str]()
    alphabets = ["etaoinshrdlucmfwypvbgk", "0123456789", '{}[]":,.()_-']
    cyrillic = ["".join(pair) for pair in zip("ÐÐÐÐÐÐ", "°±²³´µ", strict=True)]
    pools: list[list[str]] = [list(alphabet) for alphabet in alphabets] + [cyrillic]
    shares = (0.88, 0.03, 0.04, 0.05)
    while len(vocab) < size:
        pool = rng.choices(pools, shares)[0]
        left, right = rng.choice(pool), rng.choice(pool[:40])
        if pool is pools[0] and rng.random() < 0.25 and not left.startswith(space):
            left, right = space, left
        if pool is cyrillic and left not in vocab:
            left, right = left[0], left[1]
        token = left + right
        if left in vocab and right in vocab and token not in met and len(token) <= 14:
            met.add(token)
            pool.append(token)
            if token not in vocab:
                vocab[token] = len(vocab)
                merges.append([left, right])
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer_config.json", "generation_config.json"):
            shutil.copy(source / name, folder)
        made = Path(folder) / "tokenizer.json"
        made.write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
        return load_tokenizer(Path(folder))


def make_seat(grammars: Grammars, constraint: Constraint, stops: tuple[int, ...]) -> Seat:
    compiled = grammars.compiled(constraint)
    params = SamplingParams(max_tokens=4096, grammar=constraint)
    job = Job(0, (0,), params, 0, 0, 4096, stops, compiled)
    return Seat(Request(job, [0]), 0, 0, n_rows=NODES, walker=Walker(compiled, (), 0, stops))


def draw_tree(seat: Seat, rng: random.Random, row: np.ndarray[Any, Any]) -> list[list[int]]:
    """Tokens and parents; every second node follows the grammar where its parent does."""
    assert seat.walker is not None
    matcher, tokens, parents = seat.walker.matcher, [0], [-1]
    paths: list[list[int] | None] = [[]]
    while len(tokens) < NODES:
        parent = rng.randrange(max(0, len(tokens) - 4), len(tokens))
        path, token, follows = paths[parent], rng.randrange(VOCABULARY), None
        if path is not None and rng.random() < 0.5:
            taken = [matcher.step(own) for own in path]
            matcher.fill(row, 0)
            matcher.back(sum(taken))
            bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")
            token = int(rng.choice(np.nonzero(bits)[0].tolist()))
            follows = [*path, token]
        tokens.append(token)
        parents.append(parent)
        paths.append(follows)
    return [tokens, parents]


def draw_chain(seat: Seat, rng: random.Random, row: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """A path that follows the grammar; the end is drawn where there is nothing else."""
    assert seat.walker is not None
    path: tuple[int, ...] = ()
    for _ in range(LEVELS):
        seat.walker.fill([path], row)
        path = (*path, draw_allowed(seat, rng, row))
    return path


def draw_allowed(seat: Seat, rng: random.Random, row: np.ndarray[Any, Any]) -> int:
    allowed = np.nonzero(np.unpackbits(row[0].view(np.uint8), bitorder="little"))[0].tolist()
    going_on = [token for token in allowed if token not in seat.request.job.stop_ids]
    return int(rng.choice(going_on or allowed))


def time_levels(seats: list[Seat], rng: random.Random, row: np.ndarray[Any, Any]) -> float:
    """Seconds for the masks of a draft, level by level."""
    chains = [draw_chain(seat, rng, row) for seat in seats]
    for seat in seats:
        assert seat.walker is not None
        seat.walker.advance(())  # back to the root
    worked = time.thread_time()
    for level in range(LEVELS):
        for seat, chain in zip(seats, chains, strict=True):
            assert seat.walker is not None
            seat.walker.fill([chain[:level]], row)
    return time.thread_time() - worked


def advance(seat: Seat, rng: random.Random, row: np.ndarray[Any, Any]) -> None:
    """A few tokens that the grammar allows, the end last of all."""
    assert seat.walker is not None
    for _ in range(3):
        seat.walker.fill([()], row)
        seat.walker.advance([draw_allowed(seat, rng, row)])


def measure(grammars: Grammars, tokenizer: Tokenizer, name: str, args: Any) -> list[dict[str, Any]]:
    """One row a round; texts that have ended begin anew."""
    rng, rows = random.Random(name), list[dict[str, Any]]()
    masks = Masks(BATCH, VOCABULARY, args.device)
    masks.hold(BATCH * NODES, 4 * BATCH * NODES)
    kernels = load("pytorch" if args.device == "cpu" else "triton", args.device)
    scratch = np.zeros((1, -(-VOCABULARY // 32)), dtype=np.int32)
    logits = torch.randn(BATCH * NODES, VOCABULARY, device=args.device)
    ends = torch.arange(0, BATCH * NODES + 1, NODES, dtype=torch.int32, device=args.device)
    make = lambda: make_seat(grammars, GRAMMARS[name], tokenizer.eos_ids)  # noqa: E731
    seats = [make() for _ in range(BATCH)]
    masks.seats = lambda: seats
    noted = torch.zeros((4, BATCH, NODES), dtype=torch.int32)
    lines = torch.zeros((BATCH, len(REPORT)), dtype=torch.int32)
    lines[:, N_CHOSEN] = NODES
    for _ in range(args.rounds):
        for index, seat in enumerate(seats):
            if rng.random() < 0.05:
                seats[index] = seat = make()
            tree = draw_tree(seat, rng, scratch)
            noted[TOKENS, index], noted[PARENTS, index] = (torch.tensor(part) for part in tree)
        begin, worked = time.perf_counter(), time.thread_time()
        masks.send(noted, lines)
        masks.make(of_trees, [noted.shape, lines.shape])
        wrote, worked = time.perf_counter(), time.thread_time() - worked
        masks.masked(kernels, logits, ends)
        if args.device != "cpu":
            torch.cuda.synchronize()
        done = time.perf_counter()
        times = {
            "masks_ms": wrote - begin,
            "processor_ms": worked,
            "masked_ms": done - wrote,
            "levels_ms": time_levels(seats, rng, scratch),
        }
        shown = {key: round(1e3 * value, 2) for key, value in times.items()}
        rows.append({"grammar": name, **shown})
        for seat in seats:
            advance(seat, rng, scratch)
    return rows


def main() -> None:
    """Measure every grammar and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "mask_times.json")
    args = parser.parse_args()
    tokenizer = grown_tokenizer(VOCABULARY)
    grammars = Grammars(tokenizer, VOCABULARY)
    begin = time.perf_counter()
    grammars.compiled(next(iter(GRAMMARS.values())))
    first_seconds = time.perf_counter() - begin
    rows = [row for name in GRAMMARS for row in measure(grammars, tokenizer, name, args)]
    summary = {}
    for name in GRAMMARS:
        # The first rounds meet new states of the lexer, as a server does once for each grammar.
        own = [row for row in rows if row["grammar"] == name]
        times = sorted(row["processor_ms"] for row in own)
        summary[name] = {
            "median_ms": round(statistics.median(row["masks_ms"] for row in own), 3),
            "processor_median_ms": round(statistics.median(times), 3),
            "processor_p90_ms": times[int(0.9 * len(times))],
            "processor_most_ms": times[-1],
            "levels_median_ms": round(statistics.median(row["levels_ms"] for row in own), 3),
        }
    record = {
        "provenance": provenance(args.device),
        "vocabulary": tokenizer.vocab_size,
        "batch": BATCH,
        "nodes": NODES,
        "levels": LEVELS,
        "first_grammar_seconds": round(first_seconds, 3),
        "summary": summary,
        "columns": list(rows[0]),
        "rows": [list(row.values()) for row in rows],
    }
    args.out.write_text(json.dumps(record).replace("], [", "],\n[") + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
