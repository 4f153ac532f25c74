"""Acceptance of a head by context: with its window, without one, and with a window and sinks.

    python -m scripts.measure_draft_window reports/raw/draft_window_cpu.json

Prompts are the last 512, 1K, ... tokens before one place of held-out documents, so that contexts
differ and what is written hardly does. The target continues each greedily, once; every reach of
the head then drafts chains along that text, as rounds would. Texts that loop are left out: the
rule is `aerie.text.loops`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.assemble.core import load_draft, load_target
from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds, Rows, causal_rows
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from aerie.config import ModelConfig
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.hub import find_pair
from aerie.text.heldout import read_tokens
from aerie.text.loops import is_loop_free, repeated_share
from aerie.text.tokenizer import load_tokenizer
from aerie.train.acceptance import Walked, bootstrap_interval, mean_length, middle, resampled

CHUNK = 512  # prompt tokens of a pass
# Settings of the head; the built-in one was trained with a window of 512.
TRAINED = "window 512"
REACHES = {
    TRAINED: {"draft_window": 512, "draft_sinks": 0},
    "whole context": {"draft_window": 0},
    "window 512, 4 sinks": {"draft_window": 512, "draft_sinks": 4},
}


@dataclass(frozen=True, eq=False)
class Written:
    """A prompt with its greedy continuation, and the target's features of all but the last."""

    tokens: Tensor  # [n] i64
    n_prompt: int
    taps: Tensor  # [n - 1, captures, hidden]
    repeated: float


@dataclass(frozen=True)
class Round:
    """A chain that was drafted behind the token at `root`."""

    root: int
    n_accepted: int


def rows_of(tokens: Tensor, end: int) -> Rows:
    """These tokens as the last rows of a text of `end` positions, position i in slot i + 1."""
    n = tokens.shape[0]
    slots = torch.arange(1, end + 1, dtype=torch.int32)
    ends = [torch.tensor([0, length], dtype=torch.int32) for length in (n, end)]
    return causal_rows(tokens, *ends, slots, Bounds(n, end))


@torch.inference_mode()
def write(
    target: Decoder, taps: tuple[int, ...], prompt: list[int], n_new: int, stops: Sequence[int]
) -> Written:
    """Read a prompt in chunks, then continue it token by token; all features are kept."""
    tokens, captured = torch.tensor(prompt), []
    pool = target.allocate_pool(len(prompt) + n_new + 1)
    for start in range(0, len(prompt), CHUNK):
        part = tokens[start : start + CHUNK]
        last = torch.tensor([part.shape[0] - 1])
        out = target.forward(rows_of(part, start + part.shape[0]), pool, last, taps)
        captured.append(out.taps)
    for end in range(len(prompt) + 1, len(prompt) + n_new):
        best = out.logits.argmax(-1)
        tokens = torch.cat((tokens, best))
        out = target.forward(rows_of(best, end), pool, torch.tensor([0]), taps)
        captured.append(out.taps)
    tokens = torch.cat((tokens, out.logits.argmax(-1)))
    share = repeated_share(tokens[len(prompt) :].tolist(), stops)
    return Written(tokens, len(prompt), torch.cat(captured), share)


@torch.inference_mode()
def rounds_along(head: Eagle3Head, text: Written, depth: int) -> list[Round]:
    """Rounds of chains along a text: draft behind the root, go on behind what was accepted."""
    tokens, n = text.tokens, text.tokens.shape[0]
    pool = head.allocate_pool(n + depth + 1)
    nothing = torch.zeros(0, dtype=torch.int64)
    seen = text.n_prompt - 2  # rows of the prompt but the last, whose keys and values are enough
    head.extend(rows_of(tokens[1 : seen + 1], seen), text.taps[:seen], pool, nothing)
    root, rounds = text.n_prompt - 1, list[Round]()
    while root + depth < n:
        guesses = _chain(head, text, pool, (seen, root), depth)
        is_right = (guesses == tokens[root + 1 : root + 1 + depth]).long()
        length = int(is_right.cumprod(0).sum())
        rounds.append(Round(root, length))
        seen, root = root, root + length + 1
    return rounds


def walked(rounds: Sequence[Round]) -> Walked:
    """How many, and what they accepted."""
    return Walked(len(rounds), sum(own.n_accepted for own in rounds))


def _chain(
    head: Eagle3Head, text: Written, pool: KVPool, span: tuple[int, int], depth: int
) -> Tensor:
    """Take in the rows of `span`, then guess `depth` tokens behind the root. [depth] i64"""
    seen, root = span
    rows = rows_of(text.tokens[seen + 1 : root + 1], root)
    out = head.extend(rows, text.taps[seen:root], pool, torch.tensor([root - seen - 1]))
    guesses = [head.to_target(out.logits.argmax(-1))]
    for level in range(1, depth):
        out = head.step(rows_of(guesses[-1], root + level), out.hidden, pool)
        guesses.append(head.to_target(out.logits.argmax(-1)))
    return torch.cat(guesses)


def summary(walks: Sequence[Walked], trained: Sequence[Walked]) -> dict[str, Any]:
    """Of one reach at one context; `trained` are walks over the same texts as it was trained."""
    low, high = bootstrap_interval(walks)
    paired = middle(resampled(walks) / resampled(trained))  # of the same texts, drawn together
    return {
        "drafts": sum(walk.drafts for walk in walks),
        "acceptance_length": round(mean_length(walks), 4),
        "interval": [round(low, 4), round(high, 4)],
        "of_trained": round(mean_length(walks) / mean_length(trained), 4),
        "of_trained_interval": [round(bound, 4) for bound in paired],
    }


def measure(args: argparse.Namespace) -> None:
    """Every context, every reach; what is known is written after each context."""
    settings = ModelConfig(device="cpu", numerics="fast")
    folder, head_folder = find_pair(None, None)
    assert head_folder is not None
    target, tokenizer = load_target(folder, settings), load_tokenizer(folder)
    heads = {
        name: load_draft(head_folder, target, ModelConfig(device="cpu", numerics="fast", **own))
        for name, own in REACHES.items()
    }
    taps, ends = next(iter(heads.values())).taps, tokenizer.eos_ids
    documents = read_tokens(tokenizer.encode, max(args.contexts), args.documents)
    head: dict[str, Any] = {
        "what": "chains along greedy texts that do not loop; 95 % intervals over prompts",
        "chain": args.depth,
        "new_tokens": args.new,
        "prompts": f"the last tokens before position {max(args.contexts)} of held-out code",
        "provenance": provenance("cpu"),
    }
    points = []
    for context in args.contexts:
        began = time.perf_counter()
        texts = [write(target, taps, own[-context:], args.new, ends) for own in documents]
        kept = [text for text in texts if is_loop_free(text.repeated)]
        print(f"{context}: {len(kept)} of {len(texts)} texts do not loop", flush=True)
        assert kept, "ask for more documents"
        walks = {
            name: [walked(rounds_along(head, text, args.depth)) for text in kept]
            for name, head in heads.items()
        }
        points.append(
            {
                "context": context,
                "texts": len(texts),
                "used": len(kept),
                "repeated_8gram_share": round(sum(t.repeated for t in kept) / len(kept), 4),
                "reaches": {name: summary(own, walks[TRAINED]) for name, own in walks.items()},
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
        print(json.dumps(points[-1]), flush=True)
        write_json(args.out, {**head, "points": points})


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    contexts = [512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--contexts", type=int, nargs="+", default=contexts)
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--new", type=int, default=64)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
