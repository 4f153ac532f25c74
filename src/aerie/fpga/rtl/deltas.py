"""K3 as a card: what the next nodes add to the best scores, summed without rounding."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from aerie.fpga.rtl.card import SINGLE, CardEngine, counted_loop
from aerie.fpga.rtl.floats import FLOAT, flushed

# A score in [0, 1) is a multiple of 2^-149; 128 requests of ten each need eleven bits more.
FIXED = 162
MOST_SCORES = 138  # of both runs
MOST_NEW = 10
KEPT = 40  # leading bits that a quotient is made of; the rest only decides a tie


def fixed_of(bits: Value) -> Value:
    """A score that is not negative, in 2^-149; subnormals are zero."""
    exponent = bits[23:31]
    mantissa = Cat(bits[0:23], Const(1, 1))
    shifted = mantissa << (exponent - 1)[0:8]
    return Mux(exponent == 0, Const(0, FIXED), shifted[0:FIXED])


def gain_step(new: Value, old: Value, is_free: Value, displaces: Value) -> Value:
    """What one more new score adds: itself in a free place, or what it has over the old one."""
    replaced = (fixed_of(new) - fixed_of(old))[0:FIXED]
    return Mux(is_free, fixed_of(new), Mux(displaces, replaced, 0))


class MeanOf(wiring.Component):
    """value / divisor as a float, nearest, ties to even: long division, one bit a cycle."""

    def __init__(self) -> None:
        super().__init__(
            {
                "i_start": In(1),
                "i_value": In(FIXED),
                "i_divisor": In(8),
                "o_done": Out(1),  # until the next start
                "o_bits": Out(FLOAT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Leading zeros away, the division, the rounding."""
        m = Module()
        value, shift, divisor = Signal(FIXED), Signal(8), Signal(8)
        rest, quotient, bit = Signal(9), Signal(KEPT), Signal(6)
        with m.FSM():
            with m.State("IDLE"), m.If(self.i_start):
                m.d.sync += [value.eq(self.i_value), shift.eq(0), self.o_done.eq(0)]
                m.d.sync += divisor.eq(Mux(self.i_divisor == 0, 1, self.i_divisor))
                m.next = "SHIFT_128"
            # Halves of what may be zero: always as many cycles, whatever the value.
            for step in (128, 64, 32, 16, 8, 4, 2, 1):
                with m.State(f"SHIFT_{step}"):
                    with m.If(value[FIXED - step :] == 0):
                        m.d.sync += [value.eq(value << step), shift.eq(shift + step)]
                    m.d.sync += [rest.eq(0), quotient.eq(0), bit.eq(0)]
                    m.next = f"SHIFT_{step // 2}" if step > 1 else "DIVIDE"
            with m.State("DIVIDE"):
                brought = Cat(value[FIXED - 1], rest)
                fits = brought >= divisor
                m.d.sync += [
                    rest.eq(Mux(fits, brought - divisor, brought)),
                    quotient.eq(Cat(fits, quotient)),
                    value.eq(value << 1),
                    bit.eq(bit + 1),
                ]
                with m.If(bit == KEPT - 1):
                    m.next = "LEAD_8"
            # The highest bit is at most eight places down: the divisor is below 256.
            for step in (8, 4, 2, 1):
                with m.State(f"LEAD_{step}"):
                    with m.If(quotient[KEPT - step :] == 0):
                        m.d.sync += [quotient.eq(quotient << step), shift.eq(shift + step)]
                    m.next = f"LEAD_{step // 2}" if step > 1 else "ROUND"
            with m.State("ROUND"):
                m.d.sync += [self.o_bits.eq(self._rounded(m, value, rest, quotient, shift))]
                m.d.sync += self.o_done.eq(1)
                m.next = "IDLE"
        return m

    def _rounded(
        self, m: Module, value: Signal, rest: Signal, quotient: Signal, shift: Signal
    ) -> Value:
        sticky = (value != 0) | (rest != 0) | (quotient[0 : KEPT - 25] != 0)
        mantissa = quotient[KEPT - 24 :]
        rounded = mantissa + (quotient[KEPT - 25] & (sticky | mantissa[0]))
        # The leading bit was bit FIXED - 1 - shift of a number in 2^-149.
        exponent = Signal(10)
        m.d.comb += exponent.eq(FIXED - 1 - shift - 23 + 1 + rounded[24])
        # Just below the smallest normal number IEEE rounds up to it; what is smaller is zero.
        is_least = (FIXED - 1 - shift == 22) & (mantissa == 0xFFFFFF)
        is_small = (quotient == 0) | (FIXED - 1 - shift < 23)
        small = Mux(is_least, 1 << 23, 0)
        return Mux(is_small, small, Cat(rounded[0:23], exponent[0:8]))


class WorkDeltas(CardEngine):
    """G[k]: mean over the batch of what verifying k of the new nodes brings."""

    ARGUMENTS = ("B", "C", "node_top_k", "verify_num")
    PORTS = ("work_scores", "G")

    def body(self, m: Module) -> None:
        """Every request: load its runs, weigh the new scores one a cycle; then the means."""
        batch, length = self.argument("B"), self.argument("C")
        top_k = self.argument("node_top_k")
        m.submodules.scores = scores = Memory(shape=FLOAT, depth=256, init=[])
        self.store = scores.write_port()
        self.load_new, self.load_old = (
            scores.read_port(domain="comb"),
            scores.read_port(domain="comb"),
        )
        m.submodules.mean = self.mean = MeanOf()
        gains = Array(Signal(FIXED, name=f"gain_{k}") for k in range(MOST_NEW + 1))
        request, place = Signal(8), Signal(8)
        first = Signal(32)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [gain.eq(0) for gain in gains]
                m.d.sync += [request.eq(0), first.eq(0)]
                m.next = "ASK"
            with m.State("ASK"):
                with m.If(request == batch):
                    m.next = "ANNOUNCE"
                with m.Else(), m.If(self.reads(m, "work_scores", first, length, SINGLE)):
                    m.d.sync += first.eq(first + length)
                    m.next = "LOAD"
            with m.State("LOAD"):
                is_there, score = self.takes(m)
                m.d.comb += [
                    self.store.addr.eq(place),
                    self.store.data.eq(flushed(score[0:FLOAT])),
                    self.store.en.eq(is_there),
                ]
                with m.If(counted_loop(m, place, is_there, length)):
                    m.next = "WEIGH"
            self._weigh(m, place, request, gains)
            with m.State("ANNOUNCE"), m.If(self.writes(m, "G", Const(0), top_k + 1, SINGLE)):
                m.next = "MEAN"
            self._means(m, place, gains)
            with m.State("DRAIN"):
                self.finishes(m, Const(1))
                with m.If(self.done):
                    m.next = "IDLE"

    def _weigh(self, m: Module, place: Signal, request: Signal, gains: Array) -> None:
        """One new score a cycle: it fills a free place, or meets the least old one not yet met."""
        length, top_k = self.argument("C"), self.argument("node_top_k")
        old_count = (length - top_k)[0:8]
        mass = Signal(FIXED)
        step, total = Signal(FIXED), Signal(FIXED)
        with m.State("WEIGH"):
            new, old = self.load_new.data, self.load_old.data
            verify = self.argument("verify_num")
            m.d.comb += [
                self.load_new.addr.eq(old_count + place),
                self.load_old.addr.eq((verify - 1 - place)[0:8]),
                self.items.eq(1),
                self.item_cycles.eq(1),
            ]
            is_free = old_count + place < verify
            displaces = ~is_free & (place < verify) & (new > old)
            m.d.comb += step.eq(gain_step(new, old, is_free, displaces))
            m.d.comb += total.eq(Mux(place == 0, 0, mass) + step)
            m.d.sync += mass.eq(total)
            m.d.sync += gains[place + 1].eq(gains[place + 1] + total)
            with m.If(counted_loop(m, place, Const(1), top_k)):
                m.d.sync += request.eq(request + 1)
                m.next = "ASK"

    def _means(self, m: Module, place: Signal, gains: Array) -> None:
        """One mean after the other."""
        batch, mean = self.argument("B"), self.mean
        with m.State("MEAN"):
            m.d.comb += [
                mean.i_start.eq(1),
                mean.i_value.eq(gains[place]),
                mean.i_divisor.eq(batch),
            ]
            m.next = "GIVE"
        with m.State("GIVE"):
            m.d.comb += [
                self.writer.i_valid.eq(mean.o_done),
                self.writer.i_data.eq(mean.o_bits),
                self.upstream_empty.eq(~mean.o_done),
            ]
            gave = mean.o_done & self.writer.o_ready
            with m.If(gave):
                m.next = "MEAN"
            with m.If(counted_loop(m, place, gave, self.argument("node_top_k") + 1)):
                m.next = "DRAIN"
