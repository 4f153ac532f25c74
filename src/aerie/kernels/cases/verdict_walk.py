"""Cases of K6: trees walked with coins and with the target's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, both, cast, put, setting
from aerie.kernels.cases.table import Array, Inputs, Rng, Row, cases, row
from aerie.kernels.cases.trees import Layout, lay_out

KERNEL = "draft_tree_reject_sample"

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def _wanted(rng: Rng, layout: Layout, accept: str) -> list[list[int]]:
    """The path each request is to accept: nothing, one child, all the way, or a mix."""
    paths = []
    for request, n_rows in enumerate(layout.rows):
        depths = layout.depths[layout.span(request)]
        deepest = int(depths.max()) if n_rows else 0
        depth = {
            "none": 0,
            "one": 1,
            "all": deepest,
            "mixed": request % (deepest + 1),
            "any": int(rng.integers(deepest + 1)),
        }[accept]
        paths.append(layout.path(rng, request, depth))
    return paths


def _links(layout: Layout, depth: int | None) -> Inputs:
    deepest = int(layout.depths.max(initial=0))
    return {
        "qo_indptr": layout.indptr,
        "draft_tokens": layout.tokens,
        "first_child_row": layout.first_child,
        "next_sibling_row": layout.next_sibling,
        "tree_depth": deepest if depth is None else depth,
    }


def _match(
    rng: Rng,
    shapes: Sequence[str],
    accept: str = "mixed",
    batch: int | None = None,
    depth: int | None = None,
    n_spare: int = 0,
) -> Inputs:
    """K6 inputs, rule match: the target's tokens lead along the wanted paths and off the tree."""
    layout = lay_out(rng, shapes, n_spare=n_spare, batch=batch)
    targets = rng.integers(0, 32_000, len(layout.tokens))
    for request, path in enumerate(_wanted(rng, layout, accept)):
        start = int(layout.indptr[request])
        for node, child in pairwise(path):
            targets[start + node] = layout.tokens[start + child]
        if path:
            # Past every id of the vocabulary, so certainly no child's token.
            targets[start + path[-1]] = 50_000 + request
    return {**_links(layout, depth), "target_tokens": targets}


def _coins(
    rng: Rng,
    shapes: Sequence[str],
    accept: str = "mixed",
    batch: int | None = None,
    vocab: int = 50,
    depth: int | None = None,
    n_spare: int = 0,
) -> Inputs:
    """K6 inputs, rule coins: each coin lies mid-way in the interval that makes the wanted step."""
    layout = lay_out(rng, shapes, vocab, n_spare, batch)
    raised = np.exp(rng.standard_normal((len(layout.tokens), vocab)) * 2)
    probas = (raised / raised.sum(1, keepdims=True)).astype(np.float32)
    inputs = _links(layout, depth)
    coins = rng.random((len(layout.rows), inputs["tree_depth"] + 2), dtype=np.float32)
    for request, path in enumerate(_wanted(rng, layout, accept)):
        for column, node in enumerate(path[: inputs["tree_depth"] + 1]):
            step = path[column + 1] if column + 1 < len(path) else None
            coins[request, column] = _coin(layout, probas, (request, node), step)
    return {**inputs, "target_probas": probas, "coins": coins}


def _coin(layout: Layout, probas: Array, at: tuple[int, int], step: int | None) -> float:
    request, node = at
    start = int(layout.indptr[request])
    low = 0.0
    for child in layout.children(request, node):
        mass = float(probas[start + node, layout.tokens[start + child]])
        if child == step:
            return low + mass / 2
        low += mass
    return min((low + 1) / 2, float(BELOW_ONE))


def _dyadic(rng: Rng, probas: Sequence[float], coins: Sequence[Sequence[float]]) -> Inputs:
    """K6 inputs, rule coins: a root with children of tokens 2 and 5, one row of exact numbers.

    Each request tosses its own line of `coins` (first step, step below a child, bonus).
    """
    layout = lay_out(rng, ["star3"] * len(coins), len(probas))
    layout.tokens[:] = np.tile([0, 2, 5], len(coins))
    return {
        **_links(layout, 1),
        "target_probas": np.tile(np.array(probas, np.float32), (len(layout.tokens), 1)),
        "coins": np.array(coins, np.float32).reshape(-1, 3),
    }


_EIGHTHS = (0.125, 0.125, 0.25, 0.0, 0.125, 0.25, 0.125, 0.0)
_MIX = ("random12", "chain5", "star9", "binary15", "comb9", "ngram12")

_EXACT: tuple[Row, ...] = (
    row("coin_on_the_edge", "coins strict ties", probas=_EIGHTHS,
        coins=[(0.25, 0, 0), (0.5, 0, 0.5), (0.125, 0, 0), (0.25, 0.5, 0.25)]),
    row("coin_zero_and_below_one", "coins strict edge", probas=_EIGHTHS,
        coins=[(0, 0, 0), (BELOW_ONE, 0, BELOW_ONE), (BELOW_ONE, 0, 0), (0, BELOW_ONE, 0)]),
    row("bonus_on_the_edge", "coins bonus strict", probas=_EIGHTHS,
        coins=[(0.5, 0, edge) for edge in (0, 0.25, 0.5, 0.75, BELOW_ONE)]),
    row("bonus_skips_zero_mass", "coins bonus p_zero", probas=(0, 0, 0.25, 0, 0.5, 0, 0, 0.25),
        coins=[(0.5, 0, 0), (0.5, 0, 0.75), (0.75, 0, BELOW_ONE)]),
    row("first_child_without_mass", "coins p_zero", probas=(0.5, 0, 0, 0, 0, 0.5, 0, 0),
        coins=[(0, 0, 0), (0.5, 0, 0.5), (0.25, 0.5, 0.5)]),
    row("certain_child", "coins p_one greedy", probas=(0, 0, 1, 0, 0, 0, 0, 0),
        coins=[(0, 0, 0), (BELOW_ONE, BELOW_ONE, BELOW_ONE)]),
    row("certain_second_child", "coins p_one greedy second", probas=(0, 0, 0, 0, 0, 1),
        coins=[(0, 0, 0.5), (BELOW_ONE, 0, 0)]),
    row("certain_other_token", "coins p_one greedy zero_accepted", probas=(0, 0, 0, 0, 0, 0, 1),
        coins=[(0, 0, 0), (0.5, 0, BELOW_ONE)]),
    row("nothing_left_takes_argmax", "coins residual_0", probas=(0, 0, 0.25, 0, 0, 0.25),
        coins=[(0.5, 0, 0), (0.75, 0, 0.5), (0.25, 0, 0)]),
    row("all_zero_row", "coins residual_0 all_zero", probas=(0,) * 7,
        coins=[(0, 0, 0), (0.5, 0, 0.9)]),
    row("mass_above_one", "coins p_over_one", probas=(0.5, 0.5, 1.5, 0, 0, 2, 0, 0),
        coins=[(0.75, 0, 0.5), (0.25, 0.5, 0.75)]),
)  # fmt: skip

# Request 1 is the star of these: flat rows 4 to 7, the root and its three children.
_STAR = {"shapes": ("chain4", "star4", "random6")}

_TOSSED: tuple[Row, ...] = (
    row("coins_b1_root_only", "coins root_only", shapes=["chain1"]),
    row("coins_b1_comb7_v7", "coins vocab_7", shapes=["comb7"], vocab=7, accept="all"),
    row("coins_b6_mix", "coins mixed_lengths", shapes=_MIX),
    row("coins_b128_mix", "coins mixed_lengths batch_limit", shapes=_MIX, batch=128),
    row("coins_b8_chain7_all_lengths", "coins chain mixed_lengths", shapes=["chain8"], batch=8),
    row("coins_b6_none", "coins zero_accepted", shapes=_MIX, accept="none"),
    row("coins_b6_one", "coins one_accepted", shapes=_MIX, accept="one"),
    row("coins_b6_all", "coins all_accepted", shapes=_MIX, accept="all"),
    row("coins_b6_any", "coins", shapes=("random20", "ngram9", "star6"), accept="any", batch=6),
    row("coins_b0", "coins empty_batch", shapes=(), depth=3),
    row("coins_b3_some_without_rows", "coins no_rows", shapes=("chain0", "random7", "chain0")),
    row("coins_b2_nobody_has_rows", "coins no_rows all_empty", shapes=("chain0", "chain0")),
    row("coins_b2_v512_rows_128", "coins rows_128", shapes=("random128", "chain40"), vocab=512,
        accept="all"),
    row("coins_b2_v4096", "coins vocab_4096", shapes=("random30", "binary31"), vocab=4096,
        accept="all"),
    row("coins_b1_v32000", "coins vocab_32000", shapes=["binary7"], vocab=32_000, accept="all"),
    row("coins_b1_v32000_none", "coins vocab_32000 zero_accepted", shapes=["star4"], vocab=32_000,
        accept="none"),
    row("coins_b2_spare_rows_nan", "coins spare_rows", put("target_probas", np.s_[15:], np.nan),
        shapes=("random9", "chain6"), n_spare=5),
    row("coins_b3_depth_room", "coins depth_room", shapes=("chain3", "star4", "comb5"), depth=9),
    row("coins_b2_deep_tree_short_walk", "coins depth_not_reached", shapes=("chain6", "chain4"),
        accept="one", depth=1),
    row("coins_b3_root_token_outside", "coins root_token", put("draft_tokens", 4, 60_000), **_STAR),
)  # fmt: skip

_MATCHED: tuple[Row, ...] = (
    row("match_b1_root_only", "match root_only", shapes=["chain1"]),
    row("match_b6_mix", "match mixed_lengths", shapes=_MIX),
    row("match_b128_mix", "match mixed_lengths batch_limit", shapes=_MIX, batch=128),
    row("match_b6_none", "match zero_accepted", shapes=_MIX, accept="none"),
    row("match_b6_one", "match one_accepted", shapes=_MIX, accept="one"),
    row("match_b6_all", "match all_accepted", shapes=_MIX, accept="all"),
    row("match_b1_chain128", "match chain depth_127", shapes=["chain128"], accept="all"),
    row("match_b2_star128", "match rows_128 star", shapes=("star128", "random128"), accept="all"),
    row("match_b128_rows_128", "match rows_128 batch_limit", shapes=("random128",), batch=128),
    row("match_b0", "match empty_batch", shapes=(), depth=0),
    row("match_b4_some_without_rows", "match no_rows",
        shapes=("chain0", "ngram9", "chain0", "star3")),
    row("match_b2_spare_rows", "match spare_rows", shapes=("random9", "chain6"), n_spare=7),
    row("match_b3_depth_room", "match depth_room", shapes=("chain3", "star4", "comb5"), depth=127),
    row("match_b2_deep_tree_short_walk", "match depth_not_reached", shapes=("chain6", "chain4"),
        accept="none", depth=0),
    row("match_b3_tokens_apart_above_bit_51", "match tokens_edge",
        put("draft_tokens", np.s_[5:8], [5, 5 + 2**51, 5 - 2**63]), **_STAR),
    row("match_b3_cousins_share_token", "match cousins",
        put("draft_tokens", np.s_[5:11], [1, 2, 1, 2, 1, 2]), put("target_tokens", np.s_[4:11], 2),
        shapes=("chain4", "binary7", "star3")),
)  # fmt: skip

_REFUSED: tuple[Row, ...] = (
    row("child_points_back", "refused links", DATA, put("first_child_row", 5, 0), **_STAR),
    row("sibling_points_at_itself", "refused links loop", DATA, put("next_sibling_row", 5, 1),
        **_STAR),
    row("link_past_the_rows", "refused links past", DATA, put("next_sibling_row", 7, 4), **_STAR),
    row("link_minus_two", "refused links negative", DATA, put("first_child_row", 7, -2), **_STAR),
    row("row_without_parent", "refused links orphan", DATA, put("next_sibling_row", 6, -1),
        **_STAR),
    row("row_with_two_parents", "refused links shared", DATA, put("first_child_row", 5, 3),
        **_STAR),
    row("root_with_sibling", "refused links root", DATA, put("first_child_row", 4, 2),
        put("next_sibling_row", 4, 1), put("next_sibling_row", 5, -1), **_STAR),
    row("duplicate_siblings", "refused twins", DATA, put("draft_tokens", [5, 7], 3), **_STAR),
    row("layout_falls", "refused layout", DATA, put("qo_indptr", 1, 9), **_STAR),
    row("layout_past_rows", "refused layout past", DATA, put("qo_indptr", 3, 15), **_STAR),
    row("rows_129", "refused rows", BOUNDS, shapes=("chain3", "random129", "star3")),
    row("walk_too_deep", "refused depth", BOUNDS, accept="all", depth=2,
        shapes=("chain3", "chain5", "star3")),
    row("walk_too_deep_at_0", "refused depth root", BOUNDS, accept="one", depth=0,
        shapes=("chain1", "star3")),
)  # fmt: skip

_COINS_ONLY: tuple[Row, ...] = (
    row("token_past_vocabulary", "refused token", BOUNDS, put("draft_tokens", 6, 50), **_STAR),
    row("first_token_past_vocabulary", "refused token first", BOUNDS, put("draft_tokens", 5, 50),
        **_STAR),
    row("token_negative", "refused token negative", BOUNDS, put("draft_tokens", 7, -1), **_STAR),
    row("proba_nan", "refused nan", DATA, put("target_probas", (4, 9), np.nan), **_STAR),
    row("proba_nan_off_the_walk", "refused nan unseen", DATA, put("target_probas", (7, 9), np.nan),
        accept="none", **_STAR),
    row("proba_negative", "refused negative", DATA, put("target_probas", (5, 0), -0.25), **_STAR),
    row("proba_infinite", "refused inf", DATA, put("target_probas", (5, 0), np.inf), **_STAR),
    row("coin_one", "refused coin", DATA, put("coins", (1, 0), 1.0), **_STAR),
    row("coin_negative", "refused coin negative", DATA, put("coins", (2, 0), -0.125), **_STAR),
    row("coin_nan", "refused coin nan", DATA, put("coins", (0, 1), np.nan), **_STAR),
    row("coin_of_the_bonus", "refused coin bonus", DATA, put("coins", (1, -1), 1.5), **_STAR),
    row("coin_not_tossed", "refused coin unused", DATA, put("coins", (1, 3), 2.0), accept="none",
        **_STAR),
    row("twins_and_nan", "refused twins nan", DATA, put("draft_tokens", [5, 7], 3),
        put("target_probas", (4, 9), np.nan), **_STAR),
    row("token_outside_and_nan", "refused token nan", BOUNDS, put("draft_tokens", 7, 99),
        put("target_probas", (4, 9), np.nan), **_STAR),
    row("b129", "beyond_batch", BOUNDS, shapes=["chain1"], batch=129),
    row("depth_128", "beyond_depth", BOUNDS, depth=128, **_STAR),
    row("depth_negative", "below_depth", BOUNDS, setting(tree_depth=-1), **_STAR),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("target_probas", 0, 2**18 + 1),
        shapes=("chain0", "chain0")),
    row("coins_of_another_depth", "wrong_shape", BOUNDS, blank("coins", 3, 9), **_STAR),
    row("probas_of_other_rows", "wrong_shape rows", BOUNDS, blank("target_probas", 13, 50),
        **_STAR),
    row("coins_float64", "wrong_dtype", DTYPE, cast("coins", "float64"), **_STAR),
    row("layout_int64", "wrong_dtype int64", DTYPE, cast("qo_indptr", "int64"), **_STAR),
)  # fmt: skip

_MATCH_ONLY: tuple[Row, ...] = (
    row("rows_16385", "match beyond_rows", BOUNDS,
        both(*(blank(name, 16_385) for name in
               ("draft_tokens", "first_child_row", "next_sibling_row", "target_tokens"))), **_STAR),
    row("targets_int32", "match wrong_dtype", DTYPE, cast("target_tokens", "int32"), **_STAR),
    row("targets_of_other_rows", "match wrong_shape", BOUNDS, blank("target_tokens", 15), **_STAR),
)  # fmt: skip


def _prefixed(prefix: str, rows: tuple[Row, ...]) -> list[Row]:
    """The same trees under the other rule."""
    return [
        replace(one, name=f"{prefix}_{one.name}", features=(prefix, *one.features)) for one in rows
    ]


WALK_CASES = (
    *cases(KERNEL, _dyadic, _EXACT),
    *cases(KERNEL, _coins, (*_TOSSED, *_prefixed("coins", _REFUSED), *_COINS_ONLY)),
    *cases(KERNEL, _match, (*_MATCHED, *_prefixed("match", _REFUSED), *_MATCH_ONLY)),
)
