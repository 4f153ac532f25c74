"""What an engine takes where its configuration says auto: each choice with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from aerie.assemble.device import choose_device, choose_dtype, settle_model
from aerie.assemble.numerics import choose_draft_products, choose_kind, choose_numerics
from aerie.config import EngineConfig, ModelConfig, SchedulerConfig, require
from aerie.kernels.registry import backend_info, why_unavailable
from aerie.models.eagle3.config import read_head_config
from aerie.models.eagle3.resolve import HeadOptions, resolve_reach
from aerie.models.geometry import read_geometry
from aerie.models.hub import find_pair
from aerie.models.quantisation import has_packed_linears
from aerie.models.resolved import Resolved


def configured(model: str | None, draft: str | None, settings: dict[str, Any]) -> EngineConfig:
    """The configuration of `Engine.load`'s arguments, with everything chosen."""
    return settled(EngineConfig.from_settings(model, draft, settings))


def context_of(config: ModelConfig, own: int) -> int:
    """Positions of one request: the model's own, or fewer."""
    asked = config.max_model_len or own
    require(asked <= own, f"max_model_len is {asked}, the model's context holds {own}")
    return asked


def head_options(config: ModelConfig, own: int) -> HeadOptions:
    """What a configuration says of a head whose target has a context of its own."""
    window, sinks = config.draft_window, config.draft_sinks
    return HeadOptions(config.taps, window=window, sinks=sinks, context=context_of(config, own))


# Prompt tokens of a step, alone and beside requests that decode. On a GPU a chunk of 1,024 takes
# three rounds' time, and fewer would not fill it; on a CPU one of 256 takes as long as ten rounds.
CHUNKS = {"cuda": (4096, 1024), "cpu": (512, 256)}


def settled(config: EngineConfig) -> EngineConfig:
    """The configuration with everything chosen that does not depend on what is loaded."""
    config = _placed(config)
    speculation = replace(config.speculation, policy=_choose_policy(config).value)
    config = replace(config, speculation=speculation)
    engine, backend = choose_engine(config).value, choose_backend(config).value
    scheduler = _chunked(config.scheduler, config.model.device)
    return replace(config, engine=engine, backend=backend, scheduler=scheduler)


def _chunked(scheduler: SchedulerConfig, device: str) -> SchedulerConfig:
    """How prompts are cut where that was not said; no next token waits for a whole one."""
    alone, beside = CHUNKS[device.partition(":")[0]]
    alone = scheduler.prefill_chunk or alone
    beside = scheduler.chunk_beside or min(beside, alone)
    return replace(scheduler, prefill_chunk=alone, chunk_beside=beside)


def explain(config: EngineConfig) -> tuple[Resolved[str], ...]:
    """Every choice of `settled`, as `aerie doctor` prints them."""
    device = _choose_place(config)
    dtype = choose_dtype(config.model.dtype, device.value)
    config = _placed(config)
    target, head = find_pair(config.model.model, config.model.draft)
    geometry = read_geometry(target)
    kind = choose_kind(config.model, geometry, has_packed_linears(target))
    model = replace(config.model, numerics=kind.value)
    chosen = (_choose_policy(config), choose_engine(config), choose_backend(config), kind)
    window = () if head is None else (explain_window(model, head, geometry.max_positions),)
    products = choose_draft_products(model)
    return (device, dtype, *chosen, *window, *choose_numerics(model), products)


def explain_window(config: ModelConfig, head: Path, own: int) -> Resolved[str]:
    """How far back a head looks, in words."""
    found = resolve_reach(read_head_config(head), head_options(config, own))
    window, n_sinks = found.value.window, found.value.n_sink_tokens
    words = "the whole context" if window is None else f"{window} positions, {n_sinks} sinks"
    return Resolved("draft window", words, found.origin, found.reason)


def _placed(config: EngineConfig) -> EngineConfig:
    """The configuration with device and dtype chosen."""
    model = replace(config.model, device=_choose_place(config).value)
    return replace(config, model=settle_model(model))


def _choose_place(config: EngineConfig) -> Resolved[str]:
    """The device, with the reason for it; kernels that were asked for must run there."""
    if config.model.device == "auto" and config.backend != "auto":
        devices = backend_info(config.backend).devices
        if "cuda" not in devices:
            reason = f"backend {config.backend} runs on {' and '.join(devices)}"
            return Resolved("device", "cpu", "automatic", reason)
    return choose_device(config.model.device)


def choose_backend(config: EngineConfig) -> Resolved[str]:
    """The kernel backend, with the reason for it."""
    if config.backend != "auto":
        backend_info(config.backend)  # a name that does not exist is an error before any loading
        return Resolved("backend", config.backend, "config", "asked for")
    if not config.model.device.startswith("cuda"):
        reason = "NumPy starts an operation on a small array in a third of torch's time"
        return Resolved("backend", "numpy", "automatic", reason)
    missing = why_unavailable(backend_info("triton"))
    if missing is not None:
        return Resolved("backend", "pytorch", "automatic", missing)
    return Resolved("backend", "triton", "automatic", "one launch where PyTorch takes dozens")


def _choose_policy(config: EngineConfig) -> Resolved[str]:
    """The policy, with the reason for it."""
    speculation = config.speculation
    chosen = speculation.chosen_policy
    if speculation.policy != "auto":
        return Resolved("policy", chosen, "config", "asked for")
    if chosen == "fixed":
        return Resolved("policy", chosen, "config", "a shape was given, or nothing can be planned")
    return Resolved("policy", chosen, "automatic", "trees are paid for by measured cost")


def choose_engine(config: EngineConfig) -> Resolved[str]:
    """The loop that runs the rounds. Asked for, it must be possible; automatic, it says why."""
    is_gpu = config.model.device.startswith("cuda")
    is_split = is_gpu and config.model.tensor_parallel > 1
    if config.engine != "auto":
        require(
            not is_split or config.engine == "direct",
            f"tensor_parallel {config.model.tensor_parallel}: captured rounds have not run on"
            " several GPUs; use engine direct",
        )
        return Resolved("engine", config.engine, "config", "asked for")
    if is_split:
        reason = "captured rounds have not run on several GPUs"
        return Resolved("engine", "direct", "automatic", reason)
    if not is_gpu:
        return Resolved("engine", "direct", "automatic", "only a GPU gains from captured rounds")
    reason = "launch by launch, a GPU would wait for the host"
    return Resolved("engine", "graphs", "automatic", reason)
