"""What is recorded in parts is replayed in parts, and the host looks in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from aerie.engine.graphs import Graphs


class Recorder:
    """Stands for CUDA's graphs: notes what is begun, ended and replayed."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.n_made = 0
        self.n_open = 0

    def make(self) -> Any:
        recorder, number = self, self.n_made
        self.n_made += 1

        class Made:
            def replay(self) -> None:
                recorder.order.append(f"part {number}")

        return Made()

    @contextmanager
    def recording(self, graph: Any, **settings: Any) -> Iterator[None]:
        assert not self.n_open, "one at a time"
        self.n_open += 1
        try:
            yield
        finally:
            self.n_open -= 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", found.make)
    monkeypatch.setattr(torch.cuda, "graph", found.recording)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    return found


def recording_graphs() -> Graphs:
    graphs = Graphs("cpu")
    graphs._is_captured = True
    return graphs


def test_a_function_is_cut_where_the_host_looks(recorder: Recorder) -> None:
    graphs, order = recording_graphs(), recorder.order

    def function() -> None:
        order.append("begin")
        graphs.cut(lambda: order.append("look"))
        order.append("end")

    graphs.run(("f",), function)
    # Once for real, with a look; then recorded, which looks at nothing.
    assert order == ["begin", "look", "end", "begin", "end"] and recorder.n_made == 2
    order.clear()
    graphs.run(("f",), function)
    assert order == ["part 0", "look", "part 1"] and not recorder.n_open
    assert (graphs.counts.captures, graphs.counts.replays, graphs.counts.direct) == (1, 1, 1)


def test_what_fails_while_it_is_recorded_leaves_nothing_open(recorder: Recorder) -> None:
    graphs = recording_graphs()

    def failing() -> None:
        graphs.cut(lambda: None)
        raise ValueError("out of memory")

    with pytest.raises(ValueError, match="memory"):
        graphs.prepare(("g",), failing)
    assert not recorder.n_open and not graphs.has(("g",))
    graphs.run(("h",), lambda: graphs.cut(lambda: recorder.order.append("look")))
    assert recorder.order == ["look"], "called for real, then recorded"
