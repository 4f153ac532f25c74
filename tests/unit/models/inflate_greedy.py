"""Greedy text and drafts of a small pair and of its inflated copy; shared, and run for bf16.

As a program it prints one JSON line. It runs in its own process because some virtual machines
announce AMX and then trap on it: the caller limits oneDNN before torch is imported.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.attention.rows import Bounds, Rows, causal_rows
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.inflate.embed import InflateOptions, LargePair, inflate_to_device
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe_text import whole_texts
from tests.unit.models.inflating import BINARY, write_pair

N_STEPS, N_CHAIN, PROMPT = 512, 4, (3, 17, 8)


@dataclass(frozen=True, eq=False)
class Choices:
    """First choices of a model, and what it takes to overturn them."""

    ids: Tensor  # [steps]
    leads: Tensor  # [steps], of the first choice over the second, in units of the first's logit


@dataclass(frozen=True, eq=False)
class Written:
    """What a pair writes and drafts."""

    choices: Choices  # of the target, one row at a time
    drafts: Choices  # of the head after every position of the text, as target ids
    chain: Tensor  # [N_CHAIN], drafted greedily after the last position


def choose(logits: Tensor) -> Choices:
    best = logits.topk(2, dim=-1)
    first, second = best.values.unbind(-1)
    return Choices(logits.argmax(-1), (first - second) / first.abs())


def write(target: Decoder, head: Eagle3Head, forced: Tensor | None = None) -> Written:
    """N_STEPS of greedy text, or the choices along a text that is given; then the head's."""
    choices = decode(target, forced)
    text = torch.cat((torch.tensor(PROMPT), choices.ids if forced is None else forced))
    drafts, chain = read(target, head, text)
    return Written(choices, drafts, chain)


def decode(target: Decoder, forced: Tensor | None) -> Choices:
    """One row at a time, each over the keys and values of the rows before it."""
    pool = target.allocate_pool(len(PROMPT) + N_STEPS + 1)
    ids, fresh, logits = list(PROMPT), list(PROMPT), []
    for step in range(N_STEPS):
        rows = one_request(torch.tensor(fresh), len(ids))
        logits.append(target.forward(rows, pool, torch.tensor([len(fresh) - 1])).logits)
        fresh = [int(logits[-1].argmax()) if forced is None else int(forced[step])]
        ids += fresh
    return choose(torch.cat(logits))


def one_request(tokens: Tensor, n_columns: int) -> Rows:
    """The last rows of a text of `n_columns` tokens."""
    return causal_rows(
        tokens,
        torch.tensor([0, len(tokens)], dtype=torch.int32),
        torch.tensor([0, n_columns], dtype=torch.int32),
        torch.arange(1, n_columns + 1, dtype=torch.int32),
        Bounds(len(tokens), n_columns),
    )


def read(target: Decoder, head: Eagle3Head, text: Tensor) -> tuple[Choices, Tensor]:
    """The head's choices along a text, and a chain behind its end."""
    rows = whole_texts((text,))
    every = torch.arange(rows.n_rows)
    out = target.forward(rows, target.allocate_pool(rows.n_rows + 1), every, head.taps)
    pairs = whole_texts((text[1:],))
    pool = head.allocate_pool(rows.n_rows + N_CHAIN + 1)
    result = head.extend(pairs, out.taps[:-1], pool)
    drafts = choose(result.logits)
    chain = [head.to_target(drafts.ids[-1:])]
    for step in range(N_CHAIN - 1):
        row = one_request(chain[-1], pairs.n_rows + step + 1)
        result = head.step(row, result.hidden[-1:], pool)
        chain.append(head.to_target(result.logits.argmax(-1)))
    return replace(drafts, ids=head.to_target(drafts.ids)), torch.cat(chain)


def disagreements(own: Choices, other: Choices) -> list[float]:
    """Leads of the choices that the other side overturned."""
    leads: list[float] = own.leads[own.ids != other.ids].tolist()
    return leads


def open_both(parent: Path, dtype: torch.dtype) -> tuple[LargePair, LargePair]:
    """The small pair as loaded from its files, and the pair inflated in memory."""
    pair = write_pair(parent, BINARY, dtype)
    target = load_decoder(parent / "target", pytorch.prepare, LoadOptions(dtype=dtype))
    head = load_head(parent / "head", target, pytorch.prepare, HeadOptions())
    options = InflateOptions(LoadOptions(dtype=dtype))
    large = inflate_to_device(pair, BINARY.geometry, pytorch.prepare, options)
    return LargePair(target, head), large


if __name__ == "__main__":
    small, large = open_both(Path(sys.argv[1]), getattr(torch, sys.argv[2]))
    own = write(small.target, small.head)
    other = write(large.target, large.head, own.choices.ids)
    print(
        json.dumps(
            {
                "tokens": disagreements(own.choices, other.choices),
                "drafts": disagreements(own.drafts, other.drafts),
                "is_chain_equal": torch.equal(own.chain, other.chain),
                "n_distinct": len(set(own.choices.ids.tolist())),
            }
        )
    )
