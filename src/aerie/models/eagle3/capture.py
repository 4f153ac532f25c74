"""Which hidden states of the target a draft head reads, resolved from any notation."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.errors import ConfigFieldError, UsageError
from aerie.models.eagle3.values import both_notations, usual_boundaries
from aerie.models.fields import Fields
from aerie.models.resolved import CONFIG, DEFAULT, OPTION, Resolved

IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT_COUNT = 3


@dataclass(frozen=True)
class DeclaredCaptures:
    """Ids as written: the two places they stand in are read in different notations."""

    top_level: tuple[int, ...] | None  # speculators: boundaries
    nested: tuple[int, ...] | None  # eagle_config: usually layer outputs
    count: int | None  # num_aux_hidden_states


def read_captures(config: Fields, nested: Fields) -> DeclaredCaptures:
    """The ids a config states; an empty list states nothing."""
    name = "num_aux_hidden_states"
    return DeclaredCaptures(
        top_level=_stated(config, IDS),
        nested=_stated(nested, IDS),
        count=config.integer(name) if config.has(name) else None,
    )


def resolve_boundaries(
    declared: DeclaredCaptures, option: tuple[int, ...] | None, n_target_layers: int
) -> Resolved[tuple[int, ...]]:
    """Boundaries in reading order: option > top level > eagle_config > the field's default.

    A boundary that does not exist in the target raises UsageError if the caller gave it, else
    ConfigFieldError.
    """
    value, origin, reason = _choose(declared, option, n_target_layers)
    wrong = [boundary for boundary in value if not 0 <= boundary <= n_target_layers]
    if wrong or len(set(value)) < len(value):
        limits = f"the target has boundaries 0 to {n_target_layers} and each may be named once"
        if origin == OPTION:
            raise UsageError(f"taps are {both_notations(value)}, but {limits}")
        raise ConfigFieldError(
            f"captured states resolve to {both_notations(value)} ({origin}: {reason}), but "
            f"{limits}; {_advice(n_target_layers)}"
        )
    return Resolved("boundaries", value, origin, f"{reason}; {both_notations(value)}")


def final_boundary(
    option: tuple[int, ...] | None, n_target_layers: int
) -> Resolved[tuple[int, ...]]:
    """The boundary of a head that reads the target's final hidden state."""
    reason = "use_aux_hidden_state is false: the final state, after the target's final norm"
    if option is not None:
        raise UsageError(f"taps are {both_notations(option)}, but this head has none: {reason}")
    return Resolved("boundaries", (n_target_layers,), CONFIG, reason)


def _choose(
    declared: DeclaredCaptures, option: tuple[int, ...] | None, n_layers: int
) -> tuple[tuple[int, ...], str, str]:
    if option is not None:
        return option, OPTION, "taps given by the caller"
    if declared.top_level is not None:
        return declared.top_level, CONFIG, f"top-level {IDS} are boundaries"
    if declared.nested is not None:
        if max(declared.nested) == n_layers:
            reason = f"eagle_config ids reach {n_layers}, which is no layer: they are boundaries"
            return declared.nested, CONFIG, reason
        reason = "eagle_config ids are layer outputs, one below their boundaries"
        return tuple(i + 1 for i in declared.nested), CONFIG, reason
    if declared.count not in (None, DEFAULT_COUNT):
        raise ConfigFieldError(
            f"config.json names {declared.count} captured states but not which; {_advice(n_layers)}"
        )
    usual = usual_boundaries(n_layers)
    if not usual[0] < usual[1] < usual[2]:
        raise ConfigFieldError(
            f"config.json names no captured states and the usual {list(usual)} do not exist in a "
            f"target of {n_layers} layers; {_advice(n_layers)}"
        )
    return usual, DEFAULT, "no ids are stated; 2, N//2, N-3 is what everyone trains with"


def _advice(n_layers: int) -> str:
    """The option that settles it, in the form a caller writes it."""
    return (
        f"give the boundaries it was trained with (0 to {n_layers}) as taps, as in taps=(2, 18, 33)"
    )


def _stated(config: Fields, name: str) -> tuple[int, ...] | None:
    return (config.integers(name) or None) if config.has(name) else None
