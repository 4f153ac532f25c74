"""Generated files that are used outside Python: test benches and Vitis scripts."""

from __future__ import annotations

from aerie.kernels.card import Card, Port
from aerie.kernels.catalogue import catalogue
from aerie.kernels.hls.signature import (
    COLUMNS,
    FIRST_BOUND,
    Parameter,
    bounds,
    check_parameters,
    has_check,
    parameters,
    wrapped,
    written_signature,
)

# What synthesis takes of a kernel whose moves a DMA engine carries out.
DESCRIBED = {
    "draft_replay_input_operator": "aerie::describe_draft_replay",
    "extend_replay_input_operator": "aerie::describe_extend_replay",
}

BENCH_HEADER = """\
// Generated from the cards: python -m aerie.kernels.hls.generate
// Test bench of {number} {name}:
// dump files in, 0 out if the kernel agrees with all of them.
#include "bench.hpp"

"""

SCRIPT = """\
# Generated from the cards: python -m aerie.kernels.hls.generate
# Not run here: no vendor tool is at hand. Written for Vitis HLS 2024.1 and later; from the
# repository root:  vitis-run --mode hls --tcl scripts/vitis/{name}.tcl
# {number}: {meaning}
set folder src/aerie/kernels/hls
set flags "-std=c++17 -I[file normalize $folder/include]"

open_project -reset build/vitis/{name}
add_files $folder/bridge/{family}.cpp -cflags $flags
{bench}set_top {top}
open_solution -reset solution -flow_target vivado
set_part {{{part}}}
create_clock -period {period} -name clock
{simulation}csynth_design
exit
"""
# A kernel has a bench that replays its dumps; a fused top is compared from Python only.
BENCH = 'add_files -tb $folder/tb/{name}.cpp -cflags "$flags -I[file normalize $folder/tb]"\n'
SIMULATION = """\
set folder_of_dumps [file normalize tests/data/dumps]
set dumps [lsort [glob -nocomplain -directory $folder_of_dumps {name}-*.safetensors]]
csim_design -argv [join $dumps " "]
"""
# The card is V80-class; 300 MHz is a modest goal for its fabric.
PART = "xcv80-lsva4737-2MHP-e-S"
CLOCK_PERIOD_NS = 3.33


def render_script(card: Card) -> str:
    """The Vitis HLS script of a kernel."""
    has_bench = card.name in set(catalogue())
    return SCRIPT.format(
        bench=BENCH.format(name=card.name) if has_bench else "",
        simulation=SIMULATION.format(name=card.name) if has_bench else "",
        name=card.name,
        number=card.number,
        family=card.family,
        meaning=card.summary.partition(".")[0],
        top=DESCRIBED.get(card.name, card.name),
        part=PART,
        period=CLOCK_PERIOD_NS,
    )


def render_bench(card: Card) -> str:
    """The test bench of a kernel: sizes from shapes, arrays from the dump, results compared."""
    listed = parameters(card)
    text = BENCH_HEADER.format(number=card.number, name=card.name)
    text += written_signature(f'extern "C" std::int32_t {card.name}', listed) + ";\n"
    functions = [_call(card, "run", card.name, listed)]
    if has_check(card):
        name, asked = f"{card.name}_check", check_parameters(card)
        text += written_signature(f'extern "C" std::int32_t {name}', asked) + ";\n"
        functions.append(_call(card, "check", name, asked))
    # Bounds of the hardware alone come last.
    own = FIRST_BOUND + len(bounds(catalogue()[card.name]))
    check = "check" if has_check(card) else "nullptr"
    body = "\n\n".join(functions)
    return (
        f"{text}\nnamespace {{\n\nusing aerie::bench::Call;\n\n{body}\n\n}}  // namespace\n\n"
        "int main(int argc, char** argv) {\n"
        f'    const aerie::bench::Kernel kernel = {{"{card.name}",\n'
        f"                                         {card.version}, {own}, run, {check}}};\n"
        "    return aerie::bench::run_all(kernel, argc, argv);\n"
        "}\n"
    )


def _call(card: Card, function: str, name: str, listed: tuple[Parameter, ...]) -> str:
    lines = [f"std::int32_t {function}(Call& call) {{"]
    lines += [_constant(name, value) for name, value in _sizes(card)]
    ports = {port.name: port for port in card.ports}
    scalars = [entry.name for entry in listed if entry.role == "scalar"]
    lines += [_constant(name, f'call.scalar("{name}")') for name in scalars]
    for port in card.inputs:
        lines.append(f'    call.expect("{port.name}", {{{", ".join(_dimensions(port))}}});')
    lines += ["    if (!call.is_consistent()) {", "        return aerie::bench::HOST;", "    }"]
    arguments = [_argument(card, entry, ports.get(entry.name)) for entry in listed]
    lines.append(wrapped(f"    return {name}(", arguments, ");"))
    return "\n".join([*lines, "}"])


def _constant(name: str, value: str) -> str:
    line = f"    const std::int32_t {name} = {value};"
    return line if len(line) <= COLUMNS else f"    const std::int32_t {name} =\n        {value};"


def _sizes(card: Card) -> list[tuple[str, str]]:
    """Name and expression of every axis, in an order in which each can be computed."""
    known = {scalar.name for scalar in card.scalars if scalar.kind != "ints"}
    made: list[tuple[str, str]] = []
    pending = list(card.axes)
    while pending:
        axis = next(axis for axis in pending if _sources(card, axis.name, known))
        value = str((card.defaults or {}).get(axis.name, axis.low))
        for port, place, offset, divisor in reversed(_sources(card, axis.name, known)):
            value = f'call.size("{port}", {place}, {offset}, {divisor}, {value})'
        made.append((axis.name, value))
        known.add(axis.name)
        pending.remove(axis)
    if any(entry.name == "E" for entry in parameters(card)):
        hidden = next(port for port in card.inputs if len(port.dtypes) > 1)
        made.append(("E", f'call.item_bytes("{hidden.name}")'))
    return made


def _sources(card: Card, axis: str, known: set[str]) -> list[tuple[str, int, int, str]]:
    """Port, axis, offset and divisor from which a size follows, plain dimensions first.

    One array that is always there is enough; of optional ones each is tried.
    """
    found = []
    for port in card.inputs:
        for place, dim in enumerate(port.dims):
            others = [name for name in dim.factors if name != axis]
            if axis in dim.factors and set(others) <= known:
                divisor = " * ".join(_value(card, name) for name in others) or "1"
                key = (len(others), port.optional)
                found.append((key, (port.name, place, dim.offset, divisor)))
    found.sort(key=lambda entry: entry[0])
    if found and not found[0][0][1]:
        return [found[0][1]]
    return [source for _, source in found]


def _dimensions(port: Port) -> list[str]:
    """The shape the sizes ask of an input."""
    texts = []
    for dim in port.dims:
        product = " * ".join(dim.factors) or "1"
        texts.append(f"{product} + {dim.offset}" if dim.offset else product)
    return texts


def _value(card: Card, name: str) -> str:
    is_scalar = name in {scalar.name for scalar in card.scalars}
    return f'call.scalar("{name}")' if is_scalar else name


def _argument(card: Card, entry: Parameter, port: Port | None) -> str:
    if entry.role in ("size", "scalar"):
        return entry.name
    if entry.role == "flag":
        return f'call.has("{entry.name.removeprefix("has_")}")'
    if entry.role == "length":
        return f'call.length("{entry.name.removeprefix("n_")}")'
    if entry.role == "list":
        return f'call.list("{entry.name}")'
    if not entry.is_written:
        return f'call.in<{entry.element}>("{entry.name}")'
    if port is None:
        return f'call.out<std::int64_t>("{entry.name}", B, aerie::bench::EXACT)'
    if port.kind == "inout":
        return f'call.inout<{entry.element}>("{entry.name}")'
    if len(port.dtypes) > 1:
        return f'call.out_hidden("{entry.name}", {_count(port)}, E)'
    tolerance = card.tolerance(port.name)
    ulps = f"{{{tolerance.cpu}, {tolerance.gpu}}}"
    return f'call.out<{entry.element}>("{entry.name}", {_count(port)}, {ulps})'


def _count(port: Port) -> str:
    """Entries of a result as C++: the card's formulas are integer arithmetic in both languages."""
    texts = [f"({text})" for text in port.shape] or ["1"]
    return " * ".join(["1LL", *texts]).replace("min(", "std::min(")
