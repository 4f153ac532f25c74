"""What an eight-bit float is, by the chip's conversion or by its bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(codes, NATIVE: tl.constexpr):
    """e4m3 bits as float32: exponents are biased by 7, the least one has no hidden bit."""
    if NATIVE:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    bits = codes.to(tl.int32)
    size = bits & 127
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    return tl.where(bits > 127, -value, value)
