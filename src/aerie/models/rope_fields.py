"""Reads a rotary rule from a config, in the spelling of any transformers version."""

from __future__ import annotations

from aerie.models.fields import Fields
from aerie.models.rope import RULES, RopeSettings, inverse_frequencies, yarn_attention_factor

PROBED_DIM = 256  # wide enough to reach both ends of any head's frequencies


def read_rope(config: Fields, default_theta: float) -> RopeSettings:
    """The rotary rule; problems are noted on `config`.

    Newer configs hold one object `rope_parameters`; older ones `rope_theta` beside an optional
    `rope_scaling` whose rule is named `rope_type` or `type`.
    """
    is_new = config.has("rope_parameters")
    section = config.section("rope_parameters" if is_new else "rope_scaling")
    theta = config.number("rope_theta", default_theta)
    if section.has("rope_theta"):
        nested = section.number("rope_theta")
        if config.has("rope_theta") and theta != nested:
            config.note("rope_theta", f"{theta} here but {nested} in rope_parameters")
        theta = nested
    kind = section.text("rope_type" if section.has("rope_type") else "type", "default")
    if kind not in RULES:
        config.note("rope_type", f"{kind!r} is not supported; known: {', '.join(sorted(RULES))}")
        kind = "default"
    _refuse_partial(config, section)
    settings = _READERS[kind](config, section, theta)
    if not bool(inverse_frequencies(settings, PROBED_DIM).isfinite().all()):
        config.note("rope_theta", f"{theta:g} and this factor give endless frequencies")
    return settings


def _refuse_partial(config: Fields, section: Fields) -> None:
    for owner in (config, section):
        if owner.number("partial_rotary_factor", 1.0) != 1.0:
            owner.note("partial_rotary_factor", "only whole-head rotation is supported")


def _read_default(config: Fields, section: Fields, theta: float) -> RopeSettings:
    return RopeSettings("default", theta)


def _read_linear(config: Fields, section: Fields, theta: float) -> RopeSettings:
    return RopeSettings("linear", theta, factor=section.number("factor"))


def _read_llama3(config: Fields, section: Fields, theta: float) -> RopeSettings:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        section.note("high_freq_factor", f"{high} must be greater than low_freq_factor {low}")
        high = low + 1.0
    return RopeSettings(
        "llama3",
        theta,
        factor=section.number("factor"),
        original_positions=_original_positions(config, section),
        low_frequency=low,
        high_frequency=high,
    )


def _read_yarn(config: Fields, section: Fields, theta: float) -> RopeSettings:
    factor = section.number("factor")
    if theta <= 1.0:
        config.note("rope_theta", f"{theta} must be greater than 1 for yarn")
        theta = 2.0
    return RopeSettings(
        "yarn",
        theta,
        factor=factor,
        original_positions=_original_positions(config, section),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.boolean("truncate", True),
        attention_factor=_attention_factor(section, factor),
    )


def _original_positions(config: Fields, section: Fields) -> int:
    name = "original_max_position_embeddings"
    owner = section if section.has(name) or not config.has(name) else config
    return owner.integer(name)


def _attention_factor(section: Fields, factor: float) -> float:
    """Stated, or the ratio of two stated temperatures, or the paper's for this factor."""
    if section.has("attention_factor"):
        return section.number("attention_factor")
    if section.has("mscale") and section.has("mscale_all_dim"):
        above = yarn_attention_factor(factor, section.number("mscale"))
        return above / yarn_attention_factor(factor, section.number("mscale_all_dim"))
    return yarn_attention_factor(factor)


_READERS = {
    "default": _read_default,
    "linear": _read_linear,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}
