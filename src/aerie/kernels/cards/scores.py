"""Cards of what a sampled round needs beside its tokens: R15 coins, R16 log-probabilities."""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Scalar, Ulps
from aerie.kernels.cards.axes import (
    BATCH,
    F32,
    I32,
    I64,
    MAX_VERIFY,
    ROWS,
    VOCAB,
    cost,
    reads,
    returns,
)

_EACH = ("B",)
_RUN = ("B", "n")
_BEST = ("B", "n", "top_n")

COINS = Card(
    number="R15",
    name="toss_coins",
    family="round",
    version=1,
    summary=(
        "The uniforms of K6's rule coins, a function of seed, sample and position alone:"
        " Philox4x32-10, key = seed, counter = (i div 4, position + 1, sample_index, 1), word"
        " i mod 4, coin i = (word >> 8) * 2^-24, in [0, 1). Noise of sample_target_tokens has 0 as"
        " its last counter. Every argument may be any int64."
    ),
    axes=(BATCH,),
    scalars=(Scalar("tree_depth", "int", 0, 127, "deepest node of any request"),),
    ports=(
        reads("seed", I64, _EACH, "key of the noise"),
        reads("sample_index", I64, _EACH, "which of n samples"),
        reads("position", I64, _EACH, "of the root: of the last committed token"),
        returns(
            "coins", F32, ("B", "tree_depth + 2"), "one for each depth, the last for the bonus"
        ),
    ),
    ties="None: every number is exact.",
    cost=cost("24*B", "4*B*(tree_depth + 2)", "20*B*(tree_depth + 2)"),
)

LOG_PROBABILITIES = Card(
    number="R16",
    name="score_target_tokens",
    family="round",
    version=1,
    summary=(
        "Log-probabilities that the target's raw logits give to the tokens of a run, and the best"
        " tokens beside them. In float64 and rounded to float32 once: (x - max) - log1p(rest), rest"
        " = the sum of exp(x - max) over all ids but the first that has the maximum; no digits are"
        " lost where a token is nearly certain. Entries of a row outside [0, R), of a token outside"
        " the vocabulary, and of requests that want nothing, are unused. A logit that is NaN or"
        " +inf counts as impossible; of a row without a finite logit every log-probability is -inf."
    ),
    axes=(BATCH, ROWS, VOCAB, Axis("n", 1, MAX_VERIFY, "tokens a round can emit for one request")),
    scalars=(Scalar("top_n", "int", 0, 20, "best tokens of each entry at most"),),
    ports=(
        reads("logits", F32, ("R", "V"), "target logits, unchanged"),
        reads("rows", I64, _RUN, "row that decided each token, -1 for none"),
        reads("tokens", I64, _RUN, "the tokens"),
        reads("wanted", I32, _EACH, "best tokens asked for; -1: no log-probabilities at all"),
        returns("chosen_logprobs", F32, _RUN, "of each token"),
        returns("top_tokens", I32, _BEST, "the best min(wanted, top_n, V) tokens of its row", -1),
        returns("top_logprobs", F32, _BEST, "and theirs"),
    ),
    ties="Equal logits: the lower id comes first.",
    tolerances={"chosen_logprobs": Ulps(cpu=1, gpu=1), "top_logprobs": Ulps(cpu=1, gpu=1)},
    cost=cost("4*B*n*V + 16*B*n + 4*B", "4*B*n*(1 + 2*top_n)", "4*B*n*V"),
)

SCORE_CARDS = (COINS, LOG_PROBABILITIES)
