"""Floats as bits: sortable keys, a probability's clamp, a multiplier that flushes to zero."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

FLOAT = 32
ONE = 0x3F800000
SIGN = 1 << 31


def flushed(bits: Value) -> Value:
    """Subnormals, and both zeros, as +0."""
    return Mux(bits[23:31] == 0, Const(0, FLOAT), bits)


def key_of(bits: Value) -> Value:
    """An integer in the order of the floats; subnormals and both zeros have zero's key."""
    plain = flushed(bits)
    return Mux(plain[31], ~plain, plain ^ SIGN)


def bits_of_key(key: Value) -> Value:
    """The float a key stands for."""
    return Mux(key[31], key ^ SIGN, ~key)


def clamped_probability(bits: Value) -> Value:
    """min(max(p, 0), 1), NaN as 0, subnormals as 0."""
    exponent = bits[23:31]
    is_nan = (exponent == 255) & (bits[0:23] != 0)
    is_nothing = bits[31] | is_nan | (exponent == 0)
    return Mux(is_nothing, Const(0, FLOAT), Mux(exponent >= 127, Const(ONE, FLOAT), bits))


class Multiplier(wiring.Component):
    """x * y of two numbers that are not negative, nearest, ties to even; II = 1.

    A subnormal operand or result is zero, as if IEEE's result had been flushed. Overflow is
    infinite. `tag` travels along, so that an answer finds its question.
    """

    LATENCY = 3

    def __init__(self, tag: int) -> None:
        super().__init__(
            {
                "i_valid": In(1),
                "i_x": In(FLOAT),
                "i_y": In(FLOAT),
                "i_tag": In(tag),
                "o_valid": Out(1),
                "o_product": Out(FLOAT),
                "o_tag": Out(tag),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Multiply, normalise, round: a register after each."""
        m = Module()
        x, y = self.i_x, self.i_y
        is_zero = Signal()
        product = Signal(48)
        exponent = Signal(10)
        m.d.sync += [
            product.eq(Cat(x[0:23], 1) * Cat(y[0:23], 1)),
            exponent.eq(x[23:31] + y[23:31]),
            is_zero.eq((x[23:31] == 0) | (y[23:31] == 0)),
        ]
        # The leading bit is 47 or 46; both exponents are biased, so 127 is taken off once.
        shifted, exponent_2, is_zero_2 = Signal(48), Signal(10), Signal()
        m.d.sync += [
            shifted.eq(Mux(product[47], product, product << 1)),
            exponent_2.eq(exponent + product[47]),
            is_zero_2.eq(is_zero),
        ]
        mantissa, rounded = Signal(24), Signal(25)
        m.d.comb += [
            mantissa.eq(shifted[24:48]),
            rounded.eq(mantissa + (shifted[23] & (shifted[24] | (shifted[0:23] != 0)))),
        ]
        biased = Signal(10)
        m.d.comb += biased.eq(exponent_2 + rounded[24])
        # Just below the smallest normal number IEEE rounds up to it, ties included.
        is_least = (exponent_2 == 127) & (mantissa == 0xFFFFFF)
        is_small = ((biased <= 127) & ~is_least) | is_zero_2
        is_large = biased >= 127 + 255
        whole = Cat(rounded[0:23], (biased - 127)[0:8], Const(0, 1))
        with m.If(is_small):
            m.d.sync += self.o_product.eq(0)
        with m.Elif(is_least):
            m.d.sync += self.o_product.eq(1 << 23)
        with m.Elif(is_large):
            m.d.sync += self.o_product.eq(0x7F800000)
        with m.Else():
            m.d.sync += self.o_product.eq(whole)
        valid, tag = self.i_valid, self.i_tag
        for _ in range(self.LATENCY):
            next_valid, next_tag = Signal(), Signal.like(self.i_tag)
            m.d.sync += [next_valid.eq(valid), next_tag.eq(tag)]
            valid, tag = next_valid, next_tag
        m.d.comb += [self.o_valid.eq(valid), self.o_tag.eq(tag)]
        return m
