"""Cases of text paths: R13 texts with and without repeats, R14 paths into and out of trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import cycle
from aerie.kernels.cases.forests import plant
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, cast, put, setting
from aerie.kernels.cases.table import Array, Inputs, Rng, cases, row
from aerie.kernels.cases.trees import size_of

FOUND, MERGED = "find_text_path", "merge_text_path"


def _texts(
    rng: Rng,
    batch: int = 4,
    lengths: int | Sequence[int] = (40, 7, 1, 23),
    vocab: int = 4,
    looks: tuple[int, int, int] = (3, 6, 64),
    width: int = 50,
) -> Inputs:
    """R13 inputs of tokens below `vocab`; `looks` is the suffix, the path and how far back."""
    longest, path_length, searched = looks
    n_rows = batch + 2
    return {
        "text": rng.integers(0, vocab, (n_rows, width)).astype(np.int32),
        "req_pool_indices": rng.permutation(n_rows)[:batch].astype(np.int64),
        "text_len": cycle(lengths, batch, "int64"),
        "longest": longest,
        "path_length": path_length,
        "searched": searched,
    }


def _written(*tokens: int) -> Spoil:
    """All texts become these tokens, again and again."""

    def spoil(inputs: Inputs) -> None:
        inputs["text"][:] = np.resize(np.array(tokens, np.int32), inputs["text"].shape[1])

    return spoil


_FOUND_ROWS = (
    row("b4_mixed", "mixed"),
    row("b1_smallest", "smallest", batch=1, lengths=1, looks=(1, 1, 1), width=1),
    row("b1_two_tokens", "two", batch=1, lengths=2, vocab=1),
    row("b1_two_other_tokens", "two new", put("text", np.s_[:, :2], [3, 2]), batch=1, lengths=2),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b128_binary", "batch_limit ties", batch=128, vocab=2, lengths=(50, 13), looks=(8, 5, 64)),
    row("b3_no_text", "none", batch=3, lengths=0),
    row("b3_nothing_twice", "new", _written(*range(50)), batch=3, lengths=(50, 31, 2)),
    row("b3_always_the_same", "ties all_equal", _written(7), batch=3, lengths=(50, 9, 2)),
    row("b3_every_other", "ties", _written(1, 2), batch=3, lengths=(50, 9, 2)),
    row("b3_period_5", "ties prime", _written(1, 2, 3, 4, 5), batch=3, lengths=(50, 11, 6)),
    row("b3_longer_wins_over_later", "longest",
        _written(5, 6, 7, 1, 2, 9, 7, 3, 8, 6, 7, 4, 9, 9, 5, 6, 7), batch=3, lengths=17),
    row("b3_suffix_1", "suffix_1", batch=3, looks=(1, 6, 64)),
    row("b3_suffix_8", "suffix_limit", batch=3, vocab=2, looks=(8, 6, 64), lengths=(50, 44, 37)),
    row("b3_suffix_of_the_whole_text", "suffix_edge", _written(4), batch=3, lengths=(3, 4, 9),
        looks=(8, 4, 64)),
    row("b3_path_1", "path_1", batch=3, looks=(3, 1, 64)),
    row("b3_path_127", "path_limit", batch=3, looks=(3, 127, 64)),
    row("b3_path_to_the_end", "path_edge", _written(1, 2, 3), batch=3, lengths=(8, 5, 4),
        looks=(4, 9, 64)),
    row("b3_searched_1", "searched_1", batch=3, looks=(3, 6, 1)),
    row("b3_searched_2", "searched_2", batch=3, vocab=2, looks=(3, 6, 2)),
    row("b3_searched_cuts_the_match", "searched_edge", _written(1, 2, 3, 4, 5, 6, 7, 8, 9),
        batch=3, lengths=(20, 19, 30), looks=(4, 6, 11)),
    row("b3_searched_exact", "searched_edge exact", _written(1, 2, 3, 4, 5, 6, 7, 8, 9), batch=3,
        lengths=(20, 19, 30), looks=(4, 6, 13)),
    row("b3_whole_table", "full_table", batch=3, lengths=50),
    row("b3_page_edges", "page", batch=3, lengths=(15, 16, 17)),
    row("b2_long", "long_context", batch=2, lengths=(4097, 9000), width=9000, vocab=12,
        looks=(8, 16, 4096)),
    row("b1_searched_65536", "long_context searched_limit", batch=1, lengths=3000, width=3000,
        vocab=9, looks=(8, 16, 65_536)),
    row("b3_block_edges", "block", batch=3, lengths=(1024, 1025, 2049), width=2050, vocab=30,
        looks=(8, 7, 2048)),
    row("b2_large_tokens", "tokens_edge", put("text", np.s_[:, ::3], 2**31 - 1), batch=2),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("suffix_0", "below_suffix", BOUNDS, setting(longest=0)),
    row("suffix_9", "beyond_suffix", BOUNDS, setting(longest=9)),
    row("path_128", "beyond_path", BOUNDS, setting(path_length=128)),
    row("searched_65537", "beyond_searched", BOUNDS, setting(searched=65_537)),
    row("texts_65537", "beyond_table", BOUNDS, blank("text", 65_537, 1)),
    row("width_2097153", "beyond_width", BOUNDS, blank("text", 1, 2_097_153)),
    row("lengths_of_another_batch", "wrong_shape", BOUNDS, blank("text_len", 3)),
    row("text_int64", "wrong_dtype", DTYPE, cast("text", "int64")),
    row("lengths_int32", "wrong_dtype int32", DTYPE, cast("text_len", "int32")),
)  # fmt: skip

# How far a path runs inside the tree, and how many tokens it has.
_WAYS: dict[str, tuple[int, int]] = {
    "new": (0, 4),
    "inside": (2, 2),
    "leaves": (2, 5),
    "leaves_at_once": (1, 5),
    "none": (0, 0),
    "one_new": (0, 1),
    "one_inside": (1, 1),
    "to_a_leaf": (99, 99),
    "below_a_leaf": (99, 6),
}


def _path(rng: Rng, tree: Sequence[Array], way: str, longest: int) -> list[int]:
    """Tokens that walk down a random way for a while, then tokens that are nowhere."""
    tokens, parents, used = tree
    n_inside, n_tokens = _WAYS[way]
    node = 0
    path: list[int] = []
    while len(path) < min(n_inside, longest):
        children = np.nonzero((parents == node) & used)[0]
        if not len(children):
            break
        node = int(rng.choice(children))
        path.append(int(tokens[node]))
    if way == "to_a_leaf":
        return path
    return [*path, *(90_000 + rng.integers(0, 9, 200)).tolist()][: min(n_tokens, longest)]


def _merging(
    rng: Rng,
    ways: Sequence[str] = tuple(_WAYS),
    batch: int | None = None,
    shape: str = "random12",
    longest: int = 6,
    kind: str = "usual",
    confidence: float | Sequence[float] = (0.6, 1.0, 0.25),
) -> Inputs:
    """R14 inputs: one path of each way, in turn."""
    n_trees = len(ways) if batch is None else batch
    count = size_of(shape)
    forest = plant(rng, [shape] * n_trees, kind, size=count)
    wide = np.full((n_trees, longest), 5, np.int64)
    tokens, depths, parents = (
        np.concatenate((part, wide), axis=1)
        for part in (forest.tokens, forest.depths, forest.parents)
    )
    scores = np.concatenate((forest.scores, wide.astype(np.float32) / 8), axis=1)
    path_tokens = np.full((n_trees, longest), -1, np.int64)
    path_len = np.zeros(n_trees, np.int64)
    for b in range(n_trees):
        used = np.arange(count + longest) < count
        way = _path(rng, (tokens[b], parents[b], used), ways[b % len(ways)], longest)
        path_tokens[b, : len(way)] = way
        path_len[b] = len(way)
    return {
        "cumu_tokens": tokens,
        "cumu_scores": scores,
        "cumu_deltas": depths,
        "prev_indexs": parents,
        "path_tokens": path_tokens,
        "path_len": path_len,
        "confidence": cycle(confidence, n_trees, "float32"),
        "node_count": count,
    }


def _roomy(inputs: Inputs) -> None:
    """Entries behind the longest path, which stay as they are."""
    for name in ("cumu_tokens", "cumu_scores", "cumu_deltas", "prev_indexs"):
        inputs[name] = np.pad(inputs[name], ((0, 0), (0, 7)), constant_values=5)


def _twins(inputs: Inputs) -> None:
    """Two children of the root carry the path's first token; the lower id is walked over."""
    inputs["cumu_tokens"][:, 1:3] = 44
    inputs["path_tokens"][:, 0] = 44
    inputs["path_len"][:] = np.maximum(inputs["path_len"], 1)


def _strangers(inputs: Inputs) -> None:
    """A child of the root carries the path's first token, but was left over from another tree."""
    _twins(inputs)
    inputs["cumu_deltas"][:, 1] = 3
    inputs["cumu_scores"][:, 1] = 0


_MERGED_ROWS = (
    row("every_way", "mixed"),
    *(row(f"b1_{way}", f"one {way}", ways=(way,)) for way in _WAYS),
    row("b1_smallest", "smallest", ways=("new",), shape="chain1", longest=1),
    row("b9_roots_only", "root_only", shape="chain1"),
    row("b9_chain", "chain", shape="chain8", longest=9),
    row("b9_star", "star", shape="star8"),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b128_none", "batch_limit none", batch=128, ways=("none",)),
    row("b9_path_127", "path_limit", longest=127, shape="chain20"),
    row("b3_path_of_127_new", "path_limit new", ways=("below_a_leaf",), batch=3, longest=127,
        shape="chain122"),
    row("b9_nothing_scored", "p_zero revived", kind="zero"),
    row("b9_some_without_score", "p_zero mixed", kind="some_zero", shape="random30"),
    row("b9_certain", "p_one ties", kind="ones", confidence=1.0),
    row("b9_worthless", "confidence_0", confidence=0.0),
    row("b9_tiny", "p_tiny", kind="tiny", confidence=1e-3, longest=40),
    row("b9_room", "room", _roomy),
    row("b9_twins", "twins", _twins, shape="star8"),
    row("b9_left_over_child", "left_over", _strangers, shape="star8"),
    row("b1_nodes_4096", "capacity_limit", ways=("leaves",), shape="random4090"),
    row("b9_prime", "prime", shape="random31", longest=11),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("nodes_4097", "beyond_nodes", BOUNDS, ways=("leaves",), shape="chain4091"),
    row("path_128", "beyond_path", BOUNDS, ways=("new",), longest=128),
    row("count_4097", "beyond_count", BOUNDS, setting(node_count=4097)),
    row("count_0", "below_count", BOUNDS, setting(node_count=0)),
    row("no_room", "beyond_room", BOUNDS, setting(node_count=13)),
    row("depths_of_other_nodes", "wrong_shape", BOUNDS, blank("cumu_deltas", 9, 17)),
    row("confidence_float64", "wrong_dtype", DTYPE, cast("confidence", "float64")),
    row("path_int32", "wrong_dtype int32", DTYPE, cast("path_tokens", "int32")),
)  # fmt: skip

TEXT_CASES = (
    *cases(FOUND, _texts, _FOUND_ROWS),
    *cases(MERGED, _merging, _MERGED_ROWS),
)
