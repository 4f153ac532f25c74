"""Runs a tapped engine over some prompts; the capture keeps what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aerie.api import Engine, find_pair
from aerie.assemble.choices import configured
from aerie.assemble.core import build_core
from aerie.assemble.numerics import find_numerics
from aerie.config import require
from aerie.engine.engine import Limits
from aerie.models.inflate.embed import InflateOptions, inflate_to_device
from aerie.models.inflate.geometry import find_geometry
from aerie.models.inflate.pair import read_pair
from aerie.models.load import LoadOptions
from aerie.parity.capture import Capture
from aerie.requests.params import SamplingParams
from aerie.text.tokenizer import load_tokenizer

# Of different lengths, so that requests end at different times and the batch changes.
PROMPTS = (
    "def add(a, b):\n",
    'class Stack:\n    """A stack."""\n\n    def __init__(self):\n',
    "import argparse\nimport sys\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n",
)
SHORTER = 8  # tokens by which each prompt's budget is below the one before


@dataclass(frozen=True)
class EngineRecipe:
    """What an engine is loaded from; with a geometry, the pair is embedded into it first."""

    model: str | None
    draft: str | None
    geometry: str | None
    settings: dict[str, Any]  # as for `Engine.load`


@dataclass(frozen=True)
class CapturedRun:
    """What a tapped run did."""

    tokens: int
    calls: dict[str, int]  # kernel calls, kept or not


def run_capture(
    recipe: EngineRecipe, prompts: Sequence[str], params: SamplingParams, capture: Capture
) -> CapturedRun:
    """Decode the prompts together on an engine with the capture's tap."""
    engine = _load_tapped(recipe, capture)
    ids = []
    for number, prompt in enumerate(prompts):
        budget = max(1, params.max_tokens - SHORTER * number)
        ids.append(engine.submit(prompt, replace(params, max_tokens=budget)))
    while any(engine.core.request(request_id).ended is None for request_id in ids):
        engine.step()
    tokens = sum(len(engine.collect(request_id).token_ids) for request_id in ids)
    return CapturedRun(tokens, {name: tap.n_calls for name, tap in capture.taps.items()})


def _load_tapped(recipe: EngineRecipe, capture: Capture) -> Engine:
    """The engine of a recipe, its kernels tapped."""
    if recipe.geometry is None:
        return Engine.load(recipe.model, recipe.draft, tap=capture.tap, **recipe.settings)
    target_dir, draft_dir = find_pair(recipe.model, recipe.draft)
    require(draft_dir is not None, "--geometry embeds a pair: give its draft head with --draft")
    assert draft_dir is not None
    config = configured(None, None, recipe.settings)
    numerics = find_numerics(config.model, config.cache.page_size)
    dtype = getattr(torch, config.model.dtype)
    options = LoadOptions(dtype, config.model.device, numerics.dense, numerics.is_fused)
    large = inflate_to_device(
        read_pair(target_dir, draft_dir),
        find_geometry(recipe.geometry),
        numerics.prepare_attention,
        InflateOptions(options),
    )
    tokenizer, geometry = load_tokenizer(target_dir), large.target.geometry
    limits = Limits(geometry.max_positions, geometry.vocab_size, tokenizer.eos_ids)
    core = build_core(config, large.target, large.head, limits, capture.tap)
    return Engine(core, tokenizer, core.config)
