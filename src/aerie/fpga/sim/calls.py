"""Calls that a block is simulated on: dumps, parity cases, live rounds, random vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.errors import KernelError
from aerie.fpga.blocks import Block
from aerie.fpga.sim.vectors import VECTORS, n_vectors
from aerie.fpga.trace import TraceRecipe, record
from aerie.fpga.tree_round import TreeRound
from aerie.fpga.tree_runs import run_unfused
from aerie.kernels.arrays import as_numpy
from aerie.kernels.cases import cases_for
from aerie.kernels.registry import load
from aerie.parity.dump import find_dumps, read_dump


@dataclass(frozen=True, eq=False)
class SimCall:
    """One call with the definition's answer; `vectors` is what it counts for."""

    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    vectors: int = 1


def define(block: Block, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the reference answers, written arrays included; None where a host refuses the call."""
    if not block.kernel:
        target = inputs["target_rows"].copy()
        target[inputs["moves"][:, 1]] = inputs["source_rows"][inputs["moves"][:, 0]]
        return {"target_rows": target}
    kernel = load("reference", data_errors="status")[block.kernel]
    given = {key: _copied(value) for key, value in inputs.items()}
    try:
        found = kernel(**given)._asdict()
    except KernelError:
        return None
    results = {key: as_numpy(value) for key, value in found.items()}
    return results | {name: given[name] for name in kernel.card.written}


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _defined(block: Block, named: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[SimCall]:
    for name, inputs in named:
        outputs = define(block, inputs)
        if outputs is not None:
            yield SimCall(name, inputs, outputs)


def dump_calls(block: Block, folder: Path) -> Iterator[SimCall]:
    """The captured calls of a folder."""
    dumps = ((path.stem, read_dump(path)) for path in find_dumps(folder))
    own = ((name, dump.arguments()) for name, dump in dumps if dump.card.name == block.kernel)
    return _defined(block, own)


def case_calls(block: Block) -> Iterator[SimCall]:
    """The parity cases; those that are refused before a kernel runs are left out."""
    cases = cases_for(block.kernel) if block.kernel else ()
    return _defined(block, ((case.name, case.build()) for case in cases))


def live_rounds(recipes: Iterable[TraceRecipe]) -> list[TreeRound]:
    """Rounds of a live engine."""
    return [traced.round for recipe in recipes for traced in record(recipe)]


def round_calls(block: Block, rounds: Iterable[TreeRound]) -> list[SimCall]:
    """A block's calls in whole rounds, in their order."""
    kernels = load("reference", data_errors="status")
    found: list[SimCall] = []

    def call(name: str, **inputs: Any) -> Mapping[str, Any]:
        before = {key: _copied(value) for key, value in inputs.items() if value is not None}
        kernel = kernels[name]
        given = {key: value for key, value in inputs.items() if value is not None}
        results = {key: as_numpy(value) for key, value in kernel(**given)._asdict().items()}
        if name == block.kernel:
            after = {key: given[key].copy() for key in kernel.card.written}
            found.append(SimCall(f"live-{len(found)}", before, results | after))
        return results

    for one in rounds:
        run_unfused(one, call)
    return found


def random_calls(block: Block, n: int, seed: int) -> Iterator[SimCall]:
    """At least `n` random vectors."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < n:
        inputs = VECTORS[block.name](rng)
        outputs = define(block, inputs)
        assert outputs is not None, f"a random call of {block.name} is out of its card's bounds"
        count = n_vectors(block.name, inputs)
        yield SimCall(f"random-{done}", inputs, outputs, count)
        done += count
