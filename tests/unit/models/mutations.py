"""Seeded mutations of a checkpoint's files; shared, not a test itself.

    files = mutate(files, random.Random(7))      name: bytes of every file, one or more spoilt

JSON is mutated as a tree and as text, headers of safetensors files too; anything as bytes.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Files = dict[str, bytes]

# Written by json.dumps as this marker, then replaced by text that no serialiser would write.
MARKER = "@raw"
RAW = (
    "[" * 50_000,
    '{"a":' * 50_000,
    "[" * 400 + "]" * 400,
    "9" * 5000,
    "-" + "9" * 60,
    "1e400",
    "NaN",
    "-Infinity",
    '{"x": 1, "x": 2}',
    '"\\ud800"',
    "01",
    "",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, -1, 7, 2**24, 2**31, 2**62, 2**63, 2**64, 10**40, -(2**63)),
    *(0.5, -0.0, 1e-320, 1e-31, 1e30, 1e38, 1e308, 32.0),
    *("", "0", "F32", "BF16", "F8_E4M3", "I64", "BOOL", "C64", "default", "yarn", "dynamic"),
    *("\x00", "é", "x" * 1000, "../config.json", "a.safetensors", "gptq", "mxfp4", "awq"),
    *([], [[]], [0], [1, 2, 3], [True, 64], [0] * 9, [-1, 4], [2**62, 4], ["a"], [None]),
    *({}, {"a": {}}, {"quant_method": "gptq"}, {"quant_method": "fp8", "fmt": "e4m3"}),
    *({"rope_type": "yarn"}, {"type": "linear", "factor": 1e-30}, {"rope_type": "llama3"}),
)


def mutate(files: Files, rng: random.Random) -> Files:
    """A copy with one to three mutations."""
    out = dict(files)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(sorted(out))
        out[name] = _mutate_one(name, out[name], rng)
    return out


def _mutate_one(name: str, raw: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return _spoil_bytes(raw, rng)
    if name.endswith(".json"):
        return _spoil_text(raw, rng)
    length = int.from_bytes(raw[:8], "little")
    header = _spoil_text(raw[8 : 8 + length], rng)
    told = length if rng.random() < 0.1 else len(header)
    return told.to_bytes(8, "little") + header + raw[8 + length :]


def _spoil_text(raw: bytes, rng: random.Random) -> bytes:
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError):
        return _spoil_bytes(raw, rng)
    spoilt = json.dumps(_spoil_tree(tree, rng))
    return spoilt.replace(f'"{MARKER}"', rng.choice(RAW)).encode("utf-8", "surrogatepass")


def _spoil_tree(tree: Any, rng: random.Random) -> Any:
    """Change one node; the deeper ones are as likely as the others."""
    nodes = list(places(tree))
    if not nodes:
        return rng.choice(VALUES)
    owner, key = rng.choice(nodes)
    actions: tuple[Callable[[], None], ...] = (
        lambda: owner.__setitem__(key, copy.deepcopy(rng.choice(VALUES))),
        lambda: owner.__setitem__(key, copy.deepcopy(rng.choice(VALUES))),
        lambda: owner.__setitem__(key, MARKER),
        lambda: owner.__setitem__(key, _nudge(owner[key], rng)),
        lambda: owner.__delitem__(key),
        lambda: owner.__setitem__(key, _elsewhere(nodes, rng)),
        lambda: _rename(owner, key, rng),
    )
    rng.choice(actions)()
    return tree


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """(owner, key) of every node below this one."""
    keys = list(node) if isinstance(node, dict) else range(len(node) if type(node) is list else 0)
    for key in keys:
        yield node, key
        yield from places(node[key])


def _elsewhere(nodes: list[tuple[Any, Any]], rng: random.Random) -> Any:
    owner, key = rng.choice(nodes)
    return copy.deepcopy(owner[key])


def _nudge(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((value + 1, value - 1, value * 2, -value, value // 2, float(value)))
    if isinstance(value, str):
        return rng.choice((value[:-1], value + value, value.upper(), value[::-1]))
    return [value]


def _rename(owner: Any, key: Any, rng: random.Random) -> None:
    if isinstance(owner, dict):
        names = (f"{key}x", key[:-1], "model.norm.weight", "layers.9.x", "\x1b[2J", "__metadata__")
        owner[rng.choice((*names, "a.rotary_emb.inv_freq", "fc.weight", "quantization"))] = (
            owner.pop(key)
        )
    else:
        owner.insert(key, copy.deepcopy(owner[key]))


def _spoil_bytes(raw: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(raw) + 1)
    # The length of a header and the header itself are the first bytes: hit them often.
    place = min(place, rng.choice((8, 200, len(raw))))
    noise = rng.randbytes(rng.choice((1, 8)))
    return rng.choice(
        (
            raw[:place],
            raw[:place] + noise + raw[place:],
            raw[:place] + noise + raw[place + len(noise) :],
            raw[:place] + raw[place + 1 :],
            b"",
            raw + noise,
        )
    )
