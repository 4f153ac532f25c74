"""Captured rounds read nothing back: on a GPU a read would wait, and end a recording."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aerie.config import SpeculationConfig
from aerie.engine.graphs import Graphs
from aerie.requests.params import SamplingParams
from aerie.speculation.planner import Planner
from tests.unit.engine.automata import Automaton, submit
from tests.unit.engine.cores import BUCKETS, Pair, core, finish_all

SHAPES = {
    "planner": SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12),
    "fixed": SpeculationConfig(top_k=3, depth=3, nodes=8),
    "merged": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=9),
    "coins": SpeculationConfig(top_k=2, depth=2, nodes=5, rule="coins"),
    "none": SpeculationConfig(method="none"),
}


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

    def watched(self: Graphs, key: Hashable, call: Callable[[], Any]) -> Any:
        assert isinstance(key, tuple)
        ran.add(str(key[0]))
        # In inference mode reads do not pass by.
        with torch.inference_mode(False), torch.no_grad(), RefusingReads():
            return plainly(self, key, call)

    monkeypatch.setattr(Graphs, "run", watched)
    engine = core(pair, speculation=SHAPES[policy], engine="graphs", backend="pytorch")
    if isinstance(engine.parts.policy, Planner):
        # Made in inference mode, they could not be written outside it.
        for n_seats in BUCKETS.slots:
            engine.parts.policy.offers.of(n_seats)
    asked = {"temperature": 0.8, "seed": 4}
    if policy != "coins":
        asked |= {"top_p": 0.9, "presence_penalty": 0.3, "logit_bias": {3: 1.0}, "min_tokens": 2}
        asked |= {"logprobs": 2}
    for prompt, options in (([1, 2, 3], {}), ([4, 5], {}), ([6] * 9, asked)):
        engine.submit(prompt, SamplingParams(max_tokens=24, ignore_eos=True, **options))
    finish_all(engine)
    known = {"read", "seat", "verify", "publish", "close" if policy == "none" else "draft"}
    if policy != "coins":
        engine.parts.state.hold_masks()  # for the same reason
        submit(engine, [7, 8], SamplingParams(max_tokens=9, grammar=Automaton("reads")))
        finish_all(engine)
    assert ran >= known


@torch.inference_mode()
def test_a_read_is_noticed() -> None:
    """An index without dimensions is read: this once ended a recording on a GPU."""
    refused = pytest.raises(AssertionError, match="reads")
    with torch.inference_mode(False), RefusingReads(), refused:
        torch.arange(3)[torch.tensor(1)]
