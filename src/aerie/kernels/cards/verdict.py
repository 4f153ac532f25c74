"""Cards of the verifying kernels: K5 probabilities, K6 tree walk, the target's own tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aerie.kernels.card import Call, Card, Refusal, Ulps
from aerie.kernels.cards.axes import BATCH, ROWS, STOPS, VOCAB
from aerie.kernels.cards.dtypes import EACH, F32, I32, I64, INDPTR, U32
from aerie.kernels.cards.fields import STATUS, cost, may_read, reads, returns, scalar
from aerie.kernels.cards.refusals import BROKEN_LAYOUT, MANY_ROWS
from aerie.kernels.status import Status

# Below this temperature a request is greedy.
GREEDY_TEMPERATURE = 1e-6

_ROW = ("R",)
_LAYOUT = reads(I32, INDPTR, "first row of each request")
_NOT_FINITE = Refusal(
    Status.NOT_FINITE, "0", "NaN or +inf in a row, given or after the division; value = the row"
)
_ALL_MASKED = Refusal(
    Status.ALL_MASKED, "1", "a row of -inf alone, given or after the division; value = the row"
)


class Probabilities(Call, number="K5", name="convert_logits_to_probas", family="verdict"):
    """Softmax of ragged rows at each request's temperature: t = x/T and d = t - max t in float32,
    exp(d) summed in float64. T < 1e-6 is greedy: one-hot at the argmax. Rows of no request and of a
    refused one are 0.
    """

    logits = reads(F32, ("R", "V"), "target logits; -inf masks a token")
    temperature = reads(F32, EACH, "0 is greedy")
    qo_indptr = _LAYOUT
    target_probas = returns(F32, ("R", "V"), "probabilities of each row")
    status = STATUS
    card = Card(
        axes=(BATCH, ROWS, VOCAB),
        refusals=(
            BROKEN_LAYOUT,
            Refusal(Status.BAD_PARAMETER, "0", "temperature is negative, infinite or NaN"),
            _NOT_FINITE,
            _ALL_MASKED,
        ),
        ties="Greedy: the lowest token id among equal logits.",
        tolerances={"target_probas": Ulps(cpu=4, gpu=8)},
        cost=cost("4*R*V + 8*B", "4*R*V", "5*R*V"),
    )


class RejectSample(Call, number="K6", name="draft_tree_reject_sample", family="verdict"):
    """Walk each request's tree from the root and take what the target would have said. With
    target_probas and coins: at a node of depth d, coin d against the running float64 sum of its
    children's probabilities, strict <; the bonus token comes from the last node's distribution
    without its children's tokens, with the last coin: the smallest id whose float64 prefix sum
    exceeds u*S (S = 0: argmax). With target_tokens: accept the child that carries the row's own
    token, else emit that token. A request of no rows gets -1.
    """

    tree_depth = scalar("int", 0, 127, "deepest node of any request")
    qo_indptr = _LAYOUT
    draft_tokens = reads(I64, _ROW, "token of each row")
    first_child_row = reads(I64, _ROW, "row within the request, -1 for none")
    next_sibling_row = reads(I64, _ROW, "row within the request, -1 for none")
    target_probas = may_read(F32, ("R", "V"), "rule coins: from K5")
    coins = may_read(F32, ("B", "tree_depth+2"), "rule coins: uniforms in [0, 1)")
    target_tokens = may_read(I64, _ROW, "rule match: from sample_target_tokens")
    accept_index = returns(I64, ("B", "tree_depth + 1"), "rows within the request, root first", -1)
    accept_count = returns(I64, EACH, "accepted draft tokens, root and bonus excluded")
    bonus_token = returns(I64, EACH, "the token after the accepted path", -1)
    status = STATUS
    card = Card(
        axes=(BATCH, ROWS, VOCAB),
        alternatives=(("target_probas", "coins"), ("target_tokens",)),
        # The rule match reads no distribution.
        defaults={"V": 1},
        refusals=(
            BROKEN_LAYOUT,
            MANY_ROWS,
            Refusal(Status.BROKEN_TREE, "R", "links do not form one tree, all pointing forward"),
            Refusal(Status.DUPLICATE_SIBLING, "1", "two siblings share a token; value = the token"),
            Refusal(Status.OUT_OF_RANGE, "V", "a draft token outside the vocabulary"),
            Refusal(
                Status.NOT_FINITE, "0", "NaN, infinite or negative probability; value = the row"
            ),
            Refusal(Status.BAD_PARAMETER, "1", "a coin outside [0, 1); value = its column"),
            Refusal(Status.TOO_DEEP, "tree_depth", "the walk reaches a node below tree_depth"),
        ),
        ties="coins: siblings in link order. Bonus of an exhausted node: lowest id of the maximum.",
        cost=cost(
            # one distribution and the accepted path's gathers per request; links of every row
            "24*R + 4*B*V + 4*B*(tree_depth + 2)",
            "8*B*(tree_depth + 3)",
            "B*V + R",
        ),
    )


class Sampled(Call):
    """What a row's own token depends on."""

    logits = reads(F32, ("R", "V"), "target logits; -inf masks a token")
    positions = reads(I64, _ROW, "absolute position of each row")
    temperature = reads(F32, EACH, "0 is greedy")
    qo_indptr = _LAYOUT
    seed = may_read(I64, EACH, "key of the noise; needed where temperature > 0")
    sample_index = may_read(I64, EACH, "which of n samples; 0 when absent")
    top_k = may_read(I64, EACH, "0 = off")
    top_p = may_read(F32, EACH, "1 = off")
    min_p = may_read(F32, EACH, "0 = off")
    repetition_penalty = may_read(F32, EACH, "1 = off")
    presence_penalty = may_read(F32, EACH, "0 = off")
    frequency_penalty = may_read(F32, EACH, "0 = off")
    prompt_counts = may_read(I32, ("B", "V"), "prompt tokens by id")
    output_counts = may_read(I32, ("B", "V"), "committed output tokens by id")
    logit_bias = may_read(F32, ("B", "V"), "added to the logits")
    draft_tokens = may_read(I64, _ROW, "token of each row, for path penalties")
    ancestor_bits = may_read(U32, ("R", "4"), "from K10c, for path penalties")
    stop_tokens = may_read(I64, ("B", "S"), "ids that may not end a short output; -1 = none")
    floor_position = may_read(I64, EACH, "first position that may hold a stop token")


SAMPLED_TOGETHER = (("draft_tokens", "ancestor_bits"), ("stop_tokens", "floor_position"))


# What an option's value must be, of an array or a tensor; NaN fails every comparison.
POSSIBLE: dict[str, Callable[[Any], Any]] = {
    "top_k": lambda v: v >= 0,
    "top_p": lambda v: (v > 0) & (v <= 1),
    "min_p": lambda v: (v >= 0) & (v <= 1),
    "repetition_penalty": lambda v: (v > 0) & (v < math.inf),
    "presence_penalty": lambda v: abs(v) < math.inf,
    "frequency_penalty": lambda v: abs(v) < math.inf,
}


class TargetTokens(Sampled, number="K6", name="sample_target_tokens", family="verdict"):
    """The target's own token of every row, a function of logits, path and seed alone. In float32
    and in this order: repetition penalty over prompt, output and path tokens (x > 0: x/r, else
    x*r); minus frequency*count, minus presence over output and path; plus logit_bias; -inf for the
    stop_tokens of rows with positions + 1 < floor_position (entries outside the vocabulary are
    none); divided by T; then top-k (value descending, id ascending), top-p over what is left (in
    that order, kept while the float64 sum of exp(z - max z) before a token is < top_p times the
    whole sum), min-p (exp(z - max z) >= min_p in float64); then argmax(z + g). g is Gumbel noise:
    Philox4x32-10, key = seed, counter = (id div 4, positions + 1, sample_index, 0), word id mod 4,
    v = (word + 1/2) / 2^32, g = float32(-log(-log1p(-v))) from float64. T < 1e-6 is greedy: no
    division, no noise. The path of a row is its ancestors and itself without row 0, which the
    committed counts already hold. Sums of masses are float64 in any order: a token whose mass
    before it is within 2^-34 of the whole sum from top_p of it may fall on either side. Where every
    mass is 0 or 1 the sums are exact, and so is the comparison. Counts may be any int32, and are
    added in int64; positions, seed and sample_index may be any int64.
    """

    target_tokens = returns(I64, _ROW, "the token after each row", -1)
    status = STATUS
    card = Card(
        version=2,
        axes=(BATCH, ROWS, VOCAB, STOPS),
        companions=SAMPLED_TOGETHER,
        refusals=(
            BROKEN_LAYOUT,
            MANY_ROWS,
            Refusal(Status.BAD_PARAMETER, "0", "an impossible sampling parameter, or no seed"),
            Refusal(Status.OUT_OF_RANGE, "V", "a path token outside the vocabulary"),
            _NOT_FINITE,
            _ALL_MASKED,
        ),
        ties="The lowest token id among equal values.",
        cost=cost("4*R*V + 16*R + 8*B", "8*R", "60*R*V"),
    )
