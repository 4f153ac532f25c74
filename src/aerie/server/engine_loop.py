"""The engine's side of the line: takes requests in between steps, tells what each step decided."""

from __future__ import annotations

import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aerie.api import Engine, Update
from aerie.errors import AerieError, EngineFailedError, UsageError
from aerie.requests.request import Request, Scored, State
from aerie.server.compiling import Compiling
from aerie.server.line import Line, LineEnded
from aerie.server.rounds import describe_round
from aerie.server.samples import (
    SCORED,
    Abandon,
    Accepted,
    Batch,
    Begun,
    End,
    Facts,
    Failed,
    Forget,
    Item,
    Numbers,
    Piece,
    Round,
    Scores,
    Submit,
)
from aerie.text.chat import ChatTemplate
from aerie.text.dialects import AUTO, HARMONY, find_dialect
from aerie.tune.warm import Idle

LOG = logging.getLogger("aerie.server")
LOOK_SECONDS = 1.0  # between two looks of an idle engine at the other ranks
MOST_SCORED = 1024  # tokens in a message: twenty alternatives of each are some 0.5 MB


@dataclass(frozen=True)
class Loaded:
    """What there is to serve with."""

    engine: Engine
    template: ChatTemplate
    tool_parser: str = AUTO
    is_template_given: bool = False  # by --chat-template: it writes chats, whatever they look like

    def facts(self) -> Facts:
        """What the other end has to know of it."""
        core = self.engine.core
        weights, ledger = core.parts.target.embedding, core.memory.ledger
        dialect = find_dialect(self.tool_parser, self.template.sources)
        return Facts(
            tokenizer=self.engine.tokenizer,
            template=self.template,
            config=core.config,
            limits=core.limits,
            device=str(weights.device),
            dtype=str(weights.dtype).removeprefix("torch."),
            n_pages=ledger.n_pages,
            page_size=ledger.page_size,
            load_seconds=dict(self.engine.load_seconds),
            dialect=dialect,
            writes_harmony=dialect.name == HARMONY and not self.is_template_given,
        )


@dataclass(eq=False)
class Seat:
    """One sample in the engine."""

    group: Submit
    index: int
    request: Request
    entered: float  # time.monotonic(), which all processes of a machine share
    started: float | None = None
    is_prompt_told: bool = False  # its scores

    @property
    def is_waiting(self) -> bool:
        """Whether it has no slot, yet or any more."""
        return self.request.state is State.WAITING


def run_engine(
    load: Callable[[], Loaded], line: Line, check: Callable[[], object] = lambda: None
) -> None:
    """Load an engine and run it until the line ends; what goes wrong is said over the line."""
    try:
        check()
        line.send(Begun())
        EngineLoop(load(), line).run()
    except LineEnded:
        pass
    except Exception as failure:  # whatever it is, waiting clients must hear of it
        # What aerie raises on purpose says what to do; anything else is ours to find.
        is_known = isinstance(failure, AerieError)
        if not is_known:
            LOG.error("the engine failed", exc_info=failure)
        words = str(failure) if is_known else f"{type(failure).__name__}: {failure}"
        line.send(Failed(words))
    line.close()


class EngineLoop:
    """Runs an engine: what the line brings, a step, what it decided back over the line."""

    def __init__(self, loaded: Loaded, line: Line) -> None:
        self._loaded = loaded
        self._engine = loaded.engine
        self._line = line
        self._seats: dict[int, Seat] = {}  # by engine id
        # Those that the engine had not begun with, in order; any of them may leave.
        self._queue: OrderedDict[int, Seat] = OrderedDict()
        self._groups: dict[int, set[int]] = {}  # engine ids of what is not over, by group
        self._compiling = Compiling(loaded.engine.grammars)
        self._items: list[tuple[int, Item]] = []
        self._numbers = Numbers()  # as they were told
        # Nothing else says that a part of the target is gone.
        self._rest = LOOK_SECONDS if loaded.engine.config.model.tensor_parallel > 1 else None

    def run(self) -> None:
        """Until the line ends, which raises LineEnded."""
        engine = self._engine
        self._hand_out()  # the numbers first: the facts say that it is ready
        self._line.send(self._loaded.facts())
        idle = Idle(engine.core) if engine.config.graphs.warm == "quick" else None
        while True:
            self._take(idle)
            self._step()

    def _take(self, idle: Idle | None) -> None:
        """Do what waits; records or sleeps while there is nothing to decode."""
        engine = self._engine
        while True:
            commands = self._line.receive()
            for command in commands:
                self._do(command)
            ready = self._compiling.ready()
            for group in ready:
                self._submit(group)
            if commands or ready:
                self._hand_out()
            if not engine.core.is_idle:
                return
            if self._compiling:
                self._compiling.rest()
            elif idle:
                idle.record_one()
                self._hand_out()
            else:
                self._line.wait(self._rest)
                engine.core.require_life()

    def _do(self, command: Submit | Abandon | Forget) -> None:
        if isinstance(command, Submit):
            self._compiling.start(command)
        elif isinstance(command, Abandon):
            self._abandon(command.key)
        else:
            self._engine.core.memory.forget()

    def _step(self) -> None:
        began, engine = time.monotonic(), self._engine
        updates = engine.step()
        if engine.failure is not None:
            raise EngineFailedError(engine.failure)
        while self._queue and not next(iter(self._queue.values())).is_waiting:
            _, seat = self._queue.popitem(last=False)  # first come, first served
            seat.started = began
        self._show()
        for update in updates:
            own = self._seats.get(update.request_id)
            if own is not None:
                self._tell(own, update)
        self._hand_out()

    def _show(self) -> None:
        """Before what a round added is told, and its requests are gone."""
        trees = self._engine.core.launcher.trees
        for request_id in trees:
            seat = self._seats.get(request_id)
            if seat is not None and seat.group.shows_rounds:
                shown = describe_round(trees[request_id], self._engine.tokenizer)
                self._items.append((seat.group.key, Round(seat.index, shown)))

    def _tell(self, seat: Seat, update: Update) -> None:
        key, index, request = seat.group.key, seat.index, seat.request
        n_all, n_new = request.n_output, len(update.token_ids)
        scored = tuple(request.scored[n_all - n_new : n_all])
        is_first = n_new == n_all
        if is_first and not seat.is_prompt_told:
            seat.is_prompt_told = True
            self._tell_scores(seat, "prompt_logprobs", request.prompt_scored)
        self._items.append((key, Piece(index, update.text, update.token_ids, scored, is_first)))
        if update.finish_reason is not None:
            del self._seats[update.request_id]
            self._groups[key].remove(update.request_id)
            completion = self._engine.collect(update.request_id)
            self._tell_scores(seat, "logprobs", completion.logprobs or ())
            told: Any = {name: () for name in SCORED if getattr(completion, name) is not None}
            completion = replace(completion, **told)
            started = seat.started or time.monotonic()
            self._items.append((key, End(index, completion, seat.entered, started)))

    def _tell_scores(self, seat: Seat, name: str, scored: Sequence[Scored]) -> None:
        """Before the item they belong to, which is told at the end of the step."""
        for start in range(0, len(scored), MOST_SCORED):
            part = Scores(seat.index, name, tuple(scored[start : start + MOST_SCORED]))
            self._line.send(Batch([(seat.group.key, part)], self._numbers))

    def _submit(self, group: Submit) -> None:
        engine, now = self._engine, time.monotonic()
        ids = self._groups[group.key] = set()
        try:
            for index, ask in enumerate(group.asks):
                request_id = engine.submit(ask.prompt, ask.params, ask.sample_index)
                ids.add(request_id)
                request = engine.core.request(request_id)
                self._seats[request_id] = seat = Seat(group, index, request, now)
                self._queue[request_id] = seat
        except EngineFailedError:
            raise
        except Exception as error:  # it belongs to this request, which ends alone
            self._abandon(group.key)
            self._items.append((group.key, _portable(error)))
        else:
            self._items.append((group.key, Accepted()))

    def _abandon(self, key: int) -> None:
        self._compiling.drop(key)
        for request_id in self._groups.pop(key, ()):
            del self._seats[request_id]
            self._queue.pop(request_id, None)
            self._engine.abandon(request_id)

    def _hand_out(self) -> None:
        """Everything of a step in one message, and the numbers where they have changed."""
        items, self._items = self._items, []
        numbers = self._count()
        if items or numbers != self._numbers:
            self._numbers = numbers
            self._line.send(Batch(items, numbers))

    def _count(self) -> Numbers:
        core = self._engine.core
        return Numbers(
            n_running=len(self._seats) - core.n_waiting,
            n_waiting=core.n_waiting,
            n_free_pages=core.memory.ledger.n_free + core.memory.ledger.n_idle,
            n_graphs=core.launcher.graphs.counts.captures,
            # Why the last round drafted, or did not.
            reason=getattr(core.parts.policy, "reason", None),
        )


def _portable(error: Exception) -> Exception:
    """The same for the client; not every exception can be rebuilt from what it says."""
    for kind in (UsageError, AerieError):
        if isinstance(error, kind):
            return kind(str(error))
    found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note("".join(traceback.format_exception(error)))
    return found
