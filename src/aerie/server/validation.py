"""What is wrong with a body: the innermost field by its path, and what to send instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

MOST_PATH = 120  # characters of a path
# In place of pydantic's own words, filled in from its context.
WORDS = {
    "extra_forbidden": "this server does not honour that field; leave it out",
    "model_attributes_type": "Input should be a JSON object",
    "model_type": "Input should be a JSON object",
    "missing": "this field is required",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} character",
    "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entry",
}
# A union complains once for each of its kinds; that a value is of another kind says least.
KINDS = ("_type", "_instance_of")
WRONG_KIND = "Input should be "


@dataclass(frozen=True)
class Complaint:
    """A sentence for the client, and the field it is about."""

    message: str
    param: str | None = None


def complain(
    error: RequestValidationError | ValidationError, content_type: str | None = None
) -> Complaint:
    """The first field that is wrong, by the error that says most about it."""
    errors: Sequence[Mapping[str, Any]] = error.errors()
    body = getattr(error, "body", None)
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return Complaint(f"the body is not JSON that can be read: {reason}")
    if isinstance(body, bytes):
        sent = f"not {content_type!r:.60}" if content_type else "which is missing"
        return Complaint(f"send the header Content-Type: application/json, {sent}")
    if body is None and first["type"] == "missing":
        return Complaint("the body is empty: send a JSON object")
    place = _place(first)
    rivals = [found for found in errors if _place(found)[:1] == place[:1]]
    best = max(rivals, key=_weight)
    path = _path(_place(best), body, best["type"] == "missing")
    if _is_of_kind(best):
        return Complaint(f"{path or 'body'}: {_kinds(rivals, best)}", path)
    # Pydantic's own words may have braces, of a pattern or of what was sent.
    ours = WORDS.get(best["type"])
    words = best["msg"] if ours is None else ours.format(**best.get("ctx", {}))
    return Complaint(f"{path or 'body'}: {words}", path)


def _place(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    place = tuple(error["loc"])
    return place[1:] if place[:1] == ("body",) else place


def _is_of_kind(error: Mapping[str, Any]) -> bool:
    return str(error["type"]).endswith(KINDS)


def _weight(error: Mapping[str, Any]) -> tuple[bool, int]:
    return not _is_of_kind(error), len(error["loc"])


def _kinds(rivals: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> str:
    """What a value may be, of all that a union takes at that place."""
    depth = len(best["loc"])
    own = [
        WORDS.get(error["type"], str(error["msg"]))
        for error in rivals
        if len(error["loc"]) == depth
    ]
    kinds = dict.fromkeys(words.removeprefix(WRONG_KIND) for words in own)
    return WRONG_KIND + " or ".join(kinds)


def _path(place: Sequence[str | int], body: object, is_missing: bool) -> str | None:
    """`messages[3].content`; what pydantic adds to name the member of a union is left out."""
    path, here = "", body
    for part in place:
        if isinstance(here, list) and isinstance(part, int) and part < len(here):
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            path, here = f"{path}.{part}", here[part]
    if place and (is_missing or body is None):
        path = f"{path}.{place[-1] if is_missing else place[0]}"
    path = path.lstrip(".")
    return f"{path[:MOST_PATH]}…" if len(path) > MOST_PATH else path or None
