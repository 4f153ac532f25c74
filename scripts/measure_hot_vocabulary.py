"""Draft vocabularies by size, with and without the ids of the prompt: acceptance, and where cut.

    python -m scripts.measure_hot_vocabulary reports/raw/hot_vocabulary_cpu.json

The target continues held-out prompts greedily; the built-in head then drafts chains along the text
with its whole vocabulary and with the most frequent ids alone, counted on other held-out code.
Each size is measured again with the ids of the prompt beside it. A round is cut where one of the
tokens that its chain would have to guess is not in the static list. Texts that loop are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.assemble.core import load_draft, load_target
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from aerie.config import ModelConfig
from aerie.models.draft_vocabulary import TokenCounts, choose_ids, count_ids, head_ids, slice_head
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.hub import find_pair
from aerie.text.heldout import KINDS, read_tokens
from aerie.text.loops import is_loop_free
from aerie.text.tokenizer import load_tokenizer
from aerie.train.acceptance import bootstrap_interval, mean_length
from scripts.measure_draft_window import Round, Written, rounds_along, walked, write

Ids = Callable[[Written], Tensor]  # the vocabulary a text is drafted with


def with_prompt(shared: Tensor, most: int, known: Tensor, text: Written) -> Tensor:
    """The shared ids and the most frequent of the prompt's others: what an engine drafts with."""
    prompt = text.tokens[: text.n_prompt]
    counts = torch.bincount(prompt, minlength=int(known[-1]) + 1)
    counts[shared] = 0
    order = torch.argsort(-counts[known], stable=True)[:most]
    own = known[order][counts[known[order]] > 0]
    return torch.cat((shared, own)).sort().values


def is_cut(own: Round, text: Written, shared: Tensor, depth: int) -> bool:
    """Whether the tokens that a chain would have to guess are not all in the static list."""
    return not bool(torch.isin(text.tokens[own.root + 1 : own.root + 1 + depth], shared).all())


def cell(
    head: Eagle3Head, texts: Sequence[Written], ids: Ids, shared: Tensor, depth: int
) -> dict[str, Any]:
    """One vocabulary over all texts; `shared` is the static list that rounds are cut by."""
    sizes, covered, walks, cut, whole = [], [], [], [], []
    for text in texts:
        own = ids(text)
        rounds = rounds_along(slice_head(head, own), text, depth)
        sizes.append(len(own))
        covered.append(torch.isin(text.tokens[text.n_prompt :], own).double().mean())
        walks.append(walked(rounds))
        for part, is_wanted in ((cut, True), (whole, False)):
            part += [r for r in rounds if is_cut(r, text, shared, depth) is is_wanted]
    low, high = bootstrap_interval(walks)
    return {
        "ids": round(float(np.mean(sizes)), 1),
        "coverage": round(float(np.mean(covered)), 4),
        "acceptance_length": round(mean_length(walks), 4),
        "interval": [round(low, 4), round(high, 4)],
        "rounds": {"cut": len(cut), "whole": len(whole)},
        "where_cut": round(mean_length([walked(cut)]), 4) if cut else None,
        "where_whole": round(mean_length([walked(whole)]), 4) if whole else None,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every kind of text, every size."""
    settings = ModelConfig(device="cpu", numerics="fast")
    folder, head_folder = find_pair(None, None)
    assert head_folder is not None
    target, tokenizer = load_target(folder, settings), load_tokenizer(folder)
    head = load_draft(head_folder, target, settings)
    known, ends = head_ids(head), tokenizer.eos_ids
    counted = read_tokens(tokenizer.encode, 1024, args.counted, offset=args.documents)
    counts: TokenCounts = count_ids(counted, target.geometry.vocab_size, "held-out code")
    found = {}
    for kind in KINDS:
        prompts = read_tokens(tokenizer.encode, args.context, args.documents, kind)
        texts = [write(target, head.taps, prompt, args.new, ends) for prompt in prompts]
        kept = [text for text in texts if is_loop_free(text.repeated)]
        cells = {"full": cell(head, kept, lambda text: known, known, args.depth)}
        for size in args.sizes:
            ids = choose_ids(counts, size, ends, known)
            static = partial(with_prompt, ids, 0, known)
            cells[f"static {size}"] = cell(head, kept, static, ids, args.depth)
            hot = partial(with_prompt, ids, args.most, known)
            cells[f"static {size} + prompt"] = cell(head, kept, hot, ids, args.depth)
        found[kind] = {"texts": len(texts), "used": len(kept), "cells": cells}
        print(json.dumps(found[kind]), flush=True)
    return {
        "what": "chains along greedy texts that do not loop; 95 % intervals over prompts",
        "head_ids": len(known),
        "most_prompt_ids": args.most,
        "chain": args.depth,
        "context": args.context,
        "new_tokens": args.new,
        "counted": f"the first 1,024 tokens of {args.counted} other held-out documents of code",
        "kinds": found,
        "provenance": provenance("cpu"),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--most", type=int, default=1024)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--counted", type=int, default=200)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--new", type=int, default=96)
    args = parser.parse_args()
    write_json(args.out, measure(args))


if __name__ == "__main__":
    main()
