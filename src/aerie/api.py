"""Engine: text in, text out, over the engine core; what `from aerie import Engine` gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, cast

from aerie.assemble import Tap, build_core, load_draft, load_target, untapped
from aerie.assemble_choices import settled
from aerie.config import EngineConfig, ModelConfig, require
from aerie.engine.engine import EngineCore, Limits
from aerie.engine.events import FinishEvent, TokenEvent
from aerie.engine.measure import Progress, silent
from aerie.engine.params import SamplingParams
from aerie.engine.request import Statistics
from aerie.errors import AerieError, UnknownNameError
from aerie.models.hub import find_model
from aerie.models.probe import ProbeMode, probe_at_load
from aerie.text.output import TextOutput
from aerie.text.tokenizer import Tokenizer, load_tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Completion:
    """What one request produced."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    statistics: Statistics
    logprobs: tuple[float, ...] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Update:
    """What a step added to one request; `finish_reason` is set on the last one."""

    request_id: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None


@dataclass
class _Open:
    """A request whose text is still growing."""

    output: TextOutput
    parts: list[str] = field(default_factory=list)
    is_stopped: bool = False  # its text met a stop string


class Engine:
    """A loaded model that decodes losslessly with speculation.

    >>> engine = Engine.load()                                   # the built-in pair
    >>> engine.generate("def add(a, b):")[0].text                # doctest: +SKIP
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.config = config
        self._open: dict[int, _Open] = {}
        self._abandoned: set[int] = set()

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
        config = configured(model, draft, settings)
        target_dir, draft_dir = find_pair(config.model.model, config.model.draft)
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
        core = build_core(config, target, head, limits, tap, progress=progress)
        return cls(core, tokenizer, core.config)

    def submit(self, prompt: Prompt, params: SamplingParams, sample_index: int = 0) -> int:
        """Queue a prompt; returns the request's id."""
        # A beginning-of-text token would make an empty text look like a prompt.
        require(len(prompt) > 0, "the prompt is empty: give at least one token")
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        request_id = self.core.submit(ids, params, sample_index)
        self._open[request_id] = _Open(TextOutput(self.tokenizer, params.stop))
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a request before the next step."""
        self.core.cancel(request_id)

    def step(self) -> list[Update]:
        """One round for all requests; the text it added, in order."""
        updates: list[Update] = []
        for event in self.core.step():
            if isinstance(event, TokenEvent):
                updates.append(self._grow(event))
            elif not self._open[event.request_id].is_stopped:
                # A stop string may end the text in the very step that ends the tokens.
                updates.append(self._close(event))
        for request_id in [i for i in self._abandoned if self.core.request(i).ended is not None]:
            self._abandoned.remove(request_id)
            self.collect(request_id)
        return updates

    def abandon(self, request_id: int) -> None:
        """Cancel a request nobody will collect; it is forgotten when it ends."""
        if request_id in self._open:
            self._abandoned.add(request_id)
            self.core.cancel(request_id)

    def collect(self, request_id: int) -> Completion:
        """The result of a finished request, which is then forgotten."""
        text = "".join(self._open.pop(request_id).parts)
        request = self.core.forget(request_id)
        ended = request.ended
        assert ended is not None, "collect a request after its finish_reason"
        return Completion(
            text=text,
            token_ids=tuple(request.output),
            finish_reason=ended.reason,
            seed=request.job.seed,
            statistics=request.statistics,
            logprobs=tuple(request.logprobs) if request.params.logprobs else None,
            error=ended.error,
        )

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Complete prompts together; `n` samples of a prompt follow each other."""
        asked = params or SamplingParams()
        ids: list[int] = []
        try:
            for prompt in _as_list(prompts):
                ids += [self.submit(prompt, asked, sample) for sample in range(asked.n)]
        except AerieError:
            for request_id in ids:
                self.abandon(request_id)
            raise
        while any(self.core.request(request_id).ended is None for request_id in ids):
            self.step()
        return [self.collect(request_id) for request_id in ids]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Update]:
        """The text of one prompt as it is decided."""
        request_id = self.submit(prompt, params or SamplingParams())
        try:
            while self.core.request(request_id).ended is None:
                yield from (update for update in self.step() if update.request_id == request_id)
        finally:
            # A caller that walks away must not leave a request running, nor its record.
            self.abandon(request_id)

    def _grow(self, event: TokenEvent) -> Update:
        opened = self._open[event.request_id]
        delta = opened.output.push(event.tokens)
        opened.parts.append(delta.text)
        tokens = event.tokens[: delta.n_tokens]
        if delta.stop is None:
            return Update(event.request_id, delta.text, tokens)
        opened.is_stopped = True
        self.core.stop(event.request_id, len(event.tokens) - delta.n_tokens)
        return Update(event.request_id, delta.text, tokens, "stop")

    def _close(self, event: FinishEvent) -> Update:
        opened = self._open[event.request_id]
        delta = opened.output.finish()
        opened.parts.append(delta.text)
        reason = "stop" if delta.stop is not None else event.reason
        return Update(event.request_id, delta.text, (), reason)


def configured(model: str | None, draft: str | None, settings: dict[str, Any]) -> EngineConfig:
    """The configuration of `Engine.load`'s arguments, with everything chosen."""
    own, slices = ({entry.name for entry in fields(kind)} for kind in (ModelConfig, EngineConfig))
    for name in settings:
        if name not in own | slices:
            raise UnknownNameError("setting", name, own | slices)
    of_model = {name: value for name, value in settings.items() if name in own}
    others = {name: value for name, value in settings.items() if name not in own}
    config = EngineConfig.from_mapping(
        {**others, "model": {**of_model, "model": model, "draft": draft}}
    )
    return settled(config)


def context_of(config: ModelConfig, own: int) -> int:
    """Positions of one request: the model's own, or fewer."""
    asked = config.max_model_len or own
    require(asked <= own, f"max_model_len is {asked}, the model's context holds {own}")
    return asked


def find_pair(model: str | None, draft: str | None) -> tuple[Path, Path | None]:
    """Directories of target and head; the built-in pair when no model is named."""
    if model is None:
        built_in = Path(str(resources.files("aerie"))) / "assets" / "pair"
        head = built_in / "head" if draft is None else find_model(draft, os.environ)
        return built_in / "target", head
    return find_model(model, os.environ), find_model(draft, os.environ) if draft else None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
