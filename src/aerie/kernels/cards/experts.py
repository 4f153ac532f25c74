"""Card of the products of a mixture of experts, R25: every row by the weights it was routed to.

A pair is a row and one of the experts it chose; pairs are sorted by expert before, so that each
expert's packed weight is read once for all of its rows. How many pairs an expert has is known to
the device alone.
"""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card
from aerie.kernels.cards.dtypes import F32, HIDDEN, I32, U8
from aerie.kernels.cards.fields import cost, limit, may_read, reads, returns, scalar
from aerie.kernels.cards.products import MOST_OUT, SUMS

BLOCK = 32  # codes that share a scale
BLOCK_BYTES = BLOCK // 2
MOST_PAIRS, MOST_EXPERTS = 1 << 16, 1 << 10
MOST_BLOCKS = 1 << 12
MOST_SCALE = 252  # of the largest weight, six times its scale: beyond, float32 has no number

PITCH = 16  # bytes: what a copy into shared memory moves at a time


def padded_pitch(n_blocks: int) -> int:
    """Distance of the scales of two outputs that lets a kernel read several at once."""
    return -(-n_blocks // PITCH) * PITCH


class Grouped(Call, number="R25", name="multiply_experts"):
    """Rows times the weights of the experts they were routed to, in four-bit floats (MXFP4).
    weight[x, n, k] = 2^(scales[x, n, g] - 127) * the code of k, g = k // 32; code i of a block is
    the low half of byte i // 2 for an even i, else the high half: a sign, two bits of exponent, one
    of mantissa (0, 0.5, 1, 1.5, 2, 3, 4, 6). Pair p is row p // n_active; pairs of expert x are
    order[starts[x] : starts[x + 1]]. With gate = (alpha, limit), even outputs are gates and odd
    ones their ups: u = min(gate, limit), y = (clamp(up, -limit, limit) + 1) * u / (1 + exp(-alpha *
    u)), rounded once.
    """

    n_active = scalar("int", 1, MOST_EXPERTS, "pairs of a row")
    largest_scale = scalar("int", 0, MOST_SCALE, "no scale is above it")
    x = reads(HIDDEN, ("R", "K"), "rows")
    blocks = reads(U8, ("X", "N", "G", str(BLOCK_BYTES)), "codes, two in a byte")
    scales = reads(U8, ("X", "N", "G"), "exponents, biased by 127")
    bias = may_read(HIDDEN, ("X", "N"), "added to the rows of an expert")
    order = reads(I32, ("T",), "pairs by expert")
    starts = reads(I32, ("X+1",), "where the pairs of each expert begin")
    gate = reads(F32, ("J",), "alpha and limit of a gate, or nothing")
    y = returns(HIDDEN, ("T", "N//(1 + J//2)"), "products, pair by pair")
    card = Card(
        axes=(
            Axis("R", 0, MOST_PAIRS, "rows"),
            Axis("T", 0, MOST_PAIRS, "pairs of a row and an expert"),
            Axis("X", 1, MOST_EXPERTS, "experts"),
            Axis("N", 1, MOST_OUT, "outputs of an expert"),
            Axis("K", BLOCK, BLOCK * MOST_BLOCKS, "inputs of an expert"),
            Axis("G", 1, MOST_BLOCKS, "blocks along the inputs"),
            Axis("J", 0, 2, "2 with a gate, 0 without"),
        ),
        limits=(
            limit("K", f"{BLOCK}*G", "inputs of the blocks"),
            limit(f"{BLOCK}*G", "K", "blocks of the inputs"),
            limit("T", "n_active*R", "pairs of the rows"),
            limit("n_active*R", "T", "rows of the pairs"),
            limit("J", "2*(J//2)", "alpha without a limit"),
            limit("J*N", "2*J*(N//2)", "an even number of gated outputs"),
        ),
        ties="None: sums go in any order within the tolerance.",
        assumes=(
            "order names every pair once; starts ascend from 0 to T. Values are finite, no scale is"
            " above largest_scale, and sums stay within float32."
        ),
        tolerances=SUMS,
        # Experts that have rows, at most min(X, T), are read once.
        cost=cost(
            f"E*R*K + min(X, T)*N*({BLOCK_BYTES + 1}*G + E) + 4*(T + X + 1)",
            "E*T*(N//(1 + J//2))",
            "2*T*N*K",
        ),
    )
