"""Writes the C++ that follows from the cards: config, bounds, bridges, benches, Vitis scripts.

`python -m aerie.kernels.hls.generate` writes every file; a law compares them with the cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from pathlib import Path

from aerie.kernels.card import Axis, Card, Scalar
from aerie.kernels.cards import axes
from aerie.kernels.catalogue import catalogue
from aerie.kernels.hls import drafter_cards as drafter
from aerie.kernels.hls.drafter_cards import DRAFTER_CARDS
from aerie.kernels.hls.fused_cards import FUSED_CARDS, FUSED_NODES, MAX_LEVELS
from aerie.kernels.hls.fused_draft_card import FUSED_DRAFT_CARDS
from aerie.kernels.hls.generate_outside import render_bench, render_script
from aerie.kernels.hls.limits import MAX_CANDIDATES, MAX_HIDDEN
from aerie.kernels.hls.signature import (
    FIRST_BOUND,
    Bound,
    Parameter,
    bounds,
    check_parameters,
    has_check,
    metered_parameters,
    parameters,
    ported_cards,
    wrapped,
    written_signature,
)
from aerie.kernels.status import MEANINGS, Status

FOLDER = "src/aerie/kernels/hls"
HEADER = "// Generated from the cards: python -m aerie.kernels.hls.generate\n"


def pages() -> dict[str, str]:
    """Every generated file by its path in the repository."""
    cards = ported_cards()
    tops = [*cards, *FUSED_CARDS, *DRAFTER_CARDS, *FUSED_DRAFT_CARDS]
    families = dict.fromkeys(card.family for card in tops)
    made = {
        f"{FOLDER}/include/config.hpp": render_config(),
        f"{FOLDER}/include/bounds.hpp": render_bounds(tops),
        f"{FOLDER}/include/powers.hpp": render_powers(),
    }
    for family in families:
        members = [card for card in tops if card.family == family]
        made[f"{FOLDER}/bridge/{family}.cpp"] = render_bridge(family, members)
    for card in cards:
        made[f"{FOLDER}/tb/{card.name}.cpp"] = render_bench(card)
    for card in tops:
        made[f"scripts/vitis/{card.name}.tcl"] = render_script(card)
    return made


def _axis(kernel: str, name: str) -> Axis:
    return next(axis for axis in catalogue()[kernel].axes if axis.name == name)


def _constants() -> list[tuple[str, int, str]]:
    """Name, value and meaning of every bound; trip counts and buffers are made of these."""
    replay = "extend_replay_input_operator"
    static_rows = _axis(replay, "T").high
    static_buffers = [p for p in catalogue()[replay].ports if p.kind == "inout"]
    return [
        ("MAX_BATCH", axes.BATCH.high, axes.BATCH.meaning),
        ("MAX_WIDTH", axes.WIDTH.high, axes.WIDTH.meaning),
        ("MAX_TOP_K", axes.TOP_K.high, axes.TOP_K.meaning),
        ("MAX_CHOICES", max(axes.WIDTH.high, axes.TOP_K.high), "frontier slots, or siblings"),
        ("MAX_CANDIDATES", MAX_CANDIDATES, "candidates of one layer, W*K"),
        ("MAX_HIDDEN_WORDS", 2 * MAX_HIDDEN, "16-bit words of a hidden row"),
        ("MAX_NODES", axes.NODES.high, axes.NODES.meaning),
        ("FUSED_NODES", FUSED_NODES, "nodes of a request that a fused region keeps on chip"),
        ("MAX_LEVELS", MAX_LEVELS, "levels of a fused draft"),
        ("MAX_DRAFT_ROWS", drafter.MAX_DRAFT_ROWS, "rows of a level, all requests"),
        ("MAX_DRAFT_WIDTH", drafter.MAX_DRAFT_WIDTH, "widest row of a draft head"),
        ("MAX_GROUP", drafter.MAX_GROUP, "numbers of a weight that share a scale"),
        ("MAX_HEADS", drafter.MAX_HEADS, "attention heads"),
        ("MAX_HEAD_DIM", drafter.MAX_HEAD_DIM, "width of a head"),
        ("MAX_TOP", drafter.MAX_TOP, "candidates of a row that are scored again"),
        ("RESIDENT_BYTES", drafter.RESIDENT_BYTES, "bytes of a resident weight"),
        ("MAX_VERIFY", axes.MAX_VERIFY, "rows of one request"),
        ("MAX_MERGED", axes.VERIFY.high + MAX_CANDIDATES, "old scores and a layer's"),
        ("MAX_WORK", axes.MAX_VERIFY + axes.TOP_K.high, "both runs of K3"),
        ("MAX_FED", axes.FED.high, axes.FED.meaning),
        ("MAX_ROWS", axes.ROWS.high, axes.ROWS.meaning),
        ("MAX_VOCAB", axes.VOCAB.high, axes.VOCAB.meaning),
        ("MAX_DRAFT_VOCAB", axes.DRAFT_VOCAB.high, axes.DRAFT_VOCAB.meaning),
        ("MAX_HASHES", 2 * axes.DRAFT_VOCAB.high, "places of K1's table of target ids"),
        ("MAX_RUN", axes.DEPTH.high + 1, "rows of an accepted run, root included"),
        ("MAX_STOPS", axes.STOPS.high, axes.STOPS.meaning),
        ("MAX_TABLE_WIDTH", axes.TABLE_WIDTH.high, axes.TABLE_WIDTH.meaning),
        ("MAX_MASK_BYTES", axes.MAX_VERIFY * axes.TABLE_WIDTH.high // 8, "bytes of one mask"),
        ("MAX_POOL", _axis("assign_req_to_token_pool_operator", "C").high, "fresh slots"),
        ("MAX_BUFFER", axes.ROWS.high * axes.VOCAB.high, "entries of the largest buffer"),
        ("MAX_BUCKETS", static_rows, "captured sizes, one list"),
        ("MAX_MOVES", 2 * len(static_buffers), "moves of one replay"),
        ("MAX_MOVE_BYTES", 4 * static_rows * _axis(replay, "H").high, "bytes of one move"),
        ("MAX_SLOTS", _axis("build_active_slots", "S").high, "slots of the engine"),
        ("INT32_HIGHEST", axes.INT32_MAX, "largest offset"),
        ("INT32_LOWEST", -axes.INT32_MAX, "below every offset"),
    ]


def render_config() -> str:
    """Constants and status words."""
    lines = [HEADER, "// Bounds and status words: every trip count and buffer is made of these."]
    lines += ["#pragma once\n", "#include <cstdint>\n", "namespace aerie {\n", "struct Config {"]
    for name, value, meaning in _constants():
        is_wide = abs(value) > axes.INT32_MAX
        kind, suffix = ("std::int64_t", "LL") if is_wide else ("std::int32_t", "")
        lines += [f"    // {meaning}", f"    static constexpr {kind} {name} = {value}{suffix};"]
    lines += ["};\n", "// Words of `status`, as src/aerie/kernels/status.py has them."]
    lines.append("enum class Status : std::int32_t {")
    for status in Status:
        meaning = MEANINGS[status].sentence if status else "done"
        lines.append(f"    {status.name} = {status.value},  // {meaning}")
    return "\n".join([*lines, "};\n", "}  // namespace aerie\n"])


def render_bounds(cards: Sequence[Card]) -> str:
    """One function per kernel: 0, or the code of the first bound a call violates."""
    lines = [HEADER, "// Host scalars against the cards' bounds, in each kernel's order of codes."]
    lines += ["#pragma once\n", '#include "buckets.hpp"', '#include "config.hpp"']
    lines += ['#include "numeric.hpp"\n', "namespace aerie {", "namespace bounds {\n"]
    for card in cards:
        lines += [_bounds_function(card), ""]
    return "\n".join([*lines, "}  // namespace bounds", "}  // namespace aerie\n"])


def _host_parameters(card: Card) -> tuple[Parameter, ...]:
    roles = ("size", "scalar", "list", "length")
    return tuple(entry for entry in parameters(card) if entry.role in roles)


def _bounds_function(card: Card) -> str:
    listed = _host_parameters(card)
    checks = list(enumerate(bounds(card), FIRST_BOUND))
    body = [line for code, bound in checks if not bound.limit for line in _check(code, bound)]
    limits = [line for code, bound in checks if bound.limit for line in _check(code, bound)]
    body += _bucket_names(card, "\n".join(limits)) + limits
    # Sizes that no bound reads are still part of the one signature.
    unread = [entry.name for entry in listed if not _is_read(entry.name, "\n".join(body))]
    body += [f"    static_cast<void>({name});" for name in unread]
    head = written_signature(f"inline std::int32_t {card.name}", listed)
    return "\n".join([f"{head} {{", *body, "    return 0;", "}"])


def _check(code: int, bound: Bound) -> list[str]:
    return [f"    if ({_violation(bound)}) {{", f"        return {code};", "    }"]


def _bucket_names(card: Card, limits: str) -> list[str]:
    """Names that limits have for entries of a bucket list, defined once the list is known good."""
    made = []
    for scalar in card.scalars:
        name = scalar.name
        meanings = {
            f"largest_{name}": f"{name}[n_{name} - 1]",
            f"chosen_{name}": f"smallest_bucket({name}, n_{name}, B)",
        }
        made += [
            f"    const std::int32_t {word} = {value};"
            for word, value in meanings.items()
            if _is_read(word, limits)
        ]
    return made


def _is_read(name: str, text: str) -> bool:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return name in words


def _violation(bound: Bound) -> str:
    if bound.limit is not None:
        # Axes are checked first, so the products below stay within 32 bits.
        value, limit = bound.limit.value.text, bound.limit.bound.text
        return f"{value.replace('min(', 'lower(')} > {limit}"
    assert bound.axis is not None
    if isinstance(bound.axis, Scalar) and bound.axis.kind == "ints":
        name, low, high = bound.name, bound.axis.low, bound.axis.high
        return f"!is_ascending({name}, n_{name}, {low}, {high})"
    return f"{bound.name} < {bound.axis.low} || {bound.name} > {bound.axis.high}"


def render_powers() -> str:
    """Tables of 2^(i/256) and 2^(i/65536), in [1, 2), as multiples of 2^-31."""
    lines = [
        HEADER,
        "// Powers of two for the upper and the next eight bits of a fraction, in 2^-31.",
    ]
    lines += ["#pragma once\n", "#include <cstdint>\n", "namespace aerie {"]
    for name, steps in (("COARSE_POWERS", 256), ("FINE_POWERS", 65536)):
        values = [power_of_two(index, steps) for index in range(256)]
        lines.append(f"\nconstexpr std::uint32_t {name}[256] = {{")
        for start in range(0, 256, 4):
            lines.append("    " + " ".join(f"{value}U," for value in values[start : start + 4]))
        lines.append("};")
    return "\n".join([*lines, "\n}  // namespace aerie\n"])


def power_of_two(index: int, steps: int) -> int:
    """2^(index/steps) in 2^-31, rounded; in decimal arithmetic, so the same on every machine."""
    with localcontext() as context:
        context.prec = 40
        power = Decimal(2) ** (Decimal(index) / steps) * 2**31
        return int(power.to_integral_value())


def render_bridge(family: str, cards: list[Card]) -> str:
    """The C functions of a family: bounds first, then the kernel."""
    lines = [
        HEADER,
        f"// C functions of the family {family}: host scalars checked, then the kernel.",
    ]
    lines += ['#include "bounds.hpp"', f'#include "{family}.hpp"', '#include "ports.hpp"\n']
    lines += ["#ifndef __SYNTHESIS__", "// Counters of the arrays of the last call, in its order."]
    lines += [
        f'extern "C" const aerie::Meter* {family}_meters() {{ return aerie::latest_call(); }}'
    ]
    lines += ["#endif\n"]
    for card in cards:
        lines += [_top(card, card.name, parameters(card)), ""]
        if has_check(card):
            lines += [_top(card, f"{card.name}_check", check_parameters(card)), ""]
    return "\n".join(lines)


def _top(card: Card, name: str, listed: tuple[Parameter, ...]) -> str:
    pragmas = [_interface(entry) for entry in listed]
    host = [entry.name for entry in _host_parameters(card)]
    ports = metered_parameters(listed)
    arguments = [
        f"aerie::metered({entry.name}, meters[{ports.index(entry)}])"
        if entry in ports
        else entry.name
        for entry in listed
    ]
    call = wrapped(f"    aerie::{name}(", arguments, ");")
    head = written_signature(f'extern "C" std::int32_t {name}', listed)
    return "\n".join(
        [
            f"{head} {{",
            f"    static aerie::Meter meters[{len(ports)}];",
            *pragmas,
            "#pragma HLS INTERFACE s_axilite port=return",
            wrapped(f"    const std::int32_t bound = aerie::bounds::{card.name}(", host, ");"),
            "    if (bound != 0) {",
            "        return bound;",
            "    }",
            f"    aerie::begin_call(meters, {len(ports)});",
            call,
            "    return 0;",
            "}",
        ]
    )


def _interface(entry: Parameter) -> str:
    if not entry.is_pointer:
        return f"#pragma HLS INTERFACE s_axilite port={entry.name}"
    bundle = "gmem_out" if entry.is_written else "gmem_in"
    return f"#pragma HLS INTERFACE m_axi port={entry.name} offset=slave bundle={bundle}"


def main() -> None:
    """Write every page; run from the repository root."""
    for name, text in pages().items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
