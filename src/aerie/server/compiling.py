"""Requests whose grammars are being compiled, in threads: rounds go on meanwhile."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from aerie.server.samples import Submit
from aerie.text.grammar import Grammars
from aerie.text.matcher import Compiled

LOOK_SECONDS = 0.02  # at the line, while nothing else is to be done


class Compiling:
    """Groups that wait for a grammar, in the order they came."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._waiting: dict[int, tuple[Submit, list[Future[Compiled]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def start(self, group: Submit) -> None:
        """A group without a grammar, or with a known one, is ready at once."""
        asked = {ask.params.grammar for ask in group.asks if ask.params.grammar is not None}
        self._waiting[group.key] = group, [self._grammars.start(grammar) for grammar in asked]

    def drop(self, key: int) -> None:
        """The client of these waits no more."""
        self._waiting.pop(key, None)

    def ready(self) -> list[Submit]:
        """Those whose grammars are compiled, or cannot be: to submit them says which."""
        done = [
            group
            for group, futures in self._waiting.values()
            if all(future.done() or self._grammars.is_late(future) for future in futures)
        ]
        for group in done:
            self.drop(group.key)
        return done

    def rest(self) -> None:
        """Sleep until one may be ready, or the line may have something."""
        futures = [future for _, own in self._waiting.values() for future in own]
        wait(futures, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
