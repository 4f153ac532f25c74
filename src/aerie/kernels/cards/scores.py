"""Cards of what goes with a round's tokens: R15 coins, R16 scores, R17 near ties, R26 masks."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Ulps
from aerie.kernels.cards.axes import BATCH, MAX_BATCH, MAX_ROWS, MAX_VERIFY, ROWS, STOPS, VOCAB
from aerie.kernels.cards.dtypes import BOOL, EACH, F32, HIDDEN, I32, I64, RUN
from aerie.kernels.cards.fields import cost, may_read, reads, returns, scalar
from aerie.kernels.cards.verdict import SAMPLED_TOGETHER, Sampled

_BEST = ("B", "n", "top_n")
_TOKENS = Axis("n", 1, MAX_VERIFY, "tokens a round can emit for one request")


class Coins(Call, number="R15", name="toss_coins"):
    """The uniforms of K6's rule coins, a function of seed, sample and position alone:
    Philox4x32-10, key = seed, counter = (i div 4, position + 1, sample_index, 1), word i mod 4,
    coin i = (word >> 8) * 2^-24, in [0, 1). Noise of sample_target_tokens has 0 as its last
    counter. Every argument may be any int64.
    """

    tree_depth = scalar("int", 0, 127, "deepest node of any request")
    seed = reads(I64, EACH, "key of the noise")
    sample_index = reads(I64, EACH, "which of n samples")
    position = reads(I64, EACH, "of the root: of the last committed token")
    coins = returns(F32, ("B", "tree_depth + 2"), "one for each depth, the last for the bonus")
    card = Card(
        axes=(BATCH,),
        ties="None: every number is exact.",
        cost=cost("24*B", "4*B*(tree_depth + 2)", "20*B*(tree_depth + 2)"),
    )


class LogProbabilities(Call, number="R16", name="score_target_tokens"):
    """Log-probabilities that the target's raw logits give to the tokens of a run, and the best
    tokens beside them. In float64 and rounded to float32 once: (x - max) - log1p(rest), rest = the
    sum of exp(x - max) over all ids but the first that has the maximum; no digits are lost where a
    token is nearly certain. Entries of a row outside [0, R), of a token outside the vocabulary, and
    of requests that want nothing, are unused. A logit that is NaN or +inf counts as impossible; of
    a row without a finite logit every log-probability is -inf.
    """

    top_n = scalar("int", 0, 20, "best tokens of each entry at most")
    logits = reads(F32, ("R", "V"), "target logits, unchanged")
    rows = reads(I64, RUN, "row that decided each token, -1 for none")
    tokens = reads(I64, RUN, "the tokens")
    wanted = reads(I32, EACH, "best tokens asked for; -1: no log-probabilities at all")
    chosen_logprobs = returns(F32, RUN, "of each token")
    top_tokens = returns(I32, _BEST, "the best min(wanted, top_n, V) tokens of its row", -1)
    top_logprobs = returns(F32, _BEST, "and theirs")
    card = Card(
        axes=(BATCH, ROWS, VOCAB, _TOKENS),
        ties="Equal logits: the lower id comes first.",
        tolerances={"chosen_logprobs": Ulps(cpu=1, gpu=1), "top_logprobs": Ulps(cpu=1, gpu=1)},
        cost=cost("4*B*n*V + 16*B*n + 4*B", "4*B*n*(1 + 2*top_n)", "4*B*n*V"),
    )


class NearTies(Sampled, number="R17", name="find_near_ties"):
    """Which tokens of a run were chosen so closely that numerics may turn the choice. Sums are
    those that sample_target_tokens takes the largest of: z + g, or the scores alone where a request
    is greedy. Of the token, with x its logit as given: reach = limit * 2^floor(log2 |x|), divided
    by T unless greedy, and floor = its sum - reach, all in float32 (a subnormal x has reach 0). A
    near tie: another id that the filters keep has a sum above -inf in [floor, the token's sum].
    Entries of a row outside [0, R), of a token outside the vocabulary or one whose sum is -inf are
    none.
    """

    rows = reads(I64, RUN, "row that decided each token, -1 for none")
    tokens = reads(I64, RUN, "the tokens")
    limit = reads(F32, EACH, "what numerics may move of a logit between 1 and 2, at least 0")
    near_ties = returns(BOOL, RUN, "whether each token was a near tie")
    card = Card(
        axes=(BATCH, ROWS, VOCAB, STOPS, _TOKENS),
        companions=SAMPLED_TOGETHER,
        ties="None: a comparison of float32 sums; masses of filters as in sample_target_tokens.",
        assumes=(
            "What sample_target_tokens took without refusing a request that has rows here, and rows"
            " of the request that names them."
        ),
        cost=cost("4*B*n*V + 16*B*n + 12*B", "B*n", "60*B*n*V"),
    )


class Forbidden(Call, number="R26", name="forbid_tokens"):
    """Logits of seats with a grammar without what may not come next. Row r is of seat s, the number
    of ends[i] <= r less one, and reads mask first[s] + r - ends[s]; it is bound if 0 <= s < B,
    first[s] > 0 and that mask is one of 1 .. Q - 1. Column v of a bound row stands for id
    token_ids[min(s, G - 1), v], or v itself; its logit is -inf unless bit id mod 32 of word id div
    32 of the mask is set. An id outside [0, 32*U) is never allowed. All else is as it was, in
    float32.
    """

    logits = reads(HIDDEN, ("R", "V"), "logits of a target or of a draft")
    ends = reads(I32, ("B + 1",), "where the rows of each seat begin, and the last ends")
    first = reads(I32, ("B",), "mask of each seat's first row, 0 for a seat without")
    bits = reads(I32, ("Q", "U"), "masks, a bit for every id")
    token_ids = may_read(I64, ("G", "V"), "id of every column")
    masked = returns(F32, ("R", "V"), "the logits that are left")
    card = Card(
        axes=(
            BATCH,
            ROWS,
            VOCAB,
            Axis("Q", 1, MAX_ROWS + 1, "masks; the first stands for none"),
            Axis("U", 1, 1 << 13, "words of a mask"),
            Axis("G", 1, MAX_BATCH, "vocabularies: one for all seats, or one each"),
        ),
        ties="None: bits.",
        cost=cost("E*R*V + 4*R*U", "4*R*V", "R*V"),
    )
