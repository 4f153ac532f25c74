"""The AXI-Lite map of a card: start, status, counters, arguments; one layout for every card."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

ADDRESS, DATA = 12, 32
CONTROL, STATUS, FIRST_COUNTER, FIRST_ARGUMENT = 0x000, 0x004, 0x010, 0x200
BUSY, DONE = 0, 1  # bits of STATUS
ARGUMENT = 64
COUNTER = 48

# What every card counts while it is busy; a stalled cycle has one cause.
COUNTERS = (
    "cycles",
    "bytes_in",
    "bytes_out",
    "busy",
    "stall_memory_read",
    "stall_memory_write",
    "upstream_empty",
    "downstream_full",
    "items",
    "item_cycles",
)


def lite_members(prefix: str = "s_axil") -> dict[str, wiring.Member]:
    """An AXI-Lite slave."""
    return {
        f"{prefix}_awaddr": In(ADDRESS),
        f"{prefix}_awprot": In(3),
        f"{prefix}_awvalid": In(1),
        f"{prefix}_awready": Out(1),
        f"{prefix}_wdata": In(DATA),
        f"{prefix}_wstrb": In(DATA // 8),
        f"{prefix}_wvalid": In(1),
        f"{prefix}_wready": Out(1),
        f"{prefix}_bresp": Out(2),
        f"{prefix}_bvalid": Out(1),
        f"{prefix}_bready": In(1),
        f"{prefix}_araddr": In(ADDRESS),
        f"{prefix}_arprot": In(3),
        f"{prefix}_arvalid": In(1),
        f"{prefix}_arready": Out(1),
        f"{prefix}_rdata": Out(DATA),
        f"{prefix}_rresp": Out(2),
        f"{prefix}_rvalid": Out(1),
        f"{prefix}_rready": In(1),
    }


def register_map(arguments: Sequence[str]) -> list[tuple[int, str]]:
    """Address and meaning of every register, for hosts and pages; counters are 64 bits wide."""
    rows = [(CONTROL, "control: bit 0 starts"), (STATUS, "status: bit 0 busy, bit 1 done")]
    rows += [(FIRST_COUNTER + 8 * i, name) for i, name in enumerate(COUNTERS)]
    return rows + [(FIRST_ARGUMENT + 8 * i, name) for i, name in enumerate(arguments)]


class Registers(wiring.Component):
    """Holds the arguments, starts the card, counts for it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.names = tuple(arguments)
        super().__init__(
            {
                **lite_members(),
                "o_start": Out(1),
                "i_done": In(1),
                **{f"o_{name}": Out(ARGUMENT) for name in self.names},
                **{f"i_{name}": In(8) for name in COUNTERS},
            }
        )

    def argument(self, name: str) -> Signal:
        """The value of one argument."""
        value: Signal = getattr(self, f"o_{name}")
        return value

    def elaborate(self, platform: object) -> Module:
        """Writes, reads, counters."""
        m = Module()
        counts = self._counters(m)
        self._writes(m)
        self._reads(m, counts)
        return m

    def _counters(self, m: Module) -> dict[str, Signal]:
        busy, done = Signal(), Signal()
        counts = {name: Signal(COUNTER, name=f"count_{name}") for name in COUNTERS}
        with m.If(self.o_start):
            m.d.sync += [busy.eq(1), done.eq(0)]
            m.d.sync += [count.eq(0) for count in counts.values()]
        with m.Elif(busy):
            m.d.sync += counts["cycles"].eq(counts["cycles"] + 1)
            for name in COUNTERS[1:]:
                m.d.sync += counts[name].eq(counts[name] + getattr(self, f"i_{name}"))
            with m.If(self.i_done):
                m.d.sync += [busy.eq(0), done.eq(1)]
        self._status = Cat(busy, done)
        return counts

    def _writes(self, m: Module) -> None:
        is_taken = self.s_axil_awvalid & self.s_axil_wvalid & ~self.s_axil_bvalid
        m.d.comb += [self.s_axil_awready.eq(is_taken), self.s_axil_wready.eq(is_taken)]
        m.d.comb += [self.s_axil_bresp.eq(0), self.o_start.eq(0)]
        with m.If(self.s_axil_bvalid & self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(is_taken):
            m.d.sync += self.s_axil_bvalid.eq(1)
            with m.If(self.s_axil_awaddr == CONTROL):
                m.d.comb += self.o_start.eq(self.s_axil_wdata[0])
            for place, name in enumerate(self.names):
                low = FIRST_ARGUMENT + 8 * place
                for half in range(2):
                    with m.If(self.s_axil_awaddr == low + 4 * half):
                        part = self.argument(name).word_select(half, DATA)
                        m.d.sync += part.eq(self.s_axil_wdata)

    def _reads(self, m: Module, counts: dict[str, Signal]) -> None:
        is_taken = self.s_axil_arvalid & ~self.s_axil_rvalid
        address = self.s_axil_araddr
        m.d.comb += [self.s_axil_arready.eq(is_taken), self.s_axil_rresp.eq(0)]
        with m.If(self.s_axil_rvalid & self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        with m.If(is_taken):
            m.d.sync += self.s_axil_rvalid.eq(1)
            m.d.sync += self.s_axil_rdata.eq(Mux(address == STATUS, self._status, 0))
            for place, name in enumerate(COUNTERS):
                for half, part in enumerate((counts[name][0:32], counts[name][32:])):
                    with m.If(address == FIRST_COUNTER + 8 * place + 4 * half):
                        m.d.sync += self.s_axil_rdata.eq(part)
