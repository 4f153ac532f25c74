"""Counts what fusion and levers save: the tree kernels (scope T), and a draft round (scope D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aerie.bench.provenance import provenance
from aerie.errors import UsageError
from aerie.fpga.counted import ByteCounter
from aerie.fpga.draft_round import (
    DraftRound,
    FusedChoice,
    draft_fused,
    draft_unfused,
    load_attention,
)
from aerie.fpga.draft_weights import DraftWeights, made_up_weights
from aerie.fpga.levers import (
    RANK_SHARE,
    Study,
    card_weights,
    hidden_covariance,
    lever_choices,
    run_fused_lever,
    run_whole_head,
)
from aerie.fpga.scope_t import count_cell
from aerie.fpga.trace import TraceRecipe, record
from aerie.perf.point import find_sizes

BATCHES, VERIFIES = (1, 8, 32), (8, 32, 64)
GEOMETRY = "eagle4"
VERDICT = ("convert_logits_to_probas", "draft_tree_reject_sample", "update_verify_result")
# Ids that stay when a draft's vocabulary is cut: all, a half, a quarter (128K to 32K).
VOCABULARY_SHARES = (2, 4)
Say = Callable[[str], None]


@dataclass(frozen=True)
class ByteStudy:
    """How much is run."""

    rounds: int = 3  # of a cell
    acceptance: Study = field(default_factory=Study)
    geometry: str = GEOMETRY


def study_trees(study: ByteStudy, say: Say) -> list[dict[str, Any]]:
    """Every cell by both rules, at the sizes of the built-in pair and of the geometry."""
    sizes = find_sizes(study.geometry)
    own = find_sizes("built-in")
    found = []
    for batch in BATCHES:
        for verify in VERIFIES:
            traces = record(TraceRecipe(batch, verify, study.rounds))
            for pair in ((own.target_vocab, own.hidden), (sizes.target_vocab, sizes.hidden)):
                for by_coins in (True, False):
                    cell = count_cell(traces, pair, by_coins)
                    found.append(cell)
                    rule, factor = cell["rule"], cell["factor"]
                    say(f"T {batch} x {verify} at {pair[0]}, {rule}: {factor:.2f}")
    return found


def study_draft(study: ByteStudy, cell: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Scope D at batch 1: acceptance with drafts from C-simulation, bytes on a round at full size.

    A line is a way to draft: its bytes of a round with the verdict's share, the factor to the
    unfused round and to the line before, and tokens a round against the fused 16-bit head.
    """
    weights = card_weights(study.acceptance, hidden_covariance(study.acceptance))
    runs = []
    for name, choice in lever_choices():
        run = run_fused_lever(study.acceptance, weights, choice, keep=3)
        runs.append((name, choice, run))
        say(f"D {name}: {run.accepted.length:.3f} tokens a round")
    whole = run_whole_head(study.acceptance)
    vocab = weights.shape.vocab
    cuts = {
        vocab // share: run_whole_head(study.acceptance, vocab // share).against(whole)[0]
        for share in VOCABULARY_SHARES
    }
    verdict = _verdict(cell)
    one, full = full_size(runs[0][2].rounds[-1], study.geometry)
    counter = ByteCounter()
    draft_unfused(one, full, counter.call)
    unfused = {name: moved.total for name, moved in counter.by_top().items()}
    before = sum(unfused.values()) + verdict[0]
    say(f"D unfused: {before / 1e6:.1f} MB")
    base, lines, last = runs[0][2].accepted, list[dict[str, Any]](), before
    for name, choice, run in runs:
        n_bytes = fused_bytes(one, full, choice) + verdict[1]
        say(f"D {name}: {n_bytes / 1e6:.1f} MB, {before / n_bytes:.2f}")
        lines.append(
            {
                "name": name,
                "n_bytes": n_bytes,
                "factor": round(before / n_bytes, 4),
                "step": round(last / n_bytes, 4),
                "length": round(run.accepted.length, 4),
                "acceptance": [round(ratio, 4) for ratio in run.accepted.against(base)],
            }
        )
        last = n_bytes
    return {
        "kind": "c-sim",
        "unfused": unfused,
        "unfused_bytes": before,
        "verdict_bytes": {"unfused": verdict[0], "fused": verdict[1]},
        "fusion": lines[0]["factor"],
        "final": lines[-1]["factor"],
        "acceptance": lines[-1]["acceptance"][0],
        "lines": lines,
        "float32_length": round(whole.length, 4),  # of the head as it was trained
        "vocabulary_cuts": {str(ids): round(ratio, 4) for ids, ratio in cuts.items()},
    }


def _verdict(cell: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of K5 to K7 a round, unfused and fused."""
    before = sum(cell["unfused"][name] for name in VERDICT)
    return before // cell["rounds"], cell["fused"]["fused_verdict"] // cell["rounds"]


def fused_bytes(one: DraftRound, weights: DraftWeights, choice: FusedChoice) -> int:
    """What a round moves; the resident block was brought before the first."""
    counter = ByteCounter()
    if choice.is_resident:
        load_attention(weights, ByteCounter().call)
    draft_fused(one, weights, choice, counter.call)
    return sum(moved.total for moved in counter.by_top().values())


def full_size(one: DraftRound, geometry: str) -> tuple[DraftRound, DraftWeights]:
    """The first request of a live round at a geometry's sizes: same rows, positions and tree."""
    sizes = find_sizes(geometry)
    weights = made_up_weights(sizes, int(sizes.hidden * RANK_SHARE), n_positions=4096)
    shape = weights.shape
    rng = np.random.default_rng(0)
    first = slice(0, int(one.row_indptr[1]))
    n_rows = int(one.row_indptr[1])
    serving = one.serving
    length = int(serving.seq_len[0]) + one.verify_num + 64
    cache = np.zeros((length + 1, shape.kv_width), np.float16)
    return (
        replace(
            one,
            features=rng.standard_normal((n_rows, shape.features)).astype(np.float16),
            new_tokens=one.new_tokens[first],
            new_positions=one.new_positions[first],
            row_indptr=one.row_indptr[:2],
            serving=replace(
                serving,
                root_tokens=serving.root_tokens[:1],
                seq_len=serving.seq_len[:1],
                length_limit=serving.length_limit[:1],
                stop_tokens=serving.stop_tokens[:1],
                req_to_token=(1 + np.arange(length, dtype=np.int32)).reshape(1, -1),
                req_pool_indices=np.zeros(1, np.int64),
            ),
            keys=cache,
            values=cache.copy(),
        ),
        weights,
    )


def tree_record(study: ByteStudy, found: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Scope T for the record; by the rule of coins is the gate."""
    origin = provenance("cpu")
    cells = study_trees(study, say)
    by_coins = [cell for cell in cells if cell["rule"] == "coins"]
    return {
        "kind": "c-sim",
        "fusion": min(cell["factor"] for cell in by_coins),
        "rounds": study.rounds,
        "geometry": study.geometry,
        "scope_t": by_coins,
        "scope_t_match": [cell for cell in cells if cell["rule"] != "coins"],
        "provenance": origin,
    }


def draft_record(study: ByteStudy, found: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Scope D for the record; the verdict's share is that of scope T's cell at batch 1."""
    if "scope_t" not in found:
        raise UsageError("scope D stands on scope T: count it first, with --scope t,d")
    origin = provenance("cpu")
    vocab = find_sizes(study.geometry).target_vocab
    cell = next(
        one
        for one in found["scope_t"]
        if (one["batch"], one["verify"], one["vocab"]) == (1, study.acceptance.verify, vocab)
    )
    made, prompts = study_draft(study, cell, say), study.acceptance.n_prompts
    return {"scope_d": {**made, "prompts": prompts, "provenance": origin}}
