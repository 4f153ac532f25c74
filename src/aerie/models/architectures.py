"""The table of architectures: what sets one decoder apart from another, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from aerie.errors import UnsupportedArchitectureError
from aerie.models.fields import Fields

Windows = tuple[int | None, ...]  # per layer; None sees the whole context
WindowRule = Callable[[Fields, int], Windows]

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Switch:
    """A feature that is fixed, or that a config field turns on or off."""

    default: bool
    field: str | None = None

    def read(self, config: Fields) -> bool:
        """Whether the feature is on in this config."""
        if self.field is None:
            return self.default
        return config.boolean(self.field, self.default)


def whole_context(config: Fields, n_layers: int) -> Windows:
    """Every layer sees everything."""
    stated = _stated_types(config, n_layers)
    if any(kind != FULL for kind in stated or ()):
        config.note("layer_types", f"this architecture has only {FULL} layers")
    return (None,) * n_layers


def windows_above_layer(config: Fields, n_layers: int) -> Windows:
    """Off unless asked for; then the layers from `max_window_layers` on have a window."""
    stated = _stated_types(config, n_layers)
    if not config.boolean("use_sliding_window", False):
        if any(kind != FULL for kind in stated or ()):
            config.note("layer_types", f"has {SLIDING} layers but use_sliding_window is off")
        return (None,) * n_layers
    first = config.integer("max_window_layers", low=0) if stated is None else 0
    types = stated or tuple(SLIDING if i >= first else FULL for i in range(n_layers))
    return _windows(config, types)


def alternating_windows(config: Fields, n_layers: int) -> Windows:
    """Even layers have a window, odd ones see everything."""
    types = _stated_types(config, n_layers)
    return _windows(config, types or tuple((SLIDING, FULL)[i % 2] for i in range(n_layers)))


def _stated_types(config: Fields, n_layers: int) -> tuple[str, ...] | None:
    if not config.has("layer_types"):
        return None
    types = config.texts("layer_types")
    if len(types) != n_layers:
        config.note("layer_types", f"names {len(types)} layers of {n_layers}")
        return (FULL,) * n_layers
    for kind in sorted(set(types) - {FULL, SLIDING}):
        config.note("layer_types", f"{kind!r} is not supported; known: {FULL}, {SLIDING}")
    return types


def _windows(config: Fields, types: tuple[str, ...]) -> Windows:
    if SLIDING not in types:
        return (None,) * len(types)
    window = config.integer("sliding_window")
    return tuple(window if kind == SLIDING else None for kind in types)


@dataclass(frozen=True)
class Architecture:
    """One row of the table. The decoder reads the features, never the name."""

    name: str  # as config.json's `architectures` spells it
    qkv_bias: Switch
    output_bias: Switch
    mlp_bias: Switch = Switch(False)
    has_qk_norm: bool = False
    has_sinks: bool = False
    has_experts: bool = False
    needs_rope_rule: bool = False  # its default rule is not the plain one: refuse to guess
    head_dim: int | None = None  # when the config is silent; None means hidden / heads
    rope_theta: float = 10000.0  # when the config is silent
    windows: WindowRule = whole_context


_BIAS_IF_ASKED = Switch(False, "attention_bias")

TABLE = (
    Architecture(
        name="LlamaForCausalLM",
        qkv_bias=_BIAS_IF_ASKED,
        output_bias=_BIAS_IF_ASKED,
        mlp_bias=Switch(False, "mlp_bias"),
    ),
    Architecture(
        name="Qwen2ForCausalLM",
        qkv_bias=Switch(True),
        output_bias=Switch(False),
        windows=windows_above_layer,
    ),
    Architecture(
        name="Qwen3ForCausalLM",
        qkv_bias=_BIAS_IF_ASKED,
        output_bias=_BIAS_IF_ASKED,
        has_qk_norm=True,
        head_dim=128,
        windows=windows_above_layer,
    ),
    Architecture(
        name="GptOssForCausalLM",
        qkv_bias=Switch(True, "attention_bias"),
        output_bias=Switch(True, "attention_bias"),
        has_sinks=True,
        has_experts=True,
        needs_rope_rule=True,
        head_dim=64,
        rope_theta=150000.0,
        windows=alternating_windows,
    ),
)


def find_architecture(name: str) -> Architecture:
    """The row of that name, or an error with the supported names."""
    for row in TABLE:
        if row.name == name:
            return row
    names = [row.name for row in TABLE]
    hint = misspelt(name, names)
    if "eagle" in name.casefold():
        hint = "It is a draft head: give it as the draft of its target. "
    raise UnsupportedArchitectureError(
        f"architecture {name!r} is not supported. {hint}Supported: {', '.join(names)}"
    )


def misspelt(name: str, known: Iterable[str]) -> str:
    """A question if the name is a known one in another spelling, else nothing.

    Case, punctuation, doubled and swapped letters are spelling; any other letter or digit is
    another architecture, however near its name comes.
    """
    near = next((other for other in known if _letters(other) == _letters(name)), None)
    return f"Did you mean {near}? " if near else ""


def _letters(name: str) -> list[str]:
    return sorted(letter for letter, _ in groupby(filter(str.isalnum, name.casefold())))
