"""JSON schemas as the TypeScript-like types by which Harmony's models are told of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aerie.text.messages import MAX_DEPTH

Schema = Mapping[str, Any]
_SIMPLE = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
NULL = {"type": "null"}
MOST_INLINED = 64 * 1024  # characters of one tool's references
STEP = "    "  # of an object within another


def namespace_text(functions: Sequence[Schema]) -> str:
    """A section with the type of each function; `functions` are OpenAI's, by name."""
    types = "".join(f"{_function(own)}\n\n" for own in functions)
    return f"## functions\n\nnamespace functions {{\n\n{types}}} // namespace functions"


def _function(function: Schema) -> str:
    lines = str(function.get("description") or "").splitlines()
    remark = "".join(f"// {line}\n" for line in lines)
    schema = function.get("parameters")
    if not isinstance(schema, Mapping):
        return f"{remark}type {function['name']} = () => any;"
    return (
        f"{remark}type {function['name']} = (_: {_type_text(_Inlining(schema).of(schema))}) => any;"
    )


class _Inlining:
    """A schema with what its references name in their place; what is not there, or endless, is any.

    A few references to each other can stand for a text without end, so their size is bounded.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_left = MOST_INLINED
        self._found: dict[str, tuple[Schema, int]] = {}  # by place, with its size

    def of(self, value: Any, depth: int = 0) -> Any:
        """The same without references."""
        if depth > MAX_DEPTH:
            return {}
        if isinstance(value, list):
            return [self.of(own, depth + 1) for own in value]
        if not isinstance(value, Mapping):
            return value
        if isinstance(value.get("$ref"), str):
            found, size = self._find(value["$ref"])
            self._n_left -= size
            if self._n_left < 0:
                return {}
            kept = {name: own for name, own in value.items() if name != "$ref"}
            return {**self.of(found, depth + 1), **kept}
        return {name: self.of(own, depth + 1) for name, own in value.items() if name != "$defs"}

    def _find(self, place: str) -> tuple[Schema, int]:
        if place not in self._found:
            found: Any = self._root if place.startswith("#") else {}
            for name in place.split("/")[1:]:
                found = found.get(name) if isinstance(found, Mapping) else None
            found = found if isinstance(found, Mapping) else {}
            self._found[place] = found, len(json.dumps(found))
        return self._found[place]


def _type_text(schema: object, indent: str = "") -> str:
    """The type of a value; what has no name there is `any`."""
    if not isinstance(schema, Mapping):
        return "any"
    variants = _list(schema.get("oneOf"))
    if variants:
        return "".join(f"\n{_variant(own, indent)}" for own in variants)
    if choices := _list(schema.get("anyOf")):  # what optional values are written as
        return " | ".join("null" if own == NULL else _type_text(own, indent) for own in choices)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_SIMPLE.get(str(own), str(own)) for own in kind) or "any"
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return f"{_type_text(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    named = [f'"{own}"' for own in _list(schema.get("enum")) if isinstance(own, str)]
    if kind in ("string", None) and named:
        return " | ".join(named)
    return _SIMPLE.get(str(kind), "any")


def _object(schema: Schema, indent: str) -> str:
    properties = schema.get("properties")
    required = _list(schema.get("required"))
    remark = _remark(schema.get("description"), indent)
    members = ""
    if isinstance(properties, Mapping):
        for name, own in properties.items():
            own = own if isinstance(own, Mapping) else {}
            members += _member(f"{name}{'' if name in required else '?'}", own, indent)
    return f"{remark}{{\n{members}{indent}}}"


def _member(name: str, schema: Schema, indent: str) -> str:
    variants = _list(schema.get("oneOf"))
    title, examples = schema.get("title"), _list(schema.get("examples"))
    above = _remark(title, indent) + (f"{indent}//\n" if isinstance(title, str) else "")
    shown = "" if variants else _remark(schema.get("description"), indent)
    if examples:
        texts = [f'{indent}// - "{own}"\n' for own in examples if isinstance(own, str)]
        shown += f"{indent}// Examples:\n{''.join(texts)}"
    if variants:
        return above + shown + _variants(name, schema, variants, indent)
    default = _default(schema)
    behind = f" // {default}" if default else ""
    return f"{above}{shown}{indent}{name}: {_nullable(schema, indent + STEP)},{behind}\n"


def _variants(name: str, schema: Schema, variants: Sequence[Any], indent: str) -> str:
    """A line for each; what is said above the name is not said again behind one."""
    described = schema.get("description")
    first = variants[0].get("description") if isinstance(variants[0], Mapping) else None
    is_above = isinstance(described, str) and described != first
    above = _remark(described, indent) if is_above else ""
    default = _default(schema)
    above += f"{indent}// {default}\n" if default else ""
    lines = [_variant(variants[0], indent, described, first if is_above else None)]
    lines += [_variant(own, indent, described) for own in variants[1:]]
    return "\n".join([f"{above}{indent}{name}:", *lines, f"{indent},\n"])


def _variant(schema: object, indent: str, *told: object) -> str:
    """With its description behind it, unless that is told already."""
    notes = []
    if isinstance(schema, Mapping):
        described = schema.get("description")
        notes = [described] if isinstance(described, str) and described not in told else []
        notes += [default] if (default := _default(schema)) else []
    behind = f" // {' '.join(notes)}" if notes else ""
    return f"{indent} | {_nullable(schema, indent + '   ')}{behind}"


def _nullable(schema: object, indent: str) -> str:
    text = _type_text(schema, indent)
    may_be_null = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{text} | null" if may_be_null and "null" not in text else text


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    is_bare = isinstance(value, str) and bool(_list(schema.get("enum")))
    text = value if is_bare else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"default: {text}"


def _remark(text: object, indent: str) -> str:
    return f"{indent}// {text}\n" if isinstance(text, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
