"""Random JSON schemas: nested, with unions, recursion and unicode; shared, not a test itself."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "id", "größe", "名前", "ключ", "a b", "x-y", 'quo"te', "ünïcode_π", "tags", "next")
WORDS = (
    "red",
    "grün",
    "蓝色",
    "синий",
    "a\nb",
    "tab\there",
    '"quoted"',
    "\\",
    "🙂",
    "",
    "null",
    "0",
)
PATTERNS = (
    "^[a-z]{1,6}$",
    "^[A-Z][0-9]{2,3}$",
    "^(ab|cd){1,2}$",
    "^[0-9]{4}-[0-9]{2}$",
    "^é{1,3}$",
)
Schema = dict[str, Any]


def draw_schema(seed: int) -> Schema:
    """Every eighth one refers to itself."""
    rng = random.Random(f"schema {seed}")
    if seed % 8:
        return _object(rng, 2, False)
    node = _object(rng, 1, True)
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def kinds_of(schema: Any) -> set[str]:
    """What a schema has, by its keywords and types."""
    if isinstance(schema, list):
        return set[str]().union(*map(kinds_of, schema))
    if not isinstance(schema, dict):
        return set()
    own = {key for key in ("enum", "const", "anyOf", "pattern", "$ref") if key in schema}
    kind = schema.get("type")
    own |= {kind} if isinstance(kind, str) else set(kind or ())
    has_unicode = any(not name.isascii() for name in schema.get("properties", {}))
    return own.union({"unicode"} if has_unicode else (), *map(kinds_of, schema.values()))


def _any(rng: random.Random, depth: int, recurs: bool) -> Schema:
    makers = [_string, _string, _integer, _enum, _enum, _flag, _const, _pattern]
    if depth > 0:
        nested = rng.choice([_object, _array, _union])
        if rng.random() < 0.6:
            return nested(rng, depth - 1, recurs)
    return rng.choice(makers)(rng)


def _object(rng: random.Random, depth: int, recurs: bool) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 3))
    properties = {name: _any(rng, depth, False) for name in names}
    required = [name for name in names if rng.random() < 0.7] or names[:1]
    if recurs:  # an object within itself ends where it is left out, or null
        properties["child"] = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
        if rng.random() < 0.5:
            node = {"$ref": "#/$defs/node"}
            properties["child"] = {"type": "array", "items": node, "maxItems": 1}
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | {"required": required}


def _array(rng: random.Random, depth: int, recurs: bool) -> Schema:
    least = rng.randint(0, 1)
    items = _any(rng, depth, recurs)
    return {
        "type": "array",
        "items": items,
        "minItems": least,
        "maxItems": least + rng.randint(0, 1),
    }


def _union(rng: random.Random, depth: int, recurs: bool) -> Schema:
    return {"anyOf": [_any(rng, depth, recurs) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random) -> Schema:
    return {"type": "string", "maxLength": rng.randint(1, 12)}


def _integer(rng: random.Random) -> Schema:
    low = rng.choice([-100, -7, 0, 1])
    return {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 9, 1000])}


def _enum(rng: random.Random) -> Schema:
    return {"enum": [*rng.sample(WORDS, rng.randint(1, 4)), rng.choice([None, 3, -1.5, True, []])]}


def _flag(rng: random.Random) -> Schema:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice([*WORDS, 42, {"a": [1, None]}])}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS)}
