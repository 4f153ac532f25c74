"""A live round run from the host's command queue alone, and what a queue saves the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.fpga.blocks import block_named
from aerie.fpga.command_queue import (
    COMMAND,
    COMMIT,
    GROW,
    LADDER,
    MASK,
    Array,
    Runner,
    StaticQueue,
    Step,
    execute,
    micro_batches,
    names_of,
    place_of,
    queue_of,
)
from aerie.fpga.page import written
from aerie.fpga.sim.calls import define, round_calls
from aerie.fpga.sim.images import POISON, flush
from aerie.fpga.sim.round_image import round_image
from aerie.fpga.sim.study import BUS
from aerie.fpga.tree_round import TreeRound
from aerie.perf.point import Point, Sizes, Tree


@dataclass(frozen=True, eq=False)
class StepData:
    """What the host writes before a card starts, and what must stand there after it."""

    inputs: Mapping[str, Array]
    wanted: Mapping[str, Array]


def envelope_of(one: TreeRound, batch: int, context: int) -> Point:
    """An envelope for rounds like this one, with more requests and a longer context."""
    hidden = one.levels[0].hidden.shape[1]
    sizes = Sizes("recorded", hidden, 1, 1, hidden, hidden, 1, one.logits.shape[1])
    tree = Tree(one.top_k, max(one.level_widths), one.depth, one.verify_num)
    return Point(sizes, tree, batch, context)


def data_of(one: TreeRound, step: Step, queue: StaticQueue) -> StepData:
    """A recorded round's arrays as the envelope holds them, and the definition's answer."""
    if step == GROW:
        made = round_image(one, BUS)
        stored = made.image.arrays.items()
        return StepData({n: a for n, a in stored if n not in made.wanted}, made.wanted)
    block = block_named(step.name)
    inputs: dict[str, Any] = dict(round_calls(block, [one])[0].inputs)
    names = names_of(queue.envelope)
    table = np.zeros((names["P"], names["L"]), np.int32)
    old = inputs["req_to_token"][:, : names["L"]]
    table[: len(old), : old.shape[1]] = old
    inputs["req_to_token"] = table
    if step == MASK:
        inputs |= {name: names[name] for name in ("kv_capacity", "mask_capacity")}
    if step == COMMIT:
        inputs["stop_tokens"] = np.ascontiguousarray(inputs["stop_tokens"][:, : names["S"]])
    outputs = define(block, inputs)
    assert outputs is not None, f"{step.name}: the recorded round is beyond the envelope"
    arrays = {name: np.asarray(inputs[name]) for name in step.engine.PORTS if name in inputs}
    wanted = {name: outputs[name] for name in step.engine.PORTS if name not in inputs}
    return StepData(arrays, wanted)


def run_round(one: TreeRound, queue: StaticQueue, run: Sequence[Runner]) -> list[str]:
    """Run a round by nothing but the queue's bytes; the results that differ."""
    memory = bytearray([POISON]) * queue.n_bytes
    data = [data_of(one, step, queue) for step in queue.steps]

    def write(number: int) -> None:
        step = queue.steps[number]
        for name, array in data[number].inputs.items():
            span = queue.spans[place_of(step, name)]
            stored = np.ascontiguousarray(array).tobytes()
            assert len(stored) <= span.n_bytes, f"{step.name}.{name} is beyond the envelope"
            memory[span.address : span.address + len(stored)] = stored

    write(0)
    patched = queue.patched(B=one.batch, R=_rows(data))
    execute(patched, queue.steps, run, memory, lambda card: write(card + 1))
    differing = []
    for step, own in zip(queue.steps, data, strict=True):
        for name, array in own.wanted.items():
            start = queue.spans[place_of(step, name)].address
            wanted = np.ascontiguousarray(flush(np.asarray(array)))
            stored = bytes(memory[start : start + wanted.nbytes])
            seen = flush(np.frombuffer(stored, wanted.dtype))
            if seen.tobytes() != wanted.tobytes():
                differing.append(f"{step.name}.{name}")
    return differing


def _rows(data: Sequence[StepData]) -> int:
    """Rows of the round, as K4 and K7 know them."""
    return int(data[-1].inputs["qo_indptr"][-1])


def envelope_rows(sizes: Sizes, tree: Tree, context: int) -> list[dict[str, Any]]:
    """A row an envelope: commands, bytes, and words that the host writes a round."""
    found = []
    for batch in LADDER:
        queue = queue_of(Point(sizes, tree, batch, context))
        n_patched = sum(len(places) for places in queue.patches.values())
        arguments = sum(len(step.engine.arguments()) for step in queue.steps)
        found.append(
            {
                "batch": batch,
                "commands": len(queue.commands),
                "queue_bytes": len(queue.commands) * COMMAND.itemsize,
                "arena_bytes": queue.n_bytes,
                "patched_words": n_patched,
                "rings": len(queue.steps),
                # 64-bit registers by a 32-bit bus, and a start each.
                "register_writes_without": 2 * arguments + len(queue.steps),
                "kind": "analytical",
            }
        )
    return found


def page(found: Mapping[str, Any]) -> str:
    """The table, micro-batches, and the rounds that were run."""
    lines = [
        f"| {r['batch']} | {r['commands']} | {r['queue_bytes']:,} | {r['arena_bytes']:,}"
        f" | {r['patched_words']} and {r['rings']} rings | {r['register_writes_without']} |"
        for r in found["envelopes"]
    ]
    split = "; ".join(
        f"{n}: {' + '.join(f'{used} in {size}' for size, used in micro_batches(n))}"
        for n in (3, 24, 40, 128, 200, 300)
    )
    ran = found["rounds"]
    told = f"{ran['n']} recorded rounds of {ran['requests']} requests"
    tail = (
        f"\n\nMicro-batches of so many requests: {split}.\n\nRun from the queue's bytes in"
        f" Verilator (kind: rtl-sim): {told} in an envelope of {ran['envelope']},"
        f" {ran['differing']} results differ."
    )
    return written("queue", lines, found, tail)
