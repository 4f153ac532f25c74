"""The options of every command that loads an engine: declared once, turned into settings once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from aerie.cli.output import integers
from aerie.cli.progress import shown
from aerie.errors import UsageError

if TYPE_CHECKING:
    from aerie.api import Engine
    from aerie.config import EngineConfig, SpeculationConfig

PANELS = MODEL, MEMORY, DRAFTS = "Model and device", "Memory and batch", "Speculation"


def _option(*names: str, panel: str, help: str, **bounds: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **bounds)


_model = functools.partial(_option, panel=MODEL)
_memory = functools.partial(_option, panel=MEMORY)
_drafts = functools.partial(_option, panel=DRAFTS)


@dataclass(frozen=True)
class ModelOptions:
    """What is loaded, where, and how it computes."""

    model: Annotated[
        str | None, _model("--model", "-m", help="Directory or hub id; built-in pair if absent.")
    ] = None
    draft: Annotated[str | None, _model(help="EAGLE-3 head for --model.")] = None
    taps: Annotated[
        str | None, _model(help="Layer boundaries the head reads: 2,18,33; default: as it says.")
    ] = None
    device: Annotated[str, _model(help="cpu, cuda or cuda:N; auto: a GPU if there is one.")] = (
        "auto"
    )
    dtype: Annotated[
        str, _model(help="float32, bfloat16 or float16; auto: bfloat16 on a GPU, else float32.")
    ] = "auto"
    engine: Annotated[
        str,
        _model(
            help="graphs (rounds recorded and replayed) or direct; auto: graphs on a GPU that can."
        ),
    ] = "auto"
    backend: Annotated[
        str, _model(help="Kernel backend; auto: triton on a GPU, numpy on a CPU.")
    ] = "auto"
    numerics: Annotated[
        str, _model(help="auto; fast: same up to near ties; exact: in all bits.")
    ] = "auto"
    tensor_parallel: Annotated[
        int,
        _model(min=1, max=64, help="Processes that share the target's weights; GPUs 0 to N-1."),
    ] = 1
    threads: Annotated[
        int, _model(min=0, max=1024, help="CPU threads; 0: as many as the model's products use.")
    ] = 0


@dataclass(frozen=True)
class MemoryOptions:
    """How many requests of which length are held at a time."""

    max_model_len: Annotated[
        int | None,
        _memory(
            "--max-model-len",
            min=2,
            max=1 << 31,
            help="Tokens of prompt and output; default: the model's.",
        ),
    ] = None
    max_batch: Annotated[
        int | None,
        _memory(
            "--max-num-seqs", "--max-batch", min=1, max=128, help="Requests at a time; default 32."
        ),
    ] = None
    gpu_memory: Annotated[
        float, _memory(min=0.05, max=1.0, help="Share of a GPU's memory to take, weights included.")
    ] = 0.9
    warm: Annotated[
        str,
        _memory(
            help="Rounds recorded before the first request: full, quick (in idle moments), off; "
            "auto: full, but off for a single text."
        ),
    ] = "auto"
    n_pages: Annotated[
        int,
        _memory("--n-pages", min=0, max=1 << 31, help="KV pages of 16 positions; 0: what fits."),
    ] = 0


@dataclass(frozen=True)
class DraftOptions:
    """How drafts are made and judged."""

    method: Annotated[str, _drafts(help="eagle3, ngram, eagle3+ngram or none.")] = "eagle3"
    policy: Annotated[
        str, _drafts(help="planner, fixed or cast; auto: planner, or fixed if a shape is given.")
    ] = "auto"
    num_steps: Annotated[int | None, _drafts("--speculative-num-steps", help="Draft levels.")] = (
        None
    )
    eagle_topk: Annotated[
        int | None, _drafts("--speculative-eagle-topk", help="Children per node.")
    ] = None
    num_draft_tokens: Annotated[
        int | None,
        _drafts("--speculative-num-draft-tokens", help="Rows verified, root included."),
    ] = None
    speculative_config: Annotated[
        str | None, _drafts(help="The same as vLLM's JSON, instead of the options above.")
    ] = None
    rule: Annotated[
        str, _drafts(help="match: same seed, same tokens; coins: same distribution.")
    ] = "match"
    draft_window: Annotated[
        int | None,
        _drafts(min=0, max=1 << 31, help="Positions the head looks back, 0: all; or as trained."),
    ] = None
    draft_sinks: Annotated[
        int | None, _drafts(min=0, max=1 << 31, help="First positions it sees besides a window.")
    ] = None
    draft_products: Annotated[
        str, _drafts(help="How the head multiplies: dense or fp8; auto: fp8 where it was measured.")
    ] = "auto"
    hot_vocabulary: Annotated[
        int, _drafts(min=0, max=1 << 18, help="Ids drafts share beside a prompt's; 0: the head's.")
    ] = 0
    hot_counts: Annotated[
        str | None, _drafts(help="Their frequencies: a file of aerie draft-vocab build.")
    ] = None
    costs: Annotated[
        str | None, _drafts(help="The planner's cost table: a file of aerie tune costs.")
    ] = None
    specpv: Annotated[
        str, _drafts(help="Long contexts, first over a part of the KV: lossless, lossy or off.")
    ] = "off"

    def chosen(self) -> tuple[SpeculationConfig, str | None]:
        """The configuration, and the draft head that vLLM's JSON names."""
        from aerie.config import SpeculationConfig

        if self.speculative_config is None:
            shape = (self.eagle_topk, self.num_steps, self.num_draft_tokens)
            own = SpeculationConfig(self.method, self.policy, *shape, rule=self.rule)
            hot = self.hot_vocabulary
            return replace(own, hot_vocabulary=hot, hot_counts=self.hot_counts), None
        plain = replace(self, speculative_config=None, rule="match", costs=None, specpv="off")
        plain = replace(plain, draft_window=None, draft_sinks=None, draft_products="auto")
        beside = given(plain)
        if beside:
            raise UsageError(f"--speculative-config says it all: leave {', '.join(beside)} out")
        found, head = SpeculationConfig.from_vllm(self.speculative_config)
        return replace(found, rule=self.rule), head


GROUPS: tuple[Any, ...] = (ModelOptions, MemoryOptions, DraftOptions)


@dataclass(frozen=True)
class EngineOptions:
    """All of them, as a command receives them."""

    model: ModelOptions
    memory: MemoryOptions
    drafts: DraftOptions

    @property
    def head(self) -> str | None:
        """The draft head that was named, by either option."""
        return self.model.draft or self.drafts.chosen()[1]

    def settings(self) -> dict[str, Any]:
        """For `Engine.load`; what was not given is left to the configuration's own defaults."""
        own, memory = asdict(self.model), self.memory
        plain = ("device", "dtype", "engine", "backend", "numerics", "tensor_parallel")
        found = {name: own[name] for name in plain}
        if self.model.taps is not None:
            found["taps"] = tuple(integers(self.model.taps, "--taps", least=0))
        if memory.max_batch is not None:
            found["scheduler"] = {"max_batch": memory.max_batch}
        if memory.warm != "auto":
            found["graphs"] = {"warm": memory.warm}
        return {
            **found,
            "max_model_len": memory.max_model_len,
            "draft_window": self.drafts.draft_window,
            "draft_sinks": self.drafts.draft_sinks,
            "draft_products": self.drafts.draft_products,
            "cache": {"n_pages": memory.n_pages, "gpu_memory": memory.gpu_memory},
            "speculation": asdict(self.drafts.chosen()[0]),
            "planner": {"costs": self.drafts.costs},
            "partial": {"specpv": self.drafts.specpv},
        }

    def check(self) -> None:
        """Raise what can be said without torch, which takes seconds to import."""
        from aerie.config import EngineConfig
        from aerie.costs.table import load_costs
        from aerie.kernels.registry import backend_info
        from aerie.models.hub import find_pair

        find_pair(self.model.model, self.head)
        if self.drafts.costs is not None:
            load_costs(Path(self.drafts.costs))
        config = EngineConfig.from_settings(self.model.model, self.head, self.settings())
        if config.backend != "auto":
            backend_info(config.backend)

    def config(self, **changed: Any) -> EngineConfig:
        """Everything chosen, and both models found: what is wrong is said before any loading."""
        from aerie.assemble.choices import configured

        self.check()
        self.width()
        return configured(self.model.model, self.head, {**self.settings(), **changed})

    def load(self, **changed: Any) -> Engine:
        """The engine, with progress on standard error; `changed` settings win."""
        from aerie.api import Engine

        settings = {**self.settings(), **changed}
        self.set_threads()
        with shown() as progress:
            return Engine.load(self.model.model, self.head, progress=progress, **settings)

    def width(self) -> int:
        """Of the target's hidden states, as its configuration says."""
        from aerie.models.geometry import read_geometry
        from aerie.models.hub import find_pair

        return read_geometry(find_pair(self.model.model, self.head)[0]).hidden_size

    def set_threads(self) -> None:
        """CPU threads as asked for, or as many as the model can use."""
        import torch

        from aerie.assemble.device import choose_threads

        device = self.config().model.device
        found = choose_threads(self.model.threads, self.width(), device)
        # Ranks compute at the same time, each with so many.
        shared = 1 if self.model.threads else self.model.tensor_parallel
        torch.set_num_threads(max(found.value // shared, 1))


def given(group: Any) -> list[str]:
    """The options of a group that are not at their defaults, by their first names."""
    found = []
    for entry, hint in zip(fields(group), _hints(type(group)).values(), strict=True):
        if getattr(group, entry.name) != entry.default:
            # In an annotation Typer takes the first name for a default, and mends that later.
            first = hint.__metadata__[0].default
            is_named = isinstance(first, str) and first.startswith("--")
            found.append(first if is_named else f"--{entry.name.replace('_', '-')}")
    return found


def refuse(command: str, *groups: Any) -> None:
    """Raise where an option was given that a command has no use for."""
    unused = [name for group in groups for name in given(group)]
    if unused:
        raise UsageError(f"{command} does not use {', '.join(unused)}: leave it out")


def _hints(group: type) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)


def takes_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes every option above instead of its parameter `options`."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = [
        inspect.Parameter(
            entry.name, inspect.Parameter.KEYWORD_ONLY, default=entry.default
        ).replace(annotation=_hints(group)[entry.name])
        for group in GROUPS
        for entry in fields(group)
    ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        groups = [
            group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
            for group in GROUPS
        ]
        command(**values, options=EngineOptions(*groups))

    kept = [part.replace(kind=part.KEYWORD_ONLY) for part in own.values() if part.name != "options"]
    signature = inspect.Signature([*kept, *shared])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {part.name: part.annotation for part in signature.parameters.values()}
    return run
