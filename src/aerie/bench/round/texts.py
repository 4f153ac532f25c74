"""Same tokens on a GPU: policies against plain decoding, small pair against inflated, near ties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.bench.comparison import logits_after, n_shared
from aerie.bench.round.setup import Room, RoundSetup, read_prompts
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.models.decoder import Decoder
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams

POLICIES = {
    "plain": SpeculationConfig(method="none"),
    "chain": SpeculationConfig(top_k=1, depth=5, nodes=6),
    "tree": SpeculationConfig(top_k=8, depth=5, nodes=32),
    "planner": SpeculationConfig(policy="planner"),
}
BATCH = 32
BF16_BITS = 8  # of the significand, the hidden one included
CHAIN = SpeculationConfig(top_k=1, depth=7, nodes=8)
SPELLS = {"chain 7": True, "plain": False}


def write_texts(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    n_new: int,
    temperature: float,
    speculative: bool = True,
) -> list[list[int]]:
    """The outputs of all prompts, together."""
    how: dict[str, Any] = {"ignore_eos": True, "speculative": speculative}
    ids = [
        core.submit(prompt, SamplingParams(n_new, temperature, seed=number, **how))
        for number, prompt in enumerate(prompts)
    ]
    while not core.is_idle:
        core.step()
    return [core.forget(request_id).output for request_id in ids]


def compare_policies(
    setup: RoundSetup,
    pair: LargePair,
    prompts: Sequence[Sequence[int]],
    n_new: int,
    temperature: float,
    reference: Decoder,
) -> dict[str, Any]:
    """Outputs of every policy against plain decoding; JSON values.

    How close a choice was is told by `reference`, the same function in fp32: a third pass in bf16
    would round the gap itself by a step or two.
    """
    room = lossless_room(min(len(prompts), BATCH), len(prompts[0]) + n_new)
    texts = {
        name: write_texts(setup.core(pair, policy, room), prompts, n_new, temperature)
        for name, policy in POLICIES.items()
    }
    targets = (reference, pair.target)
    found: dict[str, Any] = {}
    for name in [name for name in POLICIES if name != "plain"]:
        written = zip(prompts, texts["plain"], texts[name], strict=True)
        parted = [
            {"policy": name, "prompt": number, **_divergence(targets, *own)}
            for number, own in enumerate(written)
            if own[1] != own[2]
        ]
        found[name] = {
            "texts": len(prompts),
            "identical": len(prompts) - len(parted),
            "tokens": len(prompts) * n_new,
            "divergences": parted,
        }
    return found


def lossless_room(batch: int, context: int) -> Room:
    """Few buckets: tokens do not depend on them, and each takes a second to capture."""
    rows = (batch, 6 * batch, 32 * batch)
    return Room(batch, context, graphs=GraphConfig(slots=(batch,), rows=rows))


def _divergence(
    targets: tuple[Decoder, Decoder], prompt: Sequence[int], plain: list[int], other: list[int]
) -> dict[str, Any]:
    """The first token two outputs of one prompt do not share, and how close the choice was."""
    index = n_shared(plain, other)
    choices = [plain[index], other[index]]
    pairs = [logits_after(target, [*prompt, *plain[:index]])[choices] for target in targets]
    gap, own_gap = (float((pair[0] - pair[1]).abs()) for pair in pairs)
    step = 2.0 ** (math.floor(math.log2(float(pairs[0].abs().max()))) + 1 - BF16_BITS)
    return {
        "index": index,
        "plain": choices[0],
        "other": choices[1],
        "gap": gap,  # between the two choices' logits, by the reference
        "gap_ulps": round(gap / step, 3),  # in steps of bf16 at the larger of the two
        "own_gap": own_gap,  # by a fresh prefill in the run's own dtype, rounded as that rounds
    }


@dataclass(frozen=True)
class Grid:
    """Points that are looked at; those of more tokens than `most_tokens` are left out."""

    contexts: tuple[int, ...] = (1024, 8192, 32768)
    batches: tuple[int, ...] = (1, 8, 32)
    n_new: int = 128
    n_least: int = 2  # texts of a point, however small its batch
    most_tokens: int = 300_000  # what reading all of it takes, and memory

    def batches_at(self, context: int) -> tuple[int, ...]:
        """Those for which there is room."""
        return tuple(batch for batch in self.batches if batch * context <= self.most_tokens)

    def room(self, context: int) -> Room:
        """One engine for all batches of a context; prompts are read once and found again."""
        batches = self.batches_at(context)
        rows = tuple(sorted({n for batch in batches for n in (batch, 8 * batch)}))
        graphs = GraphConfig(slots=batches, rows=rows)
        # So that a batch of one finds room beside what is kept.
        n_kept = max(max(batches), self.n_least) + 1
        return Room(n_kept, context + self.n_new, graphs=graphs, prefix_reuse=True)


def count_by_size(setup: RoundSetup, pair: LargePair, grid: Grid) -> list[dict[str, Any]]:
    """Greedy texts with a chain and without, by point; JSON values."""
    found = []
    for context in grid.contexts:
        core = setup.core(pair, CHAIN, grid.room(context))
        for batch in grid.batches_at(context):
            found.append({"context": context, "batch": batch, **_point(core, context, batch, grid)})
    return found


def _point(core: EngineCore, context: int, batch: int, grid: Grid) -> dict[str, Any]:
    prompts = read_prompts(max(batch, grid.n_least), context, core.limits.vocabulary)
    texts: dict[str, list[list[int]]] = {name: [] for name in SPELLS}
    counted = {}
    for name, drafts in SPELLS.items():
        before = core.near_ties.n_tokens, core.near_ties.n_near
        for first in range(0, len(prompts), batch):
            wave = prompts[first : first + batch]
            texts[name] += write_texts(core, wave, grid.n_new, 0.0, speculative=drafts)
        n_tokens, n_near = core.near_ties.n_tokens - before[0], core.near_ties.n_near - before[1]
        rate = n_near / n_tokens if n_tokens else None
        counted[name] = {"tokens": n_tokens, "near_ties": n_near, "rate": rate}
    parted = sum(own != other for own, other in zip(*texts.values(), strict=True))
    return {"texts": len(prompts), "parted": parted, **counted}
