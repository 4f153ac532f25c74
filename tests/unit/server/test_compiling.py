"""Requests that wait for a grammar: no others wait with them."""

from concurrent.futures import Future
from typing import Any

from aerie.requests.params import SamplingParams
from aerie.server.compiling import Compiling
from aerie.server.samples import Ask, Submit
from aerie.text.grammar import Constraint, Regex


class Slow:
    """Stands for `Grammars`: futures that a test completes."""

    def __init__(self) -> None:
        self.futures: dict[Constraint, Future[Any]] = {}
        self.late: set[Future[Any]] = set()

    def start(self, constraint: Constraint) -> Future[Any]:
        return self.futures.setdefault(constraint, Future())

    def is_late(self, future: Future[Any]) -> bool:
        return future in self.late


def group(key: int, *grammars: Constraint | None) -> Submit:
    asks = (Ask((1,), SamplingParams(grammar=grammar), 0) for grammar in grammars)
    return Submit(key, tuple(asks), False)


def test_whoever_is_ready_enters_whoever_else_waits() -> None:
    grammars: Any = Slow()
    compiling = Compiling(grammars)
    for asked in (group(1, Regex("a"), Regex("b")), group(2, None), group(3, Regex("b"))):
        compiling.start(asked)
    assert [own.key for own in compiling.ready()] == [2] and compiling
    grammars.futures[Regex("b")].set_exception(ValueError("no such thing"))
    assert [own.key for own in compiling.ready()] == [3], "to submit it says what is wrong"
    compiling.rest()  # a moment at most
    grammars.late.add(grammars.futures[Regex("a")])
    assert [own.key for own in compiling.ready()] == [1] and not compiling


def test_who_leaves_is_not_submitted() -> None:
    grammars: Any = Slow()
    compiling = Compiling(grammars)
    compiling.start(group(1, Regex("a")))
    compiling.drop(1)
    grammars.futures[Regex("a")].set_result(object())
    assert not compiling and compiling.ready() == []
