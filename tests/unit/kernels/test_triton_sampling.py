"""The Triton sampler with tiny blocks: every way a row can take, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load
from aerie.kernels.arrays import as_numpy, on_device
from aerie.kernels.cases.sampling_mixes import mixed_call
from aerie.kernels.triton_gpu import sampling
from aerie.kernels.triton_gpu.sampling import Tiles
from tests.unit.kernels.triton_device import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

KERNEL = "sample_target_tokens"
# A GPU's programs have 256 threads and as many ids at least; the interpreter is slow with many.
SCALE = 16 if DEVICE == "cuda" else 1
# Many blocks of few ids: lists that are too short, one test and several, and a group to a block.
SMALL = [
    Tiles(16 * SCALE, 4 * SCALE, 8, n_tests=1),
    Tiles(8 * SCALE, 8 * SCALE, 16, n_tests=2),
    Tiles(32 * SCALE, 8 * SCALE, 1, n_tests=3),
]


def found_by(backend: str, call: dict[str, Any]) -> tuple[list[int], list[int]]:
    device = DEVICE if backend == "triton" else "cpu"
    kernel = load(backend, device, data_errors="status")[KERNEL]
    result = kernel(**{name: on_device(value, device) for name, value in call.items()})
    return as_numpy(result.target_tokens).tolist(), as_numpy(result.status).tolist()


def near_by(backend: str, call: dict[str, Any], tokens: list[int]) -> list[list[bool]]:
    """Near ties among the first rows of each request, with a limit that makes many."""
    device = DEVICE if backend == "triton" else "cpu"
    rows = call["qo_indptr"][:-1, None].astype(np.int64) + np.arange(3)
    rows = np.where(rows < call["qo_indptr"][1:, None], rows, -1)
    said = np.array([*tokens, 0])[np.minimum(rows, len(tokens))]
    limit = np.full(len(rows), 0.3, np.float32)
    call = {**call, "rows": rows, "tokens": said, "limit": limit}
    kernel = load(backend, device, data_errors="status")["find_near_ties"]
    found = kernel(**{name: on_device(value, device) for name, value in call.items()})
    return as_numpy(found.near_ties).tolist()


def assert_agrees(tiles: Tiles, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "TILES", tiles)
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice((1, 3, 17, 50, 100))) * SCALE
    call = mixed_call(rng, vocab, n_requests=int(rng.integers(1, 4)))
    tokens, status = found_by("triton", call)
    assert (tokens, status) == found_by("reference", call), (seed, tiles)
    if seed % 2:
        assert near_by("triton", call, tokens) == near_by("reference", call, tokens), (seed, tiles)


@pytest.mark.parametrize("tiles", SMALL, ids=str)
def test_any_mix_of_options(tiles: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        assert_agrees(tiles, seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [*SMALL, Tiles()], ids=str)
def test_many_mixes_of_options(tiles: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100, 200):
        assert_agrees(tiles, seed, monkeypatch)


def equal_rows(n_rows: int, vocab: int, **options: Any) -> dict[str, Any]:
    """Rows of equal logits: only ids decide, and every sum is exact."""
    columns = {name: np.full(n_rows, value[0], value[1]) for name, value in options.items()}
    return {
        "logits": np.zeros((n_rows, vocab), np.float32),
        "positions": np.arange(n_rows),
        "temperature": np.ones(n_rows, np.float32),
        "qo_indptr": np.arange(n_rows + 1, dtype=np.int32),
        "seed": np.full(n_rows, 5),
        **columns,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": (0.25, "float32")},
        {"top_k": (3, "int64")},
        {"top_k": (1999, "int64"), "top_p": (0.5, "float32")},
    ],
    ids=str,
)
def test_equal_logits_of_several_blocks(options: dict[str, Any]) -> None:
    """Ties fill any list and meet every bound: the exact end decides, as the definition does."""
    call = equal_rows(3, 2 * Tiles().vocab + 10, **options)
    assert found_by("triton", call) == found_by("reference", call)


def test_a_row_alone_has_the_token_it_has_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are cut into more parts where there are fewer of them."""
    monkeypatch.setattr(sampling, "TILES", SMALL[1])
    monkeypatch.setattr(sampling, "PROGRAMS", 16)
    n_rows, vocab = 8, 90 * SCALE
    rng = np.random.default_rng(3)
    call = equal_rows(n_rows, vocab, top_p=(0.7, "float32"), top_k=(0, "int64"))
    call["logits"] = rng.standard_normal((n_rows, vocab)).astype(np.float32)
    call["top_k"][::2] = 9
    together, _ = found_by("triton", call)
    for row in range(0, n_rows, 3):
        alone = {name: value[row : row + 1] for name, value in call.items()}
        alone["qo_indptr"] = np.array([0, 1], np.int32)
        assert found_by("triton", alone)[0] == [together[row]]
