"""Captured rounds read nothing back: on a GPU a read would wait, and end a recording."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from aerie.speculation.planned_rounds import PlannedRounds
from torch.utils._python_dispatch import TorchDispatchMode

from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.graphs import Graphs
from aerie.engine.params import SamplingParams
from tests.unit.engine.cores import CHEAP, Pair, core, finish_all

SHAPES = {
    "planner": SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12),
    "fixed": SpeculationConfig(top_k=3, depth=3, nodes=8),
    "none": SpeculationConfig(method="none"),
}
BUCKETS = GraphConfig(slots=(1, 2, 4), rows=(4, 8, 16, 24), columns=(32, 64))


class RefusingReads(TorchDispatchMode):
    """Raises where a tensor becomes a number of the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_read = "_local_scalar_dense" in str(func) or "nonzero" in str(func)
        # Attention for CPUs looks at its rows; a GPU has its own.
        if is_read and not any("/attention/" in f.filename for f in traceback.extract_stack()):
            raise AssertionError(f"{func} reads a tensor's value")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", SHAPES)
def test_no_captured_function_reads_a_value(
    pair: Pair, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: set[str] = set()
    plainly = Graphs.run

    def watched(self: Graphs, key: Hashable, call: Callable[[], None]) -> None:
        assert isinstance(key, tuple)
        # In inference mode reads do not pass by.
        with torch.inference_mode(False), torch.no_grad(), RefusingReads():
            plainly(self, key, call)
        ran.add(str(key[0]))

    monkeypatch.setattr(Graphs, "run", watched)
    engine = core(
        pair,
        speculation=SHAPES[policy],
        planner=CHEAP,
        engine="graphs",
        graphs=BUCKETS,
        backend="pytorch",
    )
    assert engine.rounds is not None
    if isinstance(engine.rounds.parts.policy, PlannedRounds):
        # Made in inference mode, they could not be written outside it.
        for n_slots in BUCKETS.slots:
            engine.rounds.parts.policy.inputs(n_slots)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, SamplingParams(max_tokens=24, ignore_eos=True))
    finish_all(engine)
    assert ran >= ({"plain"} if policy == "none" else {"verify", "draft"})


@torch.inference_mode()
def test_a_read_is_noticed() -> None:
    """An index without dimensions is read: this once ended a recording on a GPU."""
    refused = pytest.raises(AssertionError, match="reads")
    with torch.inference_mode(False), RefusingReads(), refused:
        torch.arange(3)[torch.tensor(1)]
