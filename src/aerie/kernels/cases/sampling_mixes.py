"""Random calls of sample_target_tokens in which every request asks for something else."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cases.case import Inputs
from aerie.kernels.cases.verdict_sampling import sampling_inputs

KINDS = ("usual", "usual", "ties", "equal", "masked", "one_left", "far_apart", "subnormal")
_SHAPES = ("chain1", "chain3", "star4", "random7", "chain0")
# What a request may ask for; neutral values stand among the others.
_COLUMNS: dict[str, tuple[float, ...]] = {
    "top_p": (1.0, 1.0, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 1e-6),
    "min_p": (0.0, 0.0, 0.02, 0.1, 0.5, 1.0),
    "repetition_penalty": (1.0, 1.0, 1.3, 0.7, 2.0),
    "presence_penalty": (0.0, 0.0, 0.6, -0.5),
    "frequency_penalty": (0.0, 0.0, 0.4, -0.3),
}
_FLAGS = ("prompt_counts", "output_counts", "logit_bias", "path")
_HEATS = (0.0, 1e-7, 0.05, 0.6, 1.0, 1.5, 5.0)


def mixed_call(rng: np.random.Generator, vocab: int, n_requests: int, share: float = 0.6) -> Inputs:
    """Inputs of a call that has each option with a chance of `share`, values drawn by request."""
    names = [name for name in (*_COLUMNS, *_FLAGS, "top_k", "floor") if rng.random() < share]
    ks = (0, 0, 1, 2, 5, max(vocab // 2, 1), vocab, vocab + 3)
    choices: dict[str, tuple[float, ...]] = {**_COLUMNS, "top_k": ks, "floor": (0, 1, 3, 99)}
    extra: dict[str, Any] = {
        name: rng.choice(choices[name], n_requests) if name in choices else True for name in names
    }
    extra["seed"] = rng.integers(-(2**63), 2**63 - 1, n_requests)
    if vocab == 1:
        # The only id must not be masked.
        extra = {name: value for name, value in extra.items() if name != "floor"}
    inputs = sampling_inputs(
        rng,
        shapes=rng.choice(_SHAPES, n_requests).tolist(),
        vocab=vocab,
        heat=rng.choice(_HEATS, n_requests),
        kind=str(rng.choice(KINDS)),
        extra=extra,
    )
    return _with_a_way_out(inputs)


def _with_a_way_out(inputs: Inputs) -> Inputs:
    """The same call with id 0 open in every row, so that no request is refused for masks."""
    inputs["logits"][:, 0] = np.maximum(inputs["logits"][:, 0], -50)
    if "logit_bias" in inputs:
        inputs["logit_bias"][:, 0] = 0
    return inputs
