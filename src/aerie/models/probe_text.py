"""What the probe reads: a built-in text, or text the target writes itself from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.rows import Bounds, Rows, causal_rows, ragged
from aerie.errors import CheckpointError
from aerie.models.decoder import Decoder
from aerie.models.written_text import Writing, continue_texts

Encode = Callable[[str], list[int]]

N_TOKENS = 256
MIN_TOKENS = 64  # fewer of a thousand characters are no tokenizer's
N_TEXTS = 8  # when the target writes: several short texts see more of it than a long one
N_SEEDS = 4
NOISE_SEED = 20

# Ordinary prose, a list, code and an answer: the registers a chat model writes in.
TEXT = """The lighthouse keeper wrote down the weather every morning before breakfast. On most
days there was little to say: wind from the west, a low grey sky, two fishing boats going out with
the tide. But on the third of March he noticed that the barometer had fallen further than he had
ever seen it fall, and he went down to the harbour to warn the others.

Here are three things to check before a storm:
1. Close the shutters and tie down anything that can move.
2. Bring the boats in, or moor them with two lines.
3. Make sure that the lamp has enough oil for the whole night.

def mean(values: list[float]) -> float:
    \"\"\"Return the arithmetic mean of a non-empty list.\"\"\"
    if not values:
        raise ValueError("mean of an empty list")
    return sum(values) / len(values)

Question: What is the capital of France, and how many people live there?
Answer: The capital of France is Paris. About two million people live in the city itself, and more
than ten million in the whole metropolitan area, which makes it one of the largest in Europe.
"""


@dataclass(frozen=True, eq=False)
class ProbeTexts:
    """Token ids of some texts, and how many leading ids of each were not written by a model."""

    texts: tuple[Tensor, ...]  # each [tokens] i64 on the target's device
    n_skipped: int


def read_built_in(encode: Encode, target: Decoder) -> ProbeTexts:
    """The built-in text through a model's own tokenizer.

    Raises CheckpointError when the tokenizer cannot be the model's.
    """
    ids, n_rows = encode(TEXT)[:N_TOKENS], target.geometry.vocab_size
    if len(ids) < MIN_TOKENS or max(ids) >= n_rows:
        found = f"{len(ids)} ids up to {max(ids, default=0)}"
        raise CheckpointError(
            f"the tokenizer makes {found} of the probe's text; at least {MIN_TOKENS}, all below "
            f"the model's {n_rows} embeddings, must come out. Use the tokenizer of this very model"
        )
    device = target.embedding.device
    return ProbeTexts((torch.tensor(ids, dtype=torch.int64, device=device),), n_skipped=0)


def write_freely(target: Decoder) -> ProbeTexts:
    """Text the target samples itself, for models without a tokenizer; the noise is always the same.

    Greedy text would fall into loops, in which any head that repeats its input agrees.
    """
    # Seeds spread over the vocabulary by two primes.
    place = torch.arange(N_TEXTS * N_SEEDS) * 7919 + 104729
    seeds = (place % target.geometry.vocab_size).view(N_TEXTS, N_SEEDS)
    writing = Writing(N_TOKENS // N_TEXTS - N_SEEDS, temperature=1.0, seed=NOISE_SEED)
    return ProbeTexts(tuple(continue_texts(target, list(seeds), writing)), n_skipped=N_SEEDS)


def whole_texts(texts: tuple[Tensor, ...]) -> Rows:
    """Rows of whole texts; text b owns the slots after those of the texts before it."""
    tokens, indptr = ragged(texts)
    slots = torch.arange(1, tokens.shape[0] + 1, dtype=torch.int32, device=tokens.device)
    longest = max((text.shape[0] for text in texts), default=0)
    return causal_rows(tokens, indptr, indptr, slots, Bounds(longest, longest))
