"""Files: the small JSON files beside a tokenizer, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from aerie.errors import CheckpointError

TOKENIZER_CONFIG = "tokenizer_config.json"

# The largest public tokenizer_config.json lists every added token, and is far below one MiB.
MAX_BYTES = 16 * 1024 * 1024

# The tokens that a tokenizer may name and a chat template may use.
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_object(path: Path) -> dict[str, object]:
    """The JSON object of a file, empty when there is no such file; anything else is refused."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds a {type(values).__name__}, must be a JSON object")
    return values


def read_text(path: Path) -> str | None:
    """The text of a file of bounded size, or None when there is no such file."""
    if not path.is_file():
        return None
    n_bytes = path.stat().st_size
    if n_bytes > MAX_BYTES:
        raise CheckpointError(f"{path} has {n_bytes} bytes, limit {MAX_BYTES}: not what it claims")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}; download it again") from error


def special_tokens(config: Mapping[str, object], source: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names: a string, or an object with content."""
    named = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise CheckpointError(
                f"{source}: {name} is {value!r:.60}, must be a string or an object with content"
            )
        named[name] = value
    return named
