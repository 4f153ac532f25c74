"""What the cases do not show of the NumPy backend: tensors in and out, noise, cached checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aerie.errors import KernelBoundsError, KernelDtypeError, UsageError
from aerie.kernels import load
from aerie.kernels.arrays import speaking_torch
from aerie.kernels.noise import gumbel
from aerie.kernels.numpy_cpu.noise import BLOCK, best_with_noise, random_words

LAYER = "draft_tree_layer_score_index_gen_op"


def layer(batch: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    generator = torch.Generator().manual_seed(batch)
    return {
        "topk_probas": torch.rand(batch, 6, generator=generator),
        "topk_tokens": torch.randint(0, 90, (batch, 6), generator=generator),
        "last_layer_scores": torch.rand(batch, 2, generator=generator),
        "input_hidden": torch.randn(2 * batch, 5, generator=generator).to(dtype),
        "cumu_count": 4,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_hidden_rows_keep_their_dtype(dtype: torch.dtype) -> None:
    call = layer(dtype=dtype)
    found = speaking_torch(load("numpy"))[LAYER](**call)
    expected = load("pytorch")[LAYER](**call)
    assert found.output_hidden.dtype == dtype
    assert torch.equal(found.output_hidden, expected.output_hidden)


def test_tensors_are_written_in_place() -> None:
    accepted = torch.tensor([3, 4])
    speaking_torch(load("numpy"))["build_active_slots"](
        finished=torch.tensor([True, False]),
        seq_len=torch.tensor([1, 1]),
        length_limit=torch.tensor([9, 9]),
        eos_terminated=torch.tensor([False, False]),
        accept_count=accepted,
    )
    assert accepted.tolist() == [0, 4]


def test_a_tensor_with_gradients_is_read() -> None:
    call = layer()
    plain = load("numpy")[LAYER](**call)
    call["topk_probas"] = torch.nn.Parameter(call["topk_probas"])
    np.testing.assert_array_equal(load("numpy")[LAYER](**call).mapped_tokens, plain.mapped_tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_best_children_of_logits_that_lie_in_columns(dtype: torch.dtype) -> None:
    logits = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)).to(dtype).T
    best = load("numpy")["best_draft_children"]
    apart, together = (best(logits=array, node_top_k=4) for array in (logits, logits.contiguous()))
    for found, expected in zip(apart, together, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(UsageError, match="must be an array"):
        load("numpy")[LAYER](**{**layer(), "topk_tokens": [[1, 2, 3, 4, 5, 6]]})


def test_a_call_that_passed_does_not_let_others_pass() -> None:
    kernel = load("numpy")[LAYER]
    kernel(**layer())
    with pytest.raises(KernelDtypeError):
        kernel(**{**layer(), "topk_tokens": torch.zeros(2, 6, dtype=torch.int32)})
    with pytest.raises(KernelBoundsError):
        kernel(**{**layer(), "last_layer_scores": torch.ones(3, 2)})
    with pytest.raises(KernelBoundsError):
        kernel(**{**layer(), "cumu_count": 0})
    with pytest.raises(UsageError, match="cumu_count"):
        kernel(**{**layer(), "cumu_count": True})
    with pytest.raises(UsageError, match="missing"):
        kernel()


@pytest.mark.parametrize("vocab", [1, 3, 4, 257])
def test_noise_is_the_definition(vocab: int) -> None:
    """Many rows at once, over the edge of a block, and for the tokens that can win alone."""
    n_rows = min(70, BLOCK // max(vocab // 4, 1) + 2)
    generator = np.random.default_rng(vocab)
    seed = generator.integers(-(2**62), 2**62, n_rows)
    position, index = generator.integers(0, 1 << 20, (2, n_rows))
    words = random_words(vocab, seed, position, index)
    for row in range(n_rows):
        noise = gumbel(vocab, int(seed[row]), int(position[row]), int(index[row]))
        # Spread by rows: from nearly uniform, where every token can win, to hopeless but for one.
        scores = (generator.standard_normal(vocab) * row).astype(np.float32)
        scores[generator.random(vocab) < 0.2] = -np.inf
        scores[generator.integers(vocab)] = 0.5
        assert best_with_noise(scores, words[row, :vocab]) == int(np.argmax(scores + noise))


def test_equal_sums_go_to_the_lower_id() -> None:
    """Noise too small to show beside huge scores leaves ties."""
    words = random_words(8, *(np.zeros(1, np.int64) for _ in range(3)))[0]
    scores = np.array([1, 2, 2, 1, 2, 0, 0, 0], np.float32) * np.float32(2**40)
    assert best_with_noise(scores, words) == 1
