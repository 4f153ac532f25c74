"""Configuration as people write it: numbers of any library are taken, mistakes have a name."""

from typing import Any

import numpy as np
import pytest
import torch

from aerie.config import EngineConfig, ModelConfig, SpeculationConfig
from aerie.errors import UsageError


def test_numbers_of_any_library_are_taken() -> None:
    made = SpeculationConfig(top_k=np.int64(4), depth=torch.tensor(5), nodes=np.array(24))
    assert (made.top_k, made.depth, made.nodes) == (4, 5, 24)
    assert all(type(number) is int for number in (made.top_k, made.depth, made.nodes))


def test_torch_names_are_taken() -> None:
    made = ModelConfig(dtype=torch.bfloat16, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert (made.dtype, made.device) == ("bfloat16", "cpu")


def test_a_slice_may_be_given_as_itself() -> None:
    own = SpeculationConfig(depth=3)
    assert EngineConfig.from_mapping({"speculation": own}).speculation is own


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"speculation": {"depth": "5"}}, "depth"),
        ({"speculation": {"depth": 2.5}}, "depth"),
        ({"speculation": {"depth": True}}, "depth"),
        ({"speculation": {"method": None}}, "method"),
        ({"speculation": "eagle3"}, "SpeculationConfig"),
        ({"cache": {"n_pages": 2.5}}, "n_pages"),
        ({"cache": {"n_pages": torch.zeros(2)}}, "n_pages"),
        ({"cache": {"prefix_reuse": 1}}, "prefix_reuse"),
        ({"graphs": {"rows": "12"}}, "rows"),
        ({"graphs": {"rows": 12}}, "rows"),
        ({"model": {"dtype": 32}}, "dtype"),
        ({"backend": None}, "backend"),
        ({"audit": "yes"}, "audit"),
    ],
    ids=str,
)
def test_mistakes_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        EngineConfig.from_mapping(values)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"num_speculative_tokens": "x"}', '{"model": 5}', '{"method": {}}', "[" * 10**5],
)
def test_a_wrong_speculative_config_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        SpeculationConfig.from_vllm(text)
