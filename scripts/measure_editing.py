"""Prompt-suffix paths on an editing workload: files typed again with an identifier renamed.

    python -m scripts.measure_editing reports/raw/editing_cpu.json

A prompt is a held-out file, a line that says what is to be renamed, and the first quarter of the
edited copy; the target goes on typing. Plain decoding, the head alone, copied paths alone and both
take turns on every prompt, prompts read before; decoding alone is timed. Tokens are compared with
plain decoding's in every cell, and the share of repeated 8-grams stands beside each.

What lookups find is measured without a model (`--lookups`, reports/raw/editing_lookups_cpu.json):
along the edited copy as it should be typed, the tokens of a round that has copied paths alone, and
what its lookups take.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie import Engine, SamplingParams
from aerie.bench.provenance import provenance
from aerie.bench.record import interval, write_json
from aerie.kernels.numpy_cpu.round_text import find_text_path
from aerie.models.hub import find_pair
from aerie.text.heldout import read_documents
from aerie.text.loops import repeated_share
from aerie.text.tokenizer import Tokenizer, load_tokenizer

METHODS = {"plain": "none", "eagle3": "eagle3", "eagle3+ngram": "eagle3+ngram", "ngram": "ngram"}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{4,}")
TYPED = 0.25  # of the copy, before the target goes on
LOOKED_DOCUMENTS = 12  # no model reads them


# What is looked up: the longest suffix, and the tokens looked through; of several the best counts.
LOOKED = {
    "suffix of 3 in the last 4,096": [(3, 4096)],
    "suffix of 3 in the whole text": [(3, 65536)],
    "suffix of 8 in the whole text": [(8, 65536)],
    "that, and of 2 in the last 4,096": [(8, 65536), (2, 4096)],
}
PATH, ALONG = 12, 1024  # tokens of a path, and of the copy that is walked along


@dataclass(frozen=True)
class Edit:
    """One prompt, and the whole text as it should be typed."""

    tokens: list[int]
    typed: list[int]


@dataclass(frozen=True)
class Run:
    """One prompt decoded by one method."""

    tokens: tuple[int, ...]
    seconds: float
    drafts: int
    accepted: int

    @property
    def speed(self) -> float:
        """Tokens a second; the first came with the prompt."""
        return (len(self.tokens) - 1) / self.seconds


def edits(tokenizer: Tokenizer, length: int, number: int) -> list[Edit]:
    """Prompts of files of about `length` tokens, cut at the end of a line."""
    encode, decode = tokenizer.encode, tokenizer.decode
    found = []
    for document in read_documents(length, number):
        text = decode(list(encode(document.text)[:length]))
        text = text[: text.rindex("\n") + 1]
        names = Counter(name for name in NAME.findall(text) if not keyword.iskeyword(name))
        old = names.most_common(1)[0][0]
        new = f"{old}_renamed"
        copy = re.sub(rf"\b{old}\b", new, text)
        start = copy.index("\n", int(TYPED * len(copy))) + 1
        told = f"\n# The same file with {old} renamed to {new}:\n\n"
        prompt = text + told + copy[:start]
        found.append(Edit(list(encode(prompt)), list(encode(prompt + copy[start:]))))
    return found


def walk_typed(edit: Edit, looks: Sequence[tuple[int, int]]) -> tuple[int, int, float]:
    """Rounds along the rest of a copy with copied paths alone: rounds, tokens, seconds."""
    text = np.array([edit.typed], dtype=np.int32)
    first = position = len(edit.tokens)
    end = min(first + ALONG, len(edit.typed) - PATH)
    n_rounds, begin = 0, time.perf_counter()
    while position < end:
        paths = [_path(text, position, *look) for look in looks]
        truth = text[0, position : position + PATH]
        right = [int((path == truth).cumprod().sum()) for path in paths]
        position += max(right) + 1
        n_rounds += 1
    return n_rounds, position - first, time.perf_counter() - begin


def _path(text: Any, length: int, longest: int, searched: int) -> Any:
    """[PATH] i64, -1 behind its end."""
    return find_text_path(
        text=text,
        req_pool_indices=np.zeros(1, np.int64),
        text_len=np.array([length]),
        longest=longest,
        path_length=PATH,
        searched=searched,
    )["path_tokens"][0]


def looked_up(prompts: Sequence[Edit]) -> dict[str, Any]:
    """Every way to look up, over all prompts."""
    found = {}
    for name, looks in LOOKED.items():
        runs = [walk_typed(prompt, looks) for prompt in prompts]
        n_rounds = sum(run[0] for run in runs)
        found[name] = {
            "tokens_a_round": round(sum(run[1] for run in runs) / n_rounds, 3),
            "microseconds_a_round": round(1e6 * sum(run[2] for run in runs) / n_rounds, 1),
        }
    return found


def decode(engine: Engine, prompt: Sequence[int], n_new: int) -> Run:
    """Decode one prompt; timed from its first token on."""
    core, params = engine.core, SamplingParams(max_tokens=n_new, ignore_eos=True)
    request_id = core.submit(prompt, params)
    request = core.request(request_id)
    while not request.output:
        core.step()
    n_first, begin = len(request.output), time.perf_counter()
    while not core.is_idle:
        core.step()
    seconds = time.perf_counter() - begin
    core.forget(request_id)
    counts = request.statistics
    shown = tuple(request.output)
    # As if one token had come first: several may have.
    seconds *= (len(shown) - 1) / (len(shown) - n_first)
    return Run(shown, seconds, counts.num_drafts, counts.num_accepted_tokens)


def point(length: int, cells: dict[str, list[Run]], ends: Sequence[int]) -> dict[str, Any]:
    """All methods at one length of file; runs are prompt by prompt, turn by turn."""
    plain, methods = cells["plain"], {}
    for name, runs in cells.items():
        drafts, pairs = sum(run.drafts for run in runs), list(zip(runs, plain, strict=True))
        ratio = interval([run.speed / other.speed for run, other in pairs])
        shares = [repeated_share(run.tokens, ends) for run in runs]
        methods[name] = {
            "tokens_per_second": round(statistics.median(run.speed for run in runs), 1),
            "over_plain": [round(value, 3) for value in (ratio.median, ratio.low, ratio.high)],
            "acceptance_length": (
                round(1 + sum(run.accepted for run in runs) / drafts, 3) if drafts else 1.0
            ),
            "repeated_8gram_share": round(statistics.mean(shares), 4),
            "differing": sum(run.tokens != other.tokens for run, other in pairs),
        }
    return {"file_tokens": length, "runs": len(plain), "methods": methods}


def measure(args: argparse.Namespace) -> None:
    """Every length, every method, in turns; what is known is written after each length."""
    longest = int(max(args.lengths) * (1.5 + TYPED)) + args.new + 64
    engines = {
        name: Engine.load(
            max_model_len=min(longest, 34816),
            numerics="exact",
            scheduler={"max_batch": 1},
            speculation={"method": method},
        )
        for name, method in METHODS.items()
    }
    any_engine, points = engines["plain"], []
    head: dict[str, Any] = {
        "what": "held-out files typed again with an identifier renamed; greedy, batch 1, exact",
        "new_tokens": args.new,
        "prompts": args.documents,
        "turns": args.turns,
        "provenance": provenance("cpu"),
    }
    for length in args.lengths:
        prompts = edits(any_engine.tokenizer, length, args.documents)
        cells: dict[str, list[Run]] = {name: [] for name in engines}
        for prompt in prompts:
            for turn in range(1 + args.turns):
                for name, engine in engines.items():
                    run = decode(engine, prompt.tokens, args.new)
                    if turn:  # the first reads the prompt and warms up
                        cells[name].append(run)
        points.append(point(length, cells, any_engine.tokenizer.eos_ids))
        prompt_tokens = [len(prompt.tokens) for prompt in prompts]
        points[-1] |= {"prompt_tokens": [min(prompt_tokens), max(prompt_tokens)]}
        print(json.dumps(points[-1]), flush=True)
        parted = [name for name, own in points[-1]["methods"].items() if own["differing"]]
        assert not parted, f"{parted} part from plain decoding at {length}"
        write_json(args.out, {**head, "points": points})


def measure_lookups(args: argparse.Namespace) -> None:
    """Every length, every way to look up."""
    tokenizer = load_tokenizer(find_pair(None, None)[0])
    points = [
        {"file_tokens": n, "lookups": looked_up(edits(tokenizer, n, LOOKED_DOCUMENTS))}
        for n in args.lengths
    ]
    head = {
        "what": "edited copies as they should be typed, walked along with copied paths alone",
        "documents": LOOKED_DOCUMENTS,
        "path_tokens": PATH,
        "provenance": provenance("cpu"),
    }
    write_json(args.out, {**head, "points": points})


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048])
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--lookups", action="store_true", help="without a model")
    args = parser.parse_args()
    (measure_lookups if args.lookups else measure)(args)


if __name__ == "__main__":
    main()
