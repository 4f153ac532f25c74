"""The build for one model against the generic one: arguments as constants, the map as a ROM.

Both builds are synthesised and simulated on the same call, whose results must be bit for bit right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.fpga.blocks import WIDE, block_named
from aerie.fpga.build_verilator import build_card
from aerie.fpga.page import written
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.floats import FLOAT
from aerie.fpga.rtl.layer import LayerScores
from aerie.fpga.sim.calls import define
from aerie.fpga.sim.images import CallImage
from aerie.fpga.sim.largest import LARGEST
from aerie.fpga.synth import RESOURCES, Instance, synthesise

BATCH = 8
MAP_ENTRIES, TARGET_IDS = 4096, 128_256
WIDTH = 4  # of K1's frontier here: 16 candidates are mapped in a tenth of the time of 64
RECORD = FLOAT + 4  # a score and one of 16 places


@dataclass(frozen=True)
class Specialised:
    """One card: which of its arguments a model fixes, and how a build is made."""

    name: str
    fixed: tuple[str, ...]
    make: Callable[[bool], CardEngine]  # whether comparators are instances, for synthesis
    prefixes: tuple[str, ...] = ("m_axi",)
    comparator: int = 0


def _of(name: str) -> Callable[[bool], CardEngine]:
    return lambda is_synthesised: block_named(name).make()


def _layer(is_synthesised: bool) -> CardEngine:
    return LayerScores(WIDTH * WIDTH, instance=is_synthesised)


# Sizes of the model (rows, ids), of the policy (children, rows to verify, levels) and of the pool.
CARDS = (
    Specialised("layer", ("K", "row_beats"), _layer, WIDE, RECORD),
    Specialised("merge", ("M",), _of("merge")),
    Specialised("deltas", ("node_top_k", "verify_num"), _of("deltas")),
    Specialised("mask", ("P", "L"), _of("mask")),
    Specialised("commit", ("D", "S", "P", "L"), _of("commit")),
    Specialised("gather", ("row_beats",), _of("gather"), WIDE),
)  # fmt: skip


def call_of(card: Specialised) -> CallImage:
    """The largest call of eight requests; K1 with 16 candidates and its map."""
    block = block_named(card.name)
    rng = np.random.default_rng(0)
    inputs = LARGEST[card.name](rng, BATCH)
    if card.name == "layer":
        inputs |= {
            name: inputs[name][:, : WIDTH * WIDTH] for name in ("topk_probas", "topk_tokens")
        }
        inputs["topk_tokens"] = inputs["topk_tokens"] % MAP_ENTRIES
        inputs["last_layer_scores"] = inputs["last_layer_scores"][:, :WIDTH]
        inputs["input_hidden"] = inputs["input_hidden"][: BATCH * WIDTH]
        inputs["hot_token_id"] = np.sort(rng.permutation(TARGET_IDS)[:MAP_ENTRIES])
    outputs = define(block, inputs)
    assert outputs is not None, f"the largest call of {card.name} is out of its card's bounds"
    return block.image(inputs, outputs)


def compare(card: Specialised, folder: Path) -> dict[str, Any]:
    """Synthesise and simulate both builds on one call; a row for the table."""
    call = call_of(card)
    constants = {name: call.registers[name] for name in card.fixed}
    ids = call.image.arrays["hot_token_id"].tolist() if card.name == "layer" else []

    def special(instance: bool) -> CardEngine:
        made = card.make(instance).fixing(constants)
        return made.with_map(ids) if isinstance(made, LayerScores) else made

    # The generic build has the name that `synthesise` knows it by: kept results count.
    generic = _built(card, card.make, call, folder / (card.name if not ids else "layer_16"))
    own = _built(card, special, call, folder / f"{card.name}_special")
    told = {**constants, **({"VD": len(ids)} if ids else {})}
    named = {"card": card.name, "constants": told}
    wrong = [*generic.pop("differing"), *own.pop("differing")]
    builds = (("generic", generic), ("special", own))
    values = {f"{kind}_{name}": n for kind, build in builds for name, n in build.items()}
    return {**named, "differing": wrong, **values, "kind": "synthesis (yosys), rtl-sim"}


def _built(
    card: Specialised, make: Callable[[bool], CardEngine], call: CallImage, folder: Path
) -> dict[str, Any]:
    """What a build takes, what it needs for the call, and the results that differ."""
    instance = Instance(folder.name, "", lambda: make(True), card.comparator)
    takes = synthesise(instance, folder).takes
    built = build_card(make(False), folder.name, card.prefixes)
    memory = bytearray(call.image.memory)
    cycles = built.run(memory, call.registers)["cycles"]
    needs = {"cycles": cycles, "registers": len(built.arguments)}
    return {**takes, **needs, "differing": call.differing(memory)}


def page(record: Mapping[str, Any]) -> str:
    """The table."""
    lines = []
    for row in record["rows"]:
        fixed = ", ".join(f"{name} {value}" for name, value in row["constants"].items())
        names = (*RESOURCES[:4], "cycles")
        pairs = [(row[f"generic_{name}"], row[f"special_{name}"]) for name in names]
        cells = " | ".join(f"{a:,.10g} / {b:,.10g}" for a, b in pairs)
        shares = (_less(*pairs[0]), _less(*pairs[-1]))
        lines.append(f"| {row['card']} | {fixed} | {cells} | {shares[0]} | {shares[1]} |")
    return written("special", lines, record)


def _less(before: float, after: float) -> str:
    return f"{100 * (before - after) / before:.1f} %"
