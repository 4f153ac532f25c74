"""Rounds of a live engine, recorded by a tap on its kernels, and padded to production sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.api import Engine
from aerie.bench.bed import PromptBook
from aerie.fpga.tree_round import Array, DraftLevel, Serving, TreeRound
from aerie.kernels.arrays import as_numpy
from aerie.kernels.registry import Kernels
from aerie.requests.params import SamplingParams

LAYER = "draft_tree_layer_score_index_gen_op"
STATE = "update_cumu_draft_state"
SOFTMAX = "convert_logits_to_probas"
WALK = "draft_tree_reject_sample"
COMMIT = "update_verify_result"
RECORDED = (LAYER, STATE, SOFTMAX, WALK, COMMIT)
# Logits of a token that a padded vocabulary adds: its probability is zero in any float.
DEAD_LOGIT = -1.0e4
PROMPT_TOKENS = 512


@dataclass(frozen=True, eq=False)
class Recorded:
    """One call: inputs as they were before it, results by name."""

    kernel: str
    inputs: Mapping[str, Any]
    results: Mapping[str, Any]


class Recorder:
    """A tap: an engine loaded with `tap=recorder.tap` leaves its calls here, round by round."""

    def __init__(self) -> None:
        self.calls: list[Recorded] = []

    def tap(self, kernels: Kernels) -> Kernels:
        """The same kernels; those of a round are recorded."""
        tapped: dict[str, Any] = dict(kernels)
        tapped |= {name: self._tapped(name, kernels[name]) for name in RECORDED}
        return Kernels(kernels.backend, kernels.device, kernels.data_errors, tapped)

    def _tapped(self, name: str, kernel: Any) -> Any:
        def run(**inputs: Any) -> Any:
            before = {key: _copied(value) for key, value in inputs.items()}
            result = kernel(**inputs)
            after = {key: _copied(value) for key, value in result._asdict().items()}
            self.calls.append(Recorded(name, before, after))
            return result

        return run

    def rounds(self) -> list[list[Recorded]]:
        """Calls from a root's layer to its commit; rounds that drafted nothing are left out."""
        found: list[list[Recorded]] = []
        for call in self.calls:
            if call.kernel == LAYER and call.inputs["cumu_count"] == 1:
                found.append([])
            if found:
                found[-1].append(call)
        return [calls for calls in found if calls[-1].kernel == COMMIT]


def _copied(value: Any) -> Any:
    return as_numpy(value).copy() if hasattr(value, "dtype") else value


@dataclass(frozen=True)
class TraceRecipe:
    """What is recorded: a cell of the table, and how many rounds of it."""

    batch: int
    verify: int
    rounds: int
    top_k: int = 8
    depth: int = 5
    context: int = PROMPT_TOKENS


@dataclass(frozen=True, eq=False)
class TracedRound:
    """A round with the tokens the engine emitted in it."""

    round: TreeRound
    emitted: Array  # K7's out_tokens
    out_indptr: Array


def record(recipe: TraceRecipe) -> list[TracedRound]:
    """Decode held-out prompts with the built-in pair under the rule of coins, greedily."""
    recorder = Recorder()
    engine = Engine.load(
        tap=recorder.tap,
        speculation={
            "top_k": recipe.top_k,
            "depth": recipe.depth,
            "nodes": recipe.verify,
            "rule": "coins",
        },
        scheduler={"max_batch": recipe.batch},
        backend="numpy",
    )
    prompts = PromptBook().choose(recipe.context, recipe.batch)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=256, ignore_eos=True)
    for prompt in prompts:
        engine.submit(prompt.tokens, params)
    whole: list[list[Recorded]] = []
    while len(whole) < recipe.rounds:
        engine.step()
        whole = [calls for calls in recorder.rounds() if _batch_of(calls) == recipe.batch]
    return [traced(calls, recipe) for calls in whole[: recipe.rounds]]


def _batch_of(calls: Sequence[Recorded]) -> int:
    return len(calls[-1].inputs["seq_len"])


def traced(calls: Sequence[Recorded], recipe: TraceRecipe) -> TracedRound:
    """The calls of one round as data."""
    layers = [call for call in calls if call.kernel == LAYER]
    state = next(call for call in calls if call.kernel == STATE)
    softmax = next(call for call in calls if call.kernel == SOFTMAX)
    walk = next(call for call in calls if call.kernel == WALK)
    commit = calls[-1]
    given = commit.inputs
    serving = Serving(
        root_tokens=state.inputs["cumu_tokens"][:, 0].copy(),
        seq_len=given["seq_len"],
        length_limit=given["length_limit"],
        stop_tokens=given["stop_tokens"],
        req_to_token=given["req_to_token"],
        req_pool_indices=given["req_pool_indices"],
    )
    levels = tuple(
        DraftLevel(
            call.inputs["topk_probas"],
            call.inputs["topk_tokens"],
            call.inputs["input_hidden"].astype(np.float16),
        )
        for call in layers
    )
    one = TreeRound(
        recipe.top_k,
        recipe.verify,
        levels,
        serving,
        softmax.inputs["logits"],
        softmax.inputs["temperature"],
        _coins(walk.inputs["coins"], len(levels)),
    )
    return TracedRound(one, commit.results["out_tokens"], commit.results["out_indptr"])


def _coins(coins: Array, depth: int) -> Array:
    """A live engine tosses for the depth of the chosen nodes; a round for all its levels."""
    wide = np.zeros((len(coins), depth + 2), np.float32)
    wide[:, : coins.shape[1] - 1] = coins[:, :-1]
    wide[:, -1] = coins[:, -1]
    return wide


def padded(one: TreeRound, vocab: int, hidden: int) -> TreeRound:
    """The same round at a larger vocabulary and hidden size: the same tokens, more bytes."""
    logits = np.full((len(one.logits), vocab), DEAD_LOGIT, np.float32)
    logits[:, : one.logits.shape[1]] = one.logits
    levels = []
    for level in one.levels:
        rows = np.zeros((len(level.hidden), hidden), np.float16)
        rows[:, : level.hidden.shape[1]] = level.hidden
        levels.append(replace(level, hidden=rows))
    return replace(one, logits=logits, levels=tuple(levels))
