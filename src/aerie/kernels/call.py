"""How a backend's kernels are entered: with keywords, which reach them as one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, get_type_hints

from aerie.kernels.card import Call

Outputs = dict[str, Any]
AnyCall = TypeVar("AnyCall", bound=Call)


class InTable(Protocol):
    """A call whose requests have their KV slots in rows of a table."""

    req_to_token: Any
    req_pool_indices: Any
    seq_len: Any


def takes_call(function: Callable[[AnyCall], Outputs]) -> Callable[..., Outputs]:
    """A function of a call as the `run` or the `check` of an implementation."""
    kind: type[AnyCall] = get_type_hints(function)["call"]
    new = kind.__new__

    @wraps(function)
    def run(**inputs: Any) -> Outputs:
        call = new(kind)
        # What was given becomes its attributes: nothing is copied.
        call.__dict__ = inputs
        return function(call)

    return run
