"""Plain against speculative decoding in one interleaved run: same tokens, and how fast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aerie.api import Completion, Engine, Prompt
from aerie.bench.provenance import provenance
from aerie.bench.turns import in_turns
from aerie.config import SpeculationConfig
from aerie.kernels.noise import gumbel
from aerie.models.decoder import Decoder
from aerie.models.probe_text import whole_texts
from aerie.requests.params import SamplingParams

# Below this temperature a request is greedy, as in `sample_target_tokens`.
GREEDY_TEMPERATURE = 1e-6
ENDED = -1  # in place of a token: that text is shorter


@dataclass(frozen=True)
class Difference:
    """Where two outputs part, and how close the two tokens were to the target there.

    The gap is between their logits / T plus the seed's noise, or their logits when greedy: what
    decided the token. Where one text ends, it is between the two largest. Penalties and filters are
    left out of it.
    """

    index: int
    plain: int
    speculative: int
    logit_gap: float


def compare_decoding(
    plain: Engine,
    speculative: Engine,
    prompt: Prompt,
    params: SamplingParams,
    repeats: int,
    on_run: Callable[[], None],
) -> dict[str, Any]:
    """Warm both engines, then alternate them; JSON values, ratios medians over the pairs."""

    def generate(engine: Engine) -> tuple[float, Completion]:
        begin = time.perf_counter()
        completion = engine.generate([prompt], params)[0]
        seconds = time.perf_counter() - begin
        on_run()
        return seconds, completion

    engines = {"plain": plain, "speculative": speculative}
    runs = in_turns({name: partial(generate, own) for name, own in engines.items()}, repeats)
    # Emitted tokens over wall clock, prefill included; wall clock of a round.
    speeds = {name: [len(c.token_ids) / s for s, c in own] for name, own in runs.items()}
    rounds = {
        name: [s / max(c.statistics.target_passes, 1) for s, c in own] for name, own in runs.items()
    }
    ratio, tax = (
        statistics.median(s / p for s, p in zip(own["speculative"], own["plain"], strict=True))
        for own in (speeds, rounds)
    )
    first = {name: own[0][1] for name, own in runs.items()}
    difference = first_difference(plain, prompt, params, *first.values())
    counted = first["speculative"].statistics
    return {
        "ok": difference is None,
        "identical": difference is None,
        "first_difference": None if difference is None else asdict(difference),
        "policy": policy_of(speculative.core.config.speculation),
        "tokens": len(first["plain"].token_ids),
        "tokens_per_second": {
            name: round(statistics.median(own), 2) for name, own in speeds.items()
        },
        "ratio": round(ratio, 4),
        "mean_acceptance_length": round(counted.mean_acceptance_length, 4),
        "acceptance_by_context": counted.by_context.lengths(),
        "round_tax": round(tax, 4),
        "target_passes": {name: own.statistics.target_passes for name, own in first.items()},
        "repeats": repeats,
        "provenance": provenance(speculative.config.model.device),
    }


def policy_of(speculation: SpeculationConfig) -> dict[str, Any]:
    """Which trees an engine grows: the policy it resolved to, and the most it may grow."""
    return {
        "method": speculation.method,
        "name": speculation.chosen_policy,
        **asdict(speculation.limits),
    }


def first_difference(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    plain: Completion,
    speculative: Completion,
) -> Difference | None:
    """Compare two outputs of one prompt and seed; None if they are the same."""
    ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    asked, target = replace(params, seed=plain.seed), engine.core.parts.target
    return where_texts_part(target, ids, asked, plain.token_ids, speculative.token_ids)


def where_texts_part(
    target: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    plain: Sequence[int],
    other: Sequence[int],
) -> Difference | None:
    """The same of token ids; `params` has the seed."""
    if list(plain) == list(other):
        return None
    index = n_shared(plain, other)
    decided = _decided_by(target, [*prompt, *plain[:index]], params)
    left, right = (own[index] if index < len(own) else ENDED for own in (plain, other))
    best = torch.topk(decided, 2).values if ENDED in (left, right) else decided[[left, right]]
    return Difference(index, left, right, logit_gap=float((best[0] - best[1]).abs()))


def n_shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Tokens or characters that two texts share from the beginning."""
    shared = min(len(one), len(other))
    return next((i for i in range(shared) if one[i] != other[i]), shared)


@torch.inference_mode()
def _decided_by(target: Decoder, tokens: list[int], params: SamplingParams) -> Tensor:
    """What the token after a text was chosen by. [vocab] f32"""
    logits = logits_after(target, tokens).float().cpu()
    if params.temperature < GREEDY_TEMPERATURE:
        return logits
    assert params.seed is not None, "the noise follows from the seed"
    noise = gumbel(logits.shape[0], params.seed, len(tokens) - 1, 0)
    return logits / params.temperature + torch.from_numpy(noise)


def logits_after(target: Decoder, tokens: list[int]) -> Tensor:
    """What the target says after a text, from a fresh prefill. [vocab] f32"""
    device, n = target.embedding.device, len(tokens)
    rows = whole_texts((torch.tensor(tokens, device=device),))
    last = torch.tensor([n - 1], device=device)
    return target.forward(rows, target.allocate_pool(n + 1), last).logits[0]
