"""Codes by words, eight of four bits or four of eight: as floats, in the registers they came in.

Floats are handed over one by one, so that the compiler knows which of them lie in one register; of
bytes it would bring some of several words together first. Where no instructions can be written
arithmetic says the same, bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.unpack_floats import widened

# Each half byte is set into the last bits of a float so large that its last bit counts ones: two
# codes an instruction.
_FLOATS = """{
    .reg .b32 first, second, high, pair;
    prmt.b32 first, $8, 0, 0x4140;
    prmt.b32 second, $8, 0, 0x4342;
    lop3.b32 pair, first, 0x000f000f, ONES, 0xea;
    mov.b32 {$0, $1}, pair;
    lop3.b32 pair, second, 0x000f000f, ONES, 0xea;
    mov.b32 {$2, $3}, pair;
    shr.u32 high, first, 4;
    lop3.b32 pair, high, 0x000f000f, ONES, 0xea;
    mov.b32 {$4, $5}, pair;
    shr.u32 high, second, 4;
    lop3.b32 pair, high, 0x000f000f, ONES, 0xea;
    mov.b32 {$6, $7}, pair;
}"""
_BFLOAT16 = tl.constexpr(_FLOATS.replace("ONES", "0x43004300"))  # 128 in either half
_FLOAT16 = tl.constexpr(_FLOATS.replace("ONES", "0x64006400"))  # 1024
_PLACES = tl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r")
# e4m3 by the chip's own conversion, which is to float16, two at a time.
_EIGHT_TO_FLOAT16 = tl.constexpr("""{
    .reg .b16 first, second;
    .reg .b32 pair;
    mov.b32 {first, second}, $4;
    cvt.rn.f16x2.e4m3x2 pair, first;
    mov.b32 {$0, $1}, pair;
    cvt.rn.f16x2.e4m3x2 pair, second;
    mov.b32 {$2, $3}, pair;
}""")


@triton.jit
def _half(words, SHIFT: tl.constexpr):
    """One code of every word."""
    return ((words >> SHIFT) & 15).to(tl.int16)


@triton.jit
def _in_turn(a, b, c, d):
    """What four bytes say, in their order along a last axis. [..., 2, 2]"""
    first, second = tl.join(a, b), tl.join(c, d)
    return tl.permute(tl.join(first, second), (0, 1, 2, 3, 4, 6, 5))


@triton.jit
def widened_words(words, like, NATIVE: tl.constexpr):
    """Words [BN / 8, parts, 8, 4, n] of e4m3 as floats [BN / 8, parts, 8, 4, n, 2, 2]."""
    if NATIVE:
        a, b, c, d = tl.inline_asm_elementwise(
            _EIGHT_TO_FLOAT16, "=h,=h,=h,=h,r", [words],
            (tl.float16, tl.float16, tl.float16, tl.float16), True, 1,
        )  # fmt: skip
        floats = _in_turn(a, b, c, d)
    else:
        a, b = widened(words & 255, False), widened((words >> 8) & 255, False)
        c, d = widened((words >> 16) & 255, False), widened((words >> 24) & 255, False)
        floats = _in_turn(a, b, c, d)
    return floats.to(like.dtype)


@triton.jit
def less_zero(words, zero, like, IN_BITS: tl.constexpr):
    """Words [BN / 8, parts, 8, 4, n] as codes less zero: low halves, then high ones.

    `zero` [BN / 8, parts, 8, 4]; results [BN / 8, parts, 8, 4, n, 2, 2].
    """
    if IN_BITS and like.dtype == tl.bfloat16:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _BFLOAT16, _PLACES, [words],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
             tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 1,
        )  # fmt: skip
        zero = (zero.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    elif IN_BITS:
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _FLOAT16, _PLACES, [words],
            (tl.float16, tl.float16, tl.float16, tl.float16,
             tl.float16, tl.float16, tl.float16, tl.float16), True, 1,
        )  # fmt: skip
        zero = (zero.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
    else:
        a, b, c, d = _half(words, 0), _half(words, 8), _half(words, 16), _half(words, 24)
        e, f, g, h = _half(words, 4), _half(words, 12), _half(words, 20), _half(words, 28)
        zero = zero.to(tl.int16)
    low, high = _in_turn(a, b, c, d), _in_turn(e, f, g, h)
    zero = tl.broadcast_to(zero[:, :, :, :, None, None, None], low.shape)
    return (low - zero).to(like.dtype), (high - zero).to(like.dtype)
