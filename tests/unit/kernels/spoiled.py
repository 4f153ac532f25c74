"""Every way a call can be wrong: what is spoiled, the error it must raise, its value and limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.errors import KernelBoundsError, KernelDataError, KernelError
from aerie.kernels.status import Status
from tests.unit.kernels.examples import EXAMPLES, Inputs

BOUNDS, DATA = KernelBoundsError, KernelDataError
INT32_MAX = 2**31 - 1
NAN, INFINITE = math.nan, math.inf


@dataclass(frozen=True)
class Spoiled:
    """One spoiled example; `status` is None where the host alone finds the mistake."""

    example: str
    name: str
    spoil: Callable[[Inputs], None]
    error: type[KernelError]
    value: object
    limit: object
    status: tuple[int, ...] | None = None

    @property
    def kernel(self) -> str:
        return EXAMPLES[self.example][0]

    def inputs(self) -> Inputs:
        inputs = EXAMPLES[self.example][1]()
        self.spoil(inputs)
        return inputs

    def __str__(self) -> str:
        return f"{self.example}: {self.name}"


def put(array: str, index: Any, value: Any) -> Callable[[Inputs], None]:
    def spoil(inputs: Inputs) -> None:
        inputs[array][index] = value

    return spoil


def put_all(*puts: tuple[str, Any, Any]) -> Callable[[Inputs], None]:
    def spoil(inputs: Inputs) -> None:
        for array, index, value in puts:
            inputs[array][index] = value

    return spoil


def use(**values: Any) -> Callable[[Inputs], None]:
    return lambda inputs: inputs.update(values)


def shorten(*arrays: str, axis: int = 0) -> Callable[[Inputs], None]:
    """Drop the last entry of an axis."""

    def spoil(inputs: Inputs) -> None:
        for array in arrays:
            whole = inputs[array]
            inputs[array] = whole.take(range(whole.shape[axis] - 1), axis=axis)

    return spoil


def widen(*arrays: str, axis: int, size: int) -> Callable[[Inputs], None]:
    """Zeros of another size along one axis."""

    def spoil(inputs: Inputs) -> None:
        for array in arrays:
            shape = list(inputs[array].shape)
            shape[axis] = size
            inputs[array] = np.zeros(shape, inputs[array].dtype)

    return spoil


def mistaken(
    example: str, name: str, spoil: Callable[[Inputs], None], value: object, limit: object
) -> Spoiled:
    """A mistake of shape or scalar: the host finds it on every device."""
    return Spoiled(example, name, spoil, BOUNDS, value, limit)


def wide_layer(inputs: Inputs) -> None:
    inputs["topk_probas"] = np.zeros((3, 22), np.float32)
    inputs["topk_tokens"] = np.zeros((3, 22), np.int64)


def many_requests(inputs: Inputs) -> None:
    inputs["verify_count"] = inputs["seq_len"] = np.ones(129, dtype=np.int64)


HOST = (
    mistaken("weighed_blocks", "no block", use(n_blocks=0), 0, 1),
    mistaken("bounded_blocks", "no position in a block", use(block_size=0), 0, 1),
    mistaken("chosen_blocks", "no window", use(n_window=0), 0, 1),
    mistaken("gathered_blocks", "more positions than the table has", use(block_size=100), 300, 29),
    mistaken("spliced_run", "nodes beyond the store", use(node_count=16), 21, 20),
    mistaken("layer", "columns no multiple of W", shorten("topk_probas", axis=1), 5, None),
    mistaken("layer", "tokens of another width", shorten("topk_tokens", axis=1), 5, 6),
    mistaken("layer", "hidden of another batch", shorten("input_hidden"), 5, 6),
    mistaken("layer", "K beyond 10", wide_layer, 11, 10),
    mistaken("layer", "no stored root", use(cumu_count=0), 0, 1),
    mistaken("store", "nodes beyond the store", use(cumu_count=7), 13, 12),
    mistaken("store", "verify_num beyond sort_scores", use(verify_num=8), 8, 7),
    mistaken("store", "mask columns", use(fed_count=6), 9, 8),
    mistaken("store", "verify_num beyond 128", use(verify_num=129), 129, 128),
    mistaken("store", "a link array of another size", shorten("side_indexs", axis=1), 11, 12),
    mistaken("deltas", "second run longer than both", use(node_top_k=8), 8, 7),
    mistaken("deltas", "first run beyond verify_num", use(verify_num=3), 4, 3),
    mistaken("deltas", "node_top_k beyond 10", use(node_top_k=11), 11, 10),
    mistaken("tree_mask", "bits of three words", shorten("ancestor_bits", axis=1), 3, 4),
    mistaken("tree_mask", "negative capacity", use(kv_capacity=-1), -1, 0),
    mistaken("tree_mask", "indptr of another batch", shorten("qo_indptr"), 3, 4),
    mistaken("probabilities", "temperature of another batch", shorten("temperature"), 4, 3),
    mistaken("coins", "a coin too few", shorten("coins", axis=1), 4, 5),
    mistaken("coins", "tree_depth beyond 127", use(tree_depth=128), 128, 127),
    mistaken("coins", "a row too few", shorten("target_probas"), 9, 10),
    mistaken("match", "a row too few", shorten("target_tokens"), 9, 10),
    mistaken("target_tokens", "positions of other rows", shorten("positions"), 9, 10),
    mistaken("target_tokens", "seed of another batch", shorten("seed"), 2, 3),
    mistaken("target_tokens", "65 stop tokens", widen("stop_tokens", axis=1, size=65), 65, 64),
    mistaken("commit", "bonus of another batch", shorten("bonus_token"), 2, 3),
    mistaken("kv_lists", "slots of other nodes", shorten("fed_slots", axis=1), 4, 5),
    mistaken("kv_lists", "capacity beyond int32", use(kv_capacity=2**31), 2**31, INT32_MAX),
    mistaken("offsets", "129 requests", many_requests, 129, 128),
    mistaken("draft_locations", "end of another batch", shorten("end"), 2, 3),
    mistaken("pool_locations", "start of another batch", shorten("start"), 2, 3),
    mistaken("node_rows", "negative capacity", use(row_capacity=-1), -1, 0),
    mistaken("node_rows", "selected of other nodes", shorten("selected", axis=1), 4, 5),
    mistaken("draft_replay", "no bucket is large enough", use(buckets=(1, 2)), 3, 2),
    mistaken("draft_replay", "a bucket beyond the buffers", use(buckets=(4, 9)), 9, 8),
    mistaken("draft_replay", "an empty bucket", use(buckets=(0, 4)), 0, 1),
    mistaken("draft_replay", "rows of another width", use(tree_width=3), 6, 9),
    mistaken("draft_replay", "hidden of another width",
             widen("static_hidden", axis=1, size=3), 3, 2),
    mistaken("extend_replay", "no bucket is large enough", use(batch_buckets=(1, 2)), 3, 2),
    mistaken("extend_replay", "a bucket beyond the buffers", use(batch_buckets=(9,)), 9, 8),
    mistaken("extend_replay", "no row bucket is large enough", use(row_buckets=(7,)), 8, 7),
    mistaken("extend_replay", "a row bucket beyond the buffers", use(row_buckets=(17,)), 17, 16),
    mistaken("active_slots", "limit of other slots", shorten("length_limit"), 3, 4),
    mistaken("active_slots", "129 rows per slot",
             widen("draft_tokens", "ancestor_bits", axis=1, size=129), 129, 128),
    mistaken("verify_rows", "positions of other rows", shorten("positions"), 8, 9),
    mistaken("prompt_rows", "starts of another batch", shorten("start"), 2, 3),
    mistaken("prompt_rows", "negative capacity", use(row_capacity=-1), -1, 0),
    mistaken("draft_rows", "no rows", use(run=0), 0, 1),
    mistaken("draft_rows", "counts of another batch", shorten("count"), 2, 3),
    mistaken("draft_levels", "lists of another batch", shorten("kv_indptr"), 3, 4),
    mistaken("draft_paths", "bits beyond 128", use(fed_count=126), 129, 128),
    mistaken("draft_children", "a map of other tokens", shorten("hot_token_id"), 299, 300),
    mistaken("draft_layer", "hidden of another batch", shorten("input_hidden"), 8, 9),
    mistaken("draft_layer", "nodes beyond the store", use(cumu_count=30), 45, 24),
    mistaken("best_nodes", "verify_num beyond 128", use(verify_num=129), 129, 128),
    mistaken("planned_nodes", "a knot too few", shorten("numbers"), 24, 23),
    mistaken("planned_nodes", "no depth at all", use(deepest=0), 0, 1),
    mistaken("noted_nodes", "notes of other rows", shorten("noted_tokens", axis=1), 6, 7),
    mistaken("moved_slots", "values of other layers", shorten("values"), 2, 3),
    mistaken("handed_over", "a report without tokens", shorten("report", axis=1), 7, 8),
    mistaken("found_path", "a suffix of nine", use(longest=9), 9, 8),
    mistaken("merged_path", "more nodes than the store holds", use(node_count=123), 250, 249),
    mistaken("tossed_coins", "a path too deep", use(tree_depth=128), 128, 127),
    mistaken("scored_tokens", "more than twenty beside each", use(top_n=21), 21, 20),
    mistaken("near_ties", "limits of another batch", shorten("limit"), 2, 3),
    mistaken("masked", "ends of another batch", shorten("ends"), 3, 2),
    mistaken("four_bits", "a bias of another layer", shorten("bias"), 4, 5),
    mistaken("eight_bits", "a bias of another layer", shorten("bias"), 4, 5),
    mistaken("eight_bit_rows", "scales of another layer", shorten("scales"), 4, 5),
    mistaken("four_bits_out", "zeros of another layer", shorten("zeros", axis=1), 4, 5),
    mistaken("eight_bits_out", "scales of another layer", shorten("scales", axis=1), 4, 5),
    mistaken("experts", "starts of another layer", shorten("starts"), 5, 6),
)  # fmt: skip


# Values that no limit describes; every other refusal is a bound that was passed.
IMPOSSIBLE = {
    Status.DUPLICATE_SIBLING,
    Status.NOT_INJECTIVE,
    Status.NOT_FINITE,
    Status.ALL_MASKED,
    Status.BROKEN_TREE,
    Status.BROKEN_LAYOUT,
    Status.BAD_PARAMETER,
    Status.DUPLICATE_REQUEST,
}


def second(code: Status) -> tuple[int, ...]:
    """Status words when request 1 of 3 is refused."""
    return (0, int(code), 0)


def refused(
    example: str,
    name: str,
    spoil: Callable[[Inputs], None],
    code: Status,
    value: int,
    limit: int,
) -> Spoiled:
    """Data that spoil request 1 alone."""
    error = DATA if code in IMPOSSIBLE else BOUNDS
    return Spoiled(example, name, spoil, error, value, limit, second(code))


S = Status
REFUSED = (
    refused("tree_mask", "a negative prefix", put("seq_len", 1, -1), S.NEGATIVE_LENGTH, -1, 0),
    refused("tree_mask", "a row beyond the table", put("req_pool_indices", 1, 5),
            S.TABLE_ROW, 5, 5),
    refused("commit", "a negative prefix", put("seq_len", 1, -1), S.NEGATIVE_LENGTH, -1, 0),
    refused("commit", "a row beyond the table", put("req_pool_indices", 1, 5),
            S.TABLE_ROW, 5, 5),
    refused("kv_lists", "a negative prefix", put("seq_len", 1, -1), S.NEGATIVE_LENGTH, -1, 0),
    refused("kv_lists", "a row beyond the table", put("req_pool_indices", 1, 5),
            S.TABLE_ROW, 5, 5),
    refused("draft_locations", "a negative start", put("start", 1, -1), S.OUT_OF_RANGE, -1, 20),
    refused("draft_locations", "a row beyond the table", put("req_pool_indices", 1, 5),
            S.TABLE_ROW, 5, 5),
    refused("layer", "a draft id beyond the map", put("topk_tokens", (1, 2), 20),
            S.OUT_OF_RANGE, 20, 20),
    refused("layer", "a negative draft id", put("topk_tokens", (1, 5), -1),
            S.OUT_OF_RANGE, -1, 20),
    refused("store", "a frontier id not stored yet", put("frontier_indexs", (1, 0), 4),
            S.OUT_OF_RANGE, 4, 4),
    refused("store", "a sort index beyond the layer", put("sort_layer_indices", (1, 4), 6),
            S.CANDIDATE, 6, 6),
    refused("store", "two siblings with one token", put("topk_tokens", (1, 4), 53),
            S.DUPLICATE_SIBLING, 53, 1),
    refused("tree_mask", "a prefix beyond the table", put("seq_len", 1, 16),
            S.OUT_OF_RANGE, 21, 20),
    refused("probabilities", "NaN logits", put("logits", (4, 3), NAN), S.NOT_FINITE, 4, 0),
    refused("probabilities", "infinite logits", put("logits", (7, 0), INFINITE),
            S.NOT_FINITE, 7, 0),
    refused("probabilities", "a masked row", put("logits", 5, -INFINITE), S.ALL_MASKED, 5, 1),
    refused("probabilities", "NaN temperature", put("temperature", 1, NAN),
            S.BAD_PARAMETER, 0, 0),
    refused("coins", "two siblings with one token", put("draft_tokens", 5, 3),
            S.DUPLICATE_SIBLING, 3, 1),
    refused("coins", "a token beyond the vocabulary", put("draft_tokens", 7, 11),
            S.OUT_OF_RANGE, 11, 11),
    refused("coins", "NaN probability", put("target_probas", (6, 2), NAN), S.NOT_FINITE, 3, 0),
    refused("coins", "negative probability", put("target_probas", (3, 2), -0.5),
            S.NOT_FINITE, 0, 0),
    refused("coins", "a coin of one", put("coins", (1, 2), 1.0), S.BAD_PARAMETER, 2, 1),
    refused("coins", "a link back to the root", put("first_child_row", 7, 0),
            S.BROKEN_TREE, 4, 10),
    refused("match", "two siblings with one token", put("draft_tokens", 5, 3),
            S.DUPLICATE_SIBLING, 3, 1),
    refused("target_tokens", "NaN logits", put("logits", (3, 10), NAN), S.NOT_FINITE, 3, 0),
    refused("target_tokens", "a masked row", put("logits", 6, -INFINITE), S.ALL_MASKED, 6, 1),
    refused("target_tokens", "a path token beyond the vocabulary", put("draft_tokens", 6, 11),
            S.OUT_OF_RANGE, 11, 11),
    refused("commit", "more accepted than the tree is deep", put("accept_count", 1, 4),
            S.TOO_DEEP, 4, 3),
    refused("commit", "accepted rows that fall", put("accept_index", (1, 2), 1),
            S.BROKEN_TREE, 4, 10),
    refused("commit", "rows beyond the table", put("seq_len", 1, 16), S.OUT_OF_RANGE, 21, 20),
    refused("kv_lists", "a prefix beyond the table", put("seq_len", 1, 21),
            S.OUT_OF_RANGE, 21, 20),
    refused("offsets", "129 rows", put("verify_count", 1, 129), S.OUT_OF_RANGE, 129, 128),
    refused("offsets", "a negative prefix", put("seq_len", 1, -1), S.NEGATIVE_LENGTH, -1, 0),
    refused("draft_locations", "a span beyond the table", put("end", 1, 21),
            S.OUT_OF_RANGE, 21, 20),
    refused("draft_locations", "more slots than given", put("end", 1, 6), S.SLOT_CAPACITY, 6, 5),
    refused("draft_locations", "a negative slot", put("out_cache_loc", (1, 3), -2),
            S.BROKEN_LAYOUT, -2, 0),
    refused("pool_locations", "a negative slot", put("out_cache_loc", 5, -2),
            S.BROKEN_LAYOUT, -2, 0),
    refused("draft_layer", "a frontier id not stored yet", put("frontier_indexs", (1, 0), 99),
            S.OUT_OF_RANGE, 99, 6),
    refused("draft_layer", "two siblings with one token", put("topk_tokens", (1, slice(3, 5)), 53),
            S.DUPLICATE_SIBLING, 53, 1),
    refused("node_rows", "more nodes than the store holds", put("node_count", 1, 6),
            S.OUT_OF_RANGE, 6, 5),
    refused("node_rows", "a negative prefix", put("seq_len", 1, -1), S.NEGATIVE_LENGTH, -1, 0),
    refused("node_rows", "the root is not chosen", put("selected", (1, 0), False),
            S.BROKEN_TREE, 0, 0),
    refused("node_rows", "a parent is not chosen", put("selected", (1, 3), False),
            S.BROKEN_TREE, 4, 0),
    refused("node_rows", "two siblings with one token", put("cumu_tokens", (1, 2), 6),
            S.DUPLICATE_SIBLING, 6, 1),
)  # fmt: skip

# Refusals of other requests than the second alone.
WIDER = (
    Spoiled("layer", "a map that is not injective", put("hot_token_id", 5, 0), DATA, 0, 1,
            (9, 9, 9)),
    Spoiled("tree_mask", "slots beyond the list", use(kv_capacity=20), BOUNDS, 21, 20, (0, 0, 3)),
    Spoiled("tree_mask", "bytes beyond the mask", use(mask_capacity=9), BOUNDS, 10, 9, (0, 0, 4)),
    Spoiled("kv_lists", "slots beyond the list", use(kv_capacity=33), BOUNDS, 34, 33, (0, 0, 3)),
    Spoiled("pool_locations", "more slots than given", put("end", 2, 11), BOUNDS, 12, 11,
            (0, 0, 5)),
    Spoiled("pool_locations", "two requests on one row", put("req_pool_indices", 1, 4), DATA, 4, 1,
            (15, 15, 0)),
    Spoiled("draft_locations", "two requests on one row", put("req_pool_indices", 1, 4), DATA, 4,
            1, (15, 15, 0)),
    Spoiled("node_rows", "rows beyond the buffers", use(row_capacity=11), BOUNDS, 12, 11,
            (0, 0, 5)),
    Spoiled("offsets", "a mask beyond int32",
            put_all(("verify_count", 2, 128), ("seq_len", 2, 2**28)), BOUNDS,
            10 + 128 * (2**28 + 128) // 8 - 3, INT32_MAX, (0, 0, 6)),
    Spoiled("extend_replay", "a request without rows",
            put_all(("extend_len", 1, 5), ("extend_len", 2, 0)), BOUNDS, 0, 7, (0, 0, 1)),
    Spoiled("extend_replay", "lengths that do not add up", put("extend_len", 1, 3), DATA, 6, 7,
            (13, 13, 13)),
    Spoiled("probabilities", "rows that fall", put("qo_indptr", 1, 9), DATA, 8, 10, (0, 13, 13)),
)  # fmt: skip

ALL = (*HOST, *REFUSED, *WIDER)
BY_DATA = (*REFUSED, *WIDER)
