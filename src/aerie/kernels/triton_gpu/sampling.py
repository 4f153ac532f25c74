"""Triton `sample_target_tokens`: every option in one sequence of launches, without a sort.

Nothing in the sequence depends on data, so that one graph serves any mix of requests: options are
read from the columns of a row's request, and programs with nothing to do end at once. The noise of
a token is made where it is added and never stored.

| launch | programs | works for | bytes of a row of V ids |
|---|---|---|---|
| bias | request x part | logit_bias | 4V a request: whether it holds anything |
| change | row x part | penalties, bias, floor | 4V; counts 8V, bias 4V a request; 4V written |
| scan | row x part | all | 4V |
| choose | request | all | little |
| select, gather, list | row, row x part, row | top_k | V/32; 4V of the blocks with a best id |
| test, four times | row x part | top_p, min_p | 4V of the blocks with ids before the candidate |
| exact | row | what is still open | 4V a pass, six passes at least after a long list |

`scan` finds the best of every (row, part of the vocabulary), with noise and before any filter;
`choose` joins the parts, refuses, and has the tokens of rows without filters. The rest is told in
`sampling_filters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.verdict import Sampled, TargetTokens
from aerie.kernels.triton_gpu.launch import block, launch, words
from aerie.kernels.triton_gpu.sampling_filters import run_filters
from aerie.kernels.triton_gpu.sampling_scan import choose_kernel, scan_kernel
from aerie.kernels.triton_gpu.sampling_scores import bias_kernel, change_kernel

# Enough programs for every multiprocessor of a large card several times over.
PROGRAMS = 512
MOST_PARTS = 64
VOCAB_BLOCK = 2048


@dataclass(frozen=True)
class Tiles:
    """Sizes of the launches; tests make them small, so that few ids are many blocks."""

    vocab: int = VOCAB_BLOCK  # ids a program looks at together
    group: int = 128  # ids whose maximum is kept for top_k
    listed: int = 1024  # ids that one program weighs for top_k, at most 2^11
    n_tests: int = 4  # candidates of top_p that the whole chip tries
    warps: int = 4  # of programs that look at a part of a row


TILES = Tiles()

_FILTERS = ("top_k", "top_p", "min_p")
_CHANGES = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "floor_position",
)  # fmt: skip


def parts_of(n_rows: int, vocab: int, size: int = VOCAB_BLOCK) -> tuple[int, int]:
    """Into how many parts a row is cut, and how long one is: a multiple of the block."""
    n_blocks = triton.cdiv(vocab, size)
    n_parts = max(1, min(n_blocks, MOST_PARTS, PROGRAMS // max(n_rows, 1)))
    blocks_each = triton.cdiv(n_blocks, n_parts)
    return triton.cdiv(n_blocks, blocks_each), blocks_each * size


@takes_call
def sample_target_tokens(call: TargetTokens) -> dict[str, Tensor]:
    """The target's own token of every row; work that no argument asks for is not done."""
    n_rows, batch = call.logits.shape[0], call.temperature.shape[0]
    found = words(batch, call.logits.device)
    named = prepared(call) | found
    if batch and n_rows:
        change(named)
        _scan(named)
    if batch:
        launch(choose_kernel, (batch,), named)
    if named["kinds"] is not None and batch and n_rows:
        run_filters(named)
    tokens = named["tokens"]
    return {"target_tokens": tokens if batch else tokens.fill_(-1), **found}


def prepared(call: Sampled) -> dict[str, Any]:
    """What the launches of a call take, by name: arrays, sizes, room between launches."""
    arrays = {port.name: getattr(call, port.name) for port in Sampled.ports}
    if call.ancestor_bits is not None:
        arrays["ancestor_bits"] = call.ancestor_bits.view(torch.int32)
    sizes = _sizes(call)
    device = call.logits.device
    return {
        **{name: array if array is None else array.contiguous() for name, array in arrays.items()},
        **sizes,
        **_between_launches(sizes, call),
        "tokens": torch.empty(sizes["n_rows"], dtype=torch.int64, device=device),
    }


def _sizes(call: Sampled) -> dict[str, int]:
    """Numbers of the launches, by the names that kernels have for them."""
    (n_rows, vocab), batch = call.logits.shape, call.temperature.shape[0]
    n_parts, part_size = parts_of(n_rows, vocab, TILES.vocab)
    n_stops = 0 if call.stop_tokens is None else call.stop_tokens.shape[1]
    n_groups = triton.cdiv(vocab, TILES.group)
    return {
        "n_rows": n_rows, "vocab": vocab, "batch": batch, "n_stops": n_stops, "n_parts": n_parts,
        "part_blocks": part_size // TILES.vocab, "n_blocks": triton.cdiv(vocab, TILES.vocab),
        "n_groups": n_groups, "n_tests": TILES.n_tests, "V": TILES.vocab, "G": TILES.group,
        "L": TILES.listed, "M": block(n_groups), "S": block(n_stops), "B": MAX_BATCH,
        "P": MOST_PARTS, "Q": MAX_VERIFY, "warps": TILES.warps,
    }  # fmt: skip


def _between_launches(sizes: dict[str, int], call: Sampled) -> dict[str, Tensor | None]:
    """Room for what one launch writes and another reads; None for what this call has not."""
    device, is_seeded = call.logits.device, call.seed is not None
    # Without a seed every row is greedy, and greedy rows are not filtered.
    is_listed = is_seeded and call.top_k is not None
    is_tested = is_seeded and (call.top_p is not None or call.min_p is not None)
    is_filtered = is_listed or is_tested
    is_changed = any(getattr(call, name) is not None for name in _CHANGES)
    n_rows, n_parts = sizes["n_rows"], sizes["n_parts"]
    rows, parts = (n_rows,), (n_rows, n_parts)
    tests, lists = (sizes["n_tests"], n_rows, n_parts), (n_rows, sizes["L"])
    f32, i32 = torch.float32, torch.int32
    wanted = {
        "part_values": (True, parts, f32),
        "part_ids": (True, parts, i32),
        "part_bad": (True, parts, i32),
        "scores": (is_changed, (n_rows, sizes["vocab"]), f32),
        "changed": (is_changed, rows, i32),
        "biased": (is_changed, (sizes["batch"], n_parts), i32),
        "part_peaks": (is_filtered, parts, f32),
        "part_masses": (is_filtered, parts, f32),
        "tops": (is_filtered, (n_rows, sizes["n_blocks"]), f32),
        "kinds": (is_filtered, rows, i32),
        "peaks": (is_filtered, rows, f32),
        "totals": (is_filtered, rows, f32),
        "candidates": (is_filtered, (sizes["n_tests"], n_rows), i32),
        "masses": (is_tested, tests, f32),
        "values": (is_tested, tests, f32),
        "ids": (is_tested, tests, i32),
        "groups": (is_listed, (n_rows, sizes["n_groups"]), f32),
        "bounds": (is_listed, rows, i32),
        "list_counts": (is_listed, rows, i32),
        "list_values": (is_listed, lists, f32),
        "list_ids": (is_listed, lists, i32),
    }
    return {
        name: torch.empty(shape, dtype=dtype, device=device) if is_there else None
        for name, (is_there, shape, dtype) in wanted.items()
    }


def change(named: dict[str, Any]) -> None:
    """The first passes over every row: what requests change."""
    by_part = (named["n_rows"], named["n_parts"])
    if named["logit_bias"] is not None:
        launch(bias_kernel, (named["batch"], named["n_parts"]), named)
    if named["changed"] is not None:
        # The card rounds the product of a penalty and a count before it is subtracted.
        launch(change_kernel, by_part, named, enable_fp_fusion=False, num_warps=8)


def _scan(named: dict[str, Any]) -> None:
    """The best of each part."""
    by_part = (named["n_rows"], named["n_parts"])
    if named["kinds"] is None:
        named = {**named, **dict.fromkeys(_FILTERS)}
    launch(scan_kernel, by_part, named, num_warps=named["warps"])
