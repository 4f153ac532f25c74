"""How far back a head looks: what its config leaves open, what an option changes, and why."""

from __future__ import annotations

from typing import Any

import pytest

from aerie.attention.contract import Reach
from aerie.models.eagle3.config import parse_head_config
from aerie.models.eagle3.resolve import SINKS, HeadOptions, resolve_reach
from aerie.models.fields import Fields
from tests.unit.models import pairs

PLAIN = {"max_position_embeddings": 16}
WINDOWED = {"max_position_embeddings": 16, "sliding_window": 5}
SILENT = {"max_position_embeddings": ...}


@pytest.mark.parametrize(
    ("fields", "options", "reach", "origin"),
    [
        (PLAIN, {}, Reach(), "default"),
        (PLAIN, {"context": 16}, Reach(), "default"),
        (PLAIN, {"context": 17}, Reach(16, SINKS), "default"),
        (PLAIN, {"context": 17, "sinks": 0}, Reach(16), "default"),
        (PLAIN, {"context": 17, "window": 0}, Reach(), "option"),
        (PLAIN, {"context": 16, "window": 7}, Reach(7, SINKS), "option"),
        (WINDOWED, {"context": 17}, Reach(5), "config"),
        (WINDOWED, {"context": 17, "sinks": 2}, Reach(5, 2), "config"),
        (WINDOWED, {"window": 9}, Reach(9), "option"),
        (WINDOWED, {"window": 9, "sinks": 3}, Reach(9, 3), "option"),
        (SILENT, {"context": 1 << 20}, Reach(), "default"),
    ],
)
def test_reach(fields: dict[str, Any], options: dict[str, Any], reach: Reach, origin: str) -> None:
    config = parse_head_config(Fields(pairs.base_config(**fields), "a test"))
    found = resolve_reach(config, HeadOptions(**options))
    assert (found.value, found.origin) == (reach, origin)


def test_a_window_past_the_trained_length_says_both() -> None:
    config = parse_head_config(Fields(pairs.base_config(**PLAIN), "a test"))
    reason = resolve_reach(config, HeadOptions(context=100)).reason
    assert "trained on 16" in reason and "may have 100" in reason
