"""Cards of products with packed weights: R18 four-bit codes, R19 and R27 eight-bit floats.

A product is y = x times the transpose of the weight, plus a bias; the weight is never written out
whole. Its codes lie output by output, so that layers that read the same rows are joined by laying
them side by side. R28 and R29 write out the weights of R18 and R19, some outputs at a time: many
rows are multiplied faster by a library that finds them so.
"""

from __future__ import annotations

import math

from aerie.kernels.card import Axis, Call, Card, Ulps
from aerie.kernels.cards.axes import MAX_ROWS
from aerie.kernels.cards.dtypes import F32, HIDDEN, U8
from aerie.kernels.cards.fields import cost, limit, may_read, reads, returns, scalar, updates

MOST_OUT, MOST_IN = 1 << 18, 1 << 17

ROWS = Axis("R", 0, MAX_ROWS, "rows")
OUTPUTS = Axis("N", 1, MOST_OUT, "outputs of the layer")
INPUTS = Axis("K", 2, MOST_IN, "inputs of the layer")
BYTES = Axis("Q", 1, MOST_IN // 2, "bytes of the codes of one output")
GROUPS = Axis("G", 1, MOST_IN // 2, "groups along the inputs")

# Sums of either order, in float32; of rows in 16 bits the last rounding counts, too.
SUMS = {"y": Ulps(32, 32, of_largest=True)}
WIDEST_STEP = 128

# Of e4m3, and the exponents that the scale of a row may have.
LARGEST_FLOAT, MOST_EXPONENT = 448, 100

_SHARED = "inputs that share a scale"
_EVEN_GROUP, _ANY_GROUP = (scalar("int", least, MOST_IN, _SHARED) for least in (2, 1))
_X = reads(HIDDEN, ("R", "K"), "rows")
_CODES = reads(U8, ("N", "Q"), "codes of the weight, two in a byte")
_FLOATS = reads(U8, ("N", "K"), "the weight's floats as their bits")
_SCALES = reads(F32, ("G", "N"), "scale of each group and output")
_ZEROS = reads(U8, ("G", "N"), "code that stands for zero, 0 to 15")
_BIAS = may_read(HIDDEN, ("N",), "added to every row")
_Y = returns(HIDDEN, ("R", "N"), "products")


def step_of(group_size: int) -> int:
    """Codes of a step: a byte holds one of its first half and one of its second.

    A kernel then multiplies two halves that lie together, and nothing is put in order again.
    """
    return math.gcd(group_size, WIDEST_STEP)


class FourBits(Call, number="R18", name="multiply_int4"):
    """Rows times a weight of four-bit codes: weight[n, k] = scales[g, n] * (code[n, k] - zeros[g,
    n]), g = k // group_size. Codes come in steps of the greatest common divisor of group_size and
    128: the low half of byte j of a step is its code j, the high half the code half a step further
    on.
    """

    group_size = _EVEN_GROUP
    x = _X
    codes = _CODES
    scales = _SCALES
    zeros = _ZEROS
    bias = _BIAS
    y = _Y
    card = Card(
        axes=(ROWS, OUTPUTS, INPUTS, BYTES, GROUPS),
        limits=(
            limit("group_size", "2*(group_size//2)", "an even group_size"),
            limit("K", "2*Q", "inputs of the codes"),
            limit("2*Q", "K", "codes of the inputs"),
            limit("K", "G*group_size", "inputs of the groups"),
            limit("G*group_size", "K", "groups of the inputs"),
        ),
        ties="None: sums go in any order within the tolerance.",
        assumes="Values are finite and their sums stay within float32; zeros are 0 to 15.",
        tolerances=SUMS,
        cost=cost("E*R*K + N*Q + 5*G*N", "E*R*N", "2*R*N*K"),
    )


class EightBits(Call, number="R19", name="multiply_fp8"):
    """Rows times a weight of eight-bit floats (e4m3, without infinities): weight[n, k] = scales[k
    // group_size, n] * code[n, k]. The last group may be shorter.
    """

    group_size = _ANY_GROUP
    x = _X
    codes = _FLOATS
    scales = _SCALES
    bias = _BIAS
    y = _Y
    card = Card(
        axes=(ROWS, OUTPUTS, Axis("K", 1, MOST_IN, "inputs of the layer"), GROUPS),
        limits=(
            limit("K", "G*group_size", "inputs of the groups"),
            limit("(G - 1)*group_size + 1", "K", "groups of the inputs"),
        ),
        ties="None: sums go in any order within the tolerance.",
        assumes="Values are finite, no code is NaN (127, 255), and sums stay within float32.",
        tolerances=SUMS,
        cost=cost("E*R*K + N*K + 4*G*N", "E*R*N", "2*R*N*K"),
    )


# Products of two e4m3 are exact in float32. Hopper's matrix unit adds them to fourteen bits: every
# 32 inputs may cost 2^-13 of the sum so far, which in units of the rows is 1 for 128 inputs of
# float16 and for 1024 of bfloat16. Rows in float32 are not multiplied there.
class EightBitRows(Call, number="R27", name="multiply_fp8_rows"):
    """Rows in eight bits times a weight in eight bits: y[r, n] = s[r] * scales[n] * the sum of q[r,
    k] * code[n, k]. s[r] is the least power of two, of exponents -100 to 100, by which no value of
    the row exceeds 448, and 1 for a row of zeros; q is x / s as the nearest e4m3, of two as near
    the even one. For drafts, which need not be exact.
    """

    x = _X
    codes = _FLOATS
    scales = reads(F32, ("N",), "scale of each output")
    bias = _BIAS
    y = _Y
    card = Card(
        axes=(ROWS, OUTPUTS, Axis("K", 1, MOST_IN, "inputs of the layer")),
        ties="Halves between two e4m3 go to the even one; sums in any order within the tolerance.",
        assumes=(
            "Values are finite and at most 448 * 2^100, no code is NaN (127, 255), and sums stay"
            " within float32."
        ),
        tolerances=SUMS,
        cost=cost("E*R*K + N*K + 4*N", "E*R*N", "2*R*N*K"),
    )


_WRITTEN = Axis("N", 0, MOST_OUT, "outputs that are written")
# Written in place: whoever multiplies says in which dtype, and takes one scratch for many weights.
_WEIGHT = updates(HIDDEN, ("N", "K"), "the weight; what it held is not read")
_ROUNDED = "None: each element is rounded to float32, then to the dtype of the weight."


class UnpackedFourBits(Call, number="R28", name="unpack_int4"):
    """A weight of four-bit codes, written out: weight[n, k] = scales[g, n] * (code[n, k] - zeros[g,
    n]), g = k // group_size, of codes in the order of R18.
    """

    group_size = _EVEN_GROUP
    weight = _WEIGHT
    codes = _CODES
    scales = _SCALES
    zeros = _ZEROS
    card = Card(
        axes=(_WRITTEN, INPUTS, BYTES, GROUPS),
        limits=FourBits.card.limits,
        ties=_ROUNDED,
        assumes="Products are finite in the dtype of the weight; zeros are 0 to 15.",
        cost=cost("N*Q + 5*G*N", "E*N*K", "2*N*K"),
    )


class UnpackedEightBits(Call, number="R29", name="unpack_fp8"):
    """A weight of eight-bit floats (e4m3, without infinities), written out: weight[n, k] = scales[k
    // group_size, n] * code[n, k]. The last group may be shorter.
    """

    group_size = _ANY_GROUP
    weight = _WEIGHT
    codes = _FLOATS
    scales = _SCALES
    card = Card(
        axes=(_WRITTEN, *EightBits.card.axes[2:]),
        limits=EightBits.card.limits,
        ties=_ROUNDED,
        assumes="Products are finite in the dtype of the weight; no code is NaN (127, 255).",
        cost=cost("N*K + 4*G*N", "E*N*K", "N*K"),
    )
