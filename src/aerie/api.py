"""Engine: text in, text out, over the engine core; what `from aerie import Engine` gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from aerie.assemble.choices import configured, context_of
from aerie.assemble.core import Tap, build_core, load_draft, load_target, untapped, with_numerics
from aerie.completion import Completion as Completion
from aerie.config import EngineConfig, require
from aerie.engine.engine import EngineCore, Limits
from aerie.errors import EngineFailedError, RequestFailedError, UsageError
from aerie.models.hub import find_pair as find_pair
from aerie.models.probe import ProbeMode, probe_at_load
from aerie.requests.params import SamplingParams
from aerie.text.grammar import Grammars
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.texts import Texts, as_list
from aerie.texts import Update as Update
from aerie.tune.grid import Progress, silent
from aerie.tune.warm import warm

Prompt = str | Sequence[int]
# How long a thread that runs steps lets another one in: it would take the lock again at once.
PASSING_SECONDS = 5e-5
# Of loading: weights, memory and costs where none are known, rounds recorded ahead.
PHASES = ("reading", "building", "recording")


class Engine:
    """A loaded model that decodes losslessly with speculation.

    >>> engine = Engine.load()                                   # the built-in pair
    >>> engine.generate("def add(a, b):")[0].text                # doctest: +SKIP

    Threads may share an engine: they take turns step by step, and their requests are decoded
    together. `with Engine.load() as engine` frees its memory at the end, as `close` does.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self._core: EngineCore | None = core
        self.tokenizer = tokenizer
        self.config = config
        self.load_seconds: dict[str, float] = {}  # by phase
        self.grammars = Grammars(tokenizer, core.limits.vocabulary)
        self._texts = Texts(tokenizer)
        self._lock = threading.RLock()
        self._at_door: set[int] = set()  # threads that wait for the lock

    @classmethod
    def load(
        cls,
        model: str | None = None,
        draft: str | None = None,
        tap: Tap = untapped,
        progress: Progress = silent,
        **settings: Any,
    ) -> Engine:
        """Load a directory or hub id, or the built-in pair.

        Settings are the fields of `ModelConfig` (dtype, device, numerics, probe) and the other
        slices of `EngineConfig` by name:
        `Engine.load(numerics="exact", speculation={"top_k": 4, "depth": 5, "nodes": 24})`
        `tap` wraps the loaded kernels, for a capture or a study. `progress` is told what is under
        way, how much of it is done, and of how much.
        """
        config, marks = configured(model, draft, settings), [time.perf_counter()]
        target_dir, draft_dir = find_pair(config.model.model, config.model.draft)
        config = replace(config, model=with_numerics(config.model, target_dir))
        page_size = config.cache.page_size
        target = load_target(target_dir, config.model, page_size, progress)
        tokenizer = load_tokenizer(target_dir)
        head = None
        if "eagle3" in config.speculation.method:
            require(draft_dir is not None, "method eagle3 needs a draft head: give draft=DIR")
            assert draft_dir is not None
            head = load_draft(draft_dir, target, config.model, page_size)
            if model is not None:
                mode = cast(ProbeMode, config.model.probe)
                probe_at_load(target, head, mode, tokenizer.encode)
        context = context_of(config.model, target.geometry.max_positions)
        limits = Limits(context, target.geometry.vocab_size, tokenizer.eos_ids)
        marks.append(time.perf_counter())
        core = build_core(config, target, head, limits, tap, progress=progress)
        marks.append(time.perf_counter())
        # Without a device that records, there is nothing to be ready with.
        if core.config.graphs.warm == "full" and core.config.model.device != "cpu":
            warm(core, progress)
        marks.append(time.perf_counter())
        engine = cls(core, tokenizer, core.config)
        spans = (end - begin for begin, end in pairwise(marks))
        engine.load_seconds = dict(zip(PHASES, spans, strict=True))
        return engine

    @property
    def core(self) -> EngineCore:
        """The engine below the text."""
        if self._core is None:
            raise UsageError("the engine is closed: load another one")
        return self._core

    @property
    def failure(self) -> str | None:
        """Why the engine ended, or None; `submit` and `generate` raise EngineFailedError then."""
        return None if self._core is None else self._core.failure

    @property
    def open_requests(self) -> list[int]:
        """Ids that were submitted and neither collected nor abandoned."""
        return list(self._texts.by_id)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all requests and let go of models and memory; a second time does nothing."""
        with self._lock:
            if self._core is not None:
                self.abandon_all()
                self._core = None

    def submit(self, prompt: Prompt, params: SamplingParams, sample_index: int = 0) -> int:
        """Queue a prompt; returns the request's id. What is impossible changes nothing."""
        return self._submit(self._encode(prompt), _checked(params), sample_index, [])

    def cancel(self, request_id: int) -> None:
        """End a request now; the next step tells it. Unknown and finished ones are ignored."""
        with self._lock:
            self.core.cancel(request_id)

    def step(self) -> list[Update]:
        """One round for all requests; the text it added.

        Where the engine ends, every open request gets an update with the error.
        """
        self._at_door.add(threading.get_ident())
        with self._lock:
            self._at_door.discard(threading.get_ident())
            try:
                events = self.core.step()
            except EngineFailedError:
                events = self.core.take_events()
                if not events:
                    raise
            return self._texts.grow(self.core, events)

    def abandon(self, request_id: int) -> None:
        """End and forget a request that will not be collected; an unknown one is ignored."""
        with self._lock:
            self._texts.by_id.pop(request_id, None)
            self.core.discard(request_id)

    def abandon_all(self) -> None:
        """End and forget every request: the engine is as if nothing had been asked."""
        with self._lock:
            for request_id in list(self._texts.by_id):
                self.abandon(request_id)

    def collect(self, request_id: int) -> Completion:
        """The result of a finished request, which is then forgotten."""
        with self._lock:
            request, text = self.core.request(request_id), self._texts.by_id.get(request_id)
            if text is None or not text.is_over:
                raise UsageError(f"request {request_id} has not ended: step until it has")
            params = request.params
            completion = Completion(
                text="".join(update.text for update in text.log),
                token_ids=tuple(request.output),
                finish_reason=str(text.log[-1].finish_reason),
                seed=request.job.seed,
                statistics=request.statistics,
                logprobs=None if params.logprobs is None else tuple(request.scored),
                prompt_logprobs=(
                    None if params.prompt_logprobs is None else tuple(request.prompt_scored)
                ),
                error=text.log[-1].error,
            )
            self.abandon(request_id)
            return completion

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Complete prompts together; `n` samples of a prompt follow each other.

        RequestFailedError if one of them failed; its `completions` has all results. Whatever is
        raised, Ctrl-C included, nothing of this call goes on.
        """
        asked = _checked(params)
        encoded = [self._encode(prompt) for prompt in as_list(prompts)]
        ids: list[int] = []
        try:
            for tokens in encoded:
                for sample in range(asked.n):
                    self._submit(tokens, asked, sample, ids)
                    tokens = self.core.request(ids[-1]).job.prompt  # which need no more checks
            for request_id in ids:  # one after the other: those that are over are not asked again
                while not self._texts.by_id[request_id].is_over:
                    self.step()
                    self._let_in()
            completions = [self.collect(request_id) for request_id in ids]
        finally:
            for request_id in ids:
                self.abandon(request_id)
        self._raise_failed(completions)
        return completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Update]:
        """The text of one prompt as it is decided; raises RequestFailedError where it fails."""
        ids: list[int] = []
        try:
            self._submit(self._encode(prompt), _checked(params), 0, ids)
            text, n_seen = self._texts.by_id[ids[0]], 0
            while n_seen < len(text.log) or not text.is_over:
                if n_seen == len(text.log):
                    self.step()
                    self._let_in()
                new = text.log[n_seen:]
                n_seen += len(new)
                yield from new
            self._raise_failed([self.collect(ids[0])])
        finally:
            # A caller that walks away must not leave a request running, nor its record.
            for request_id in ids:
                self.abandon(request_id)

    def _encode(self, prompt: Prompt) -> Any:
        """Token ids of a text; ids are checked by the core."""
        # A beginning-of-text token would make an empty text look like a prompt.
        if isinstance(prompt, str):
            require(bool(prompt), "the prompt is empty: give at least one token")
            return self.tokenizer.encode(prompt)
        return prompt

    def _submit(
        self, tokens: Any, params: SamplingParams, sample_index: int, ids: list[int]
    ) -> int:
        """Queue token ids; `ids` has the request's id before it is queued."""
        asked = params.grammar
        grammar = None if asked is None else self.grammars.compiled(asked)  # its caller alone waits
        self._at_door.add(threading.get_ident())
        with self._lock:
            self._at_door.discard(threading.get_ident())
            ids.append(self.core.next_id)
            try:
                self._texts.open(ids[-1], params)
                return self.core.submit(tokens, params, sample_index, grammar)
            except BaseException:
                self.abandon(ids.pop())
                raise

    def _let_in(self) -> None:
        """Between two steps: other callers that wait go first."""
        if self._at_door:
            time.sleep(PASSING_SECONDS)

    def _raise_failed(self, completions: list[Completion]) -> None:
        failed = [completion for completion in completions if completion.error is not None]
        if not failed:
            return
        if self.failure is not None:
            raise EngineFailedError(f"the engine ended: {self.failure}; load a new one")
        n_all, first = len(completions), failed[0].error
        raise RequestFailedError(f"{len(failed)} of {n_all} requests failed: {first}", completions)


def _checked(params: SamplingParams | None) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise UsageError(f"params is {params!r:.60}, must be a SamplingParams")
    return params or SamplingParams()
