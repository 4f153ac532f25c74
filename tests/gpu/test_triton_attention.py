"""Tree attention on a GPU: bf16, 32K columns, graphs replayed with other lengths, fixed bits."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

# Names only: what a check needs is built on the machine that runs it.
NAMES = (
    "trees_bf16",
    "widest_tree_32k",
    "tree_without_prefix",
    "decode_32k",
    "decode_batch",
    "one_page_slots",
    "prompt_chunks",
    "mixed_and_padded",
    "dim_64_group_8",
    "group_1",
    "odd_group",
    "odd_dimension",
    "fp16_trees",
    "fp32_trees",
    "fp32_chunks",
    "window_and_sinks",
    "window_chunks",
    "fp32_window",
    "sinks",
    "replayed_with_other_lengths",
    "repeats",
)


@pytest.mark.parametrize("name", NAMES)
def test_check(name: str) -> None:
    from tests.gpu.attention_cases import checks

    found = checks()
    assert list(found) == list(NAMES)
    found[name]()
