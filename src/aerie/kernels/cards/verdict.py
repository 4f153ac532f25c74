"""Cards of the verifying kernels: K5 probabilities, K6 tree walk, the target's own tokens."""

from __future__ import annotations

from aerie.kernels.card import Card, Refusal, Scalar, Ulps
from aerie.kernels.cards.axes import (
    BATCH,
    F32,
    I32,
    I64,
    MAX_VERIFY,
    ROWS,
    STATUS,
    STOPS,
    U32,
    VOCAB,
    cost,
    may_read,
    reads,
    returns,
)
from aerie.kernels.status import Status

_ROW = ("R",)
_EACH = ("B",)
_LAYOUT = reads("qo_indptr", I32, ("B+1",), "first row of each request")
_BROKEN_LAYOUT = Refusal(
    Status.BROKEN_LAYOUT, "R", "qo_indptr falls below an earlier entry, or passes the rows"
)
_NOT_FINITE = Refusal(
    Status.NOT_FINITE, "0", "NaN or +inf in a row, given or after the division; value = the row"
)
_ALL_MASKED = Refusal(
    Status.ALL_MASKED, "1", "a row of -inf alone, given or after the division; value = the row"
)

PROBABILITIES = Card(
    number="K5",
    name="convert_logits_to_probas",
    family="verdict",
    version=1,
    summary=(
        "Softmax of ragged rows at each request's temperature: t = x/T and d = t - max t in"
        " float32, exp(d) summed in float64. T < 1e-6 is greedy: one-hot at the argmax. Rows of"
        " no request and of a refused one are 0."
    ),
    axes=(BATCH, ROWS, VOCAB),
    ports=(
        reads("logits", F32, ("R", "V"), "target logits; -inf masks a token"),
        reads("temperature", F32, _EACH, "0 is greedy"),
        _LAYOUT,
        returns("target_probas", F32, ("R", "V"), "probabilities of each row"),
        STATUS,
    ),
    refusals=(
        _BROKEN_LAYOUT,
        Refusal(Status.BAD_PARAMETER, "0", "temperature is negative, infinite or NaN"),
        _NOT_FINITE,
        _ALL_MASKED,
    ),
    ties="Greedy: the lowest token id among equal logits.",
    tolerances={"target_probas": Ulps(cpu=4, gpu=8)},
    cost=cost("4*R*V + 8*B", "4*R*V", "5*R*V"),
)

REJECT_SAMPLE = Card(
    number="K6",
    name="draft_tree_reject_sample",
    family="verdict",
    version=1,
    summary=(
        "Walk each request's tree from the root and take what the target would have said. With"
        " target_probas and coins: at a node of depth d, coin d against the running float64 sum"
        " of its children's probabilities, strict <; the bonus token comes from the last node's"
        " distribution without its children's tokens, with the last coin: the smallest id whose"
        " float64 prefix sum exceeds u*S (S = 0: argmax). With target_tokens: accept the child"
        " that carries the row's own token, else emit that token. A request of no rows gets -1."
    ),
    axes=(BATCH, ROWS, VOCAB),
    scalars=(Scalar("tree_depth", "int", 0, 127, "deepest node of any request"),),
    ports=(
        _LAYOUT,
        reads("draft_tokens", I64, _ROW, "token of each row"),
        reads("first_child_row", I64, _ROW, "row within the request, -1 for none"),
        reads("next_sibling_row", I64, _ROW, "row within the request, -1 for none"),
        may_read("target_probas", F32, ("R", "V"), "rule coins: from K5"),
        may_read("coins", F32, ("B", "tree_depth+2"), "rule coins: uniforms in [0, 1)"),
        may_read("target_tokens", I64, _ROW, "rule match: from sample_target_tokens"),
        returns(
            "accept_index",
            I64,
            ("B", "tree_depth + 1"),
            "rows within the request, root first",
            -1,
        ),
        returns("accept_count", I64, _EACH, "accepted draft tokens, root and bonus excluded"),
        returns("bonus_token", I64, _EACH, "the token after the accepted path", -1),
        STATUS,
    ),
    alternatives=(("target_probas", "coins"), ("target_tokens",)),
    # The rule match reads no distribution.
    defaults={"V": 1},
    refusals=(
        _BROKEN_LAYOUT,
        Refusal(Status.ROW_CAPACITY, str(MAX_VERIFY), "more than 128 rows in one request"),
        Refusal(Status.BROKEN_TREE, "R", "links do not form one tree, all pointing forward"),
        Refusal(Status.DUPLICATE_SIBLING, "1", "two siblings share a token; value = the token"),
        Refusal(Status.OUT_OF_RANGE, "V", "a draft token outside the vocabulary"),
        Refusal(Status.NOT_FINITE, "0", "NaN, infinite or negative probability; value = the row"),
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

# What a row's own token depends on.
SAMPLED = (
    reads("logits", F32, ("R", "V"), "target logits; -inf masks a token"),
    reads("positions", I64, _ROW, "absolute position of each row"),
    reads("temperature", F32, _EACH, "0 is greedy"),
    _LAYOUT,
    may_read("seed", I64, _EACH, "key of the noise; needed where temperature > 0"),
    may_read("sample_index", I64, _EACH, "which of n samples; 0 when absent"),
    may_read("top_k", I64, _EACH, "0 = off"),
    may_read("top_p", F32, _EACH, "1 = off"),
    may_read("min_p", F32, _EACH, "0 = off"),
    may_read("repetition_penalty", F32, _EACH, "1 = off"),
    may_read("presence_penalty", F32, _EACH, "0 = off"),
    may_read("frequency_penalty", F32, _EACH, "0 = off"),
    may_read("prompt_counts", I32, ("B", "V"), "prompt tokens by id"),
    may_read("output_counts", I32, ("B", "V"), "committed output tokens by id"),
    may_read("logit_bias", F32, ("B", "V"), "added to the logits"),
    may_read("draft_tokens", I64, _ROW, "token of each row, for path penalties"),
    may_read("ancestor_bits", U32, ("R", "4"), "from K10c, for path penalties"),
    may_read("stop_tokens", I64, ("B", "S"), "ids that may not end a short output; -1 = none"),
    may_read("floor_position", I64, _EACH, "first position that may hold a stop token"),
)
SAMPLED_TOGETHER = (("draft_tokens", "ancestor_bits"), ("stop_tokens", "floor_position"))

TARGET_TOKENS = Card(
    number="K6",
    name="sample_target_tokens",
    family="verdict",
    version=2,
    summary=(
        "The target's own token of every row, a function of logits, path and seed alone. In"
        " float32 and in this order: repetition penalty over prompt, output and path tokens"
        " (x > 0: x/r, else x*r); minus frequency*count, minus presence over output and path;"
        " plus logit_bias; -inf for the stop_tokens of rows with positions + 1 < floor_position"
        " (entries outside the vocabulary are none);"
        " divided by T; then top-k (value descending, id ascending), top-p over"
        " what is left (in that order, kept while the float64 sum of exp(z - max z) before a token"
        " is < top_p times the whole sum), min-p (exp(z - max z) >= min_p in float64); then"
        " argmax(z + g). g is Gumbel noise: Philox4x32-10, key = seed, counter = (id div 4,"
        " positions + 1, sample_index, 0), word id mod 4, v = (word + 1/2) / 2^32,"
        " g = float32(-log(-log1p(-v))) from float64. T < 1e-6 is greedy: no division, no noise."
        " The path of a row is its ancestors and itself without row 0, which the committed counts"
        " already hold. Sums of masses are float64 in any order: a token whose mass before it is"
        " within 2^-34 of the whole sum from top_p of it may fall on either side. Where every mass"
        " is 0 or 1 the sums are exact, and so is the comparison. Counts may be any"
        " int32, and are added in int64; positions, seed and sample_index may be any int64."
    ),
    axes=(BATCH, ROWS, VOCAB, STOPS),
    ports=(
        *SAMPLED,
        returns("target_tokens", I64, _ROW, "the token after each row", -1),
        STATUS,
    ),
    companions=SAMPLED_TOGETHER,
    refusals=(
        _BROKEN_LAYOUT,
        Refusal(Status.ROW_CAPACITY, str(MAX_VERIFY), "more than 128 rows in one request"),
        Refusal(Status.BAD_PARAMETER, "0", "an impossible sampling parameter, or no seed"),
        Refusal(Status.OUT_OF_RANGE, "V", "a path token outside the vocabulary"),
        _NOT_FINITE,
        _ALL_MASKED,
    ),
    ties="The lowest token id among equal values.",
    cost=cost("4*R*V + 16*R + 8*B", "8*R", "60*R*V"),
)

VERDICT_CARDS = (PROBABILITIES, REJECT_SAMPLE, TARGET_TOKENS)
