"""Parts of a decoder, each in a thread of its own: together they say what the whole one says."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import TensorMismatchError, UsageError
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.partition import Partition
from tests.unit.models import pairs
from tests.unit.models.batches import CONFIGS, batches, run
from tests.unit.models.handmade import random_tensors, write_checkpoint, write_directory
from tests.unit.models.quantisers import gptq, quantise_file
from tests.unit.models.test_gptq import GPTQ

MODELS: dict[str, dict[str, Any]] = {
    "llama": CONFIGS["llama"],
    "norms of heads": CONFIGS["qwen3"],
    "biases": CONFIGS["llama"] | {"attention_bias": True, "mlp_bias": True},
    "tied": CONFIGS["llama"] | {"tie_word_embeddings": True},
}


class Meeting:
    """Threads that wait for each other and take what all have brought."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._brought: list[Tensor | None] = [None] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def part(self, rank: int) -> Partition:
        def meet(join: Callable[[list[Tensor]], Tensor]) -> Callable[[Tensor], Tensor]:
            def bring(own: Tensor) -> Tensor:
                self._brought[rank] = own
                self._barrier.wait()
                found = join([part for part in self._brought if part is not None])
                self._barrier.wait()
                return found

            return bring

        return Partition(rank, self.size, meet(sum_of), meet(lambda parts: torch.cat(parts, -1)))


def sum_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("size", [2, 4])  # two KV heads: one each, or shared by two ranks
@pytest.mark.parametrize("model", MODELS)
def test_parts_say_what_the_whole_says(tmp_path: Path, model: str, size: int) -> None:
    directory = write_checkpoint(tmp_path, MODELS[model])
    whole = load_decoder(directory, pytorch.prepare, LoadOptions(is_fused=True))
    meeting = Meeting(size)
    parts = [
        load_decoder(
            directory,
            pytorch.prepare,
            LoadOptions(is_fused=rank % 2 == 0, partition=meeting.part(rank)),
        )
        for rank in range(size)
    ]
    assert parts[0].geometry.attention.n_kv_heads == max(2 // size, 1)
    n_keys = [decoder.allocate_pool(8).keys.numel() for decoder in (parts[0], whole)]
    assert n_keys[0] * 2 == n_keys[1]
    with ThreadPoolExecutor(size) as threads:
        said = list(threads.map(lambda part: run(part, batches()), parts))
    want = run(whole, batches())
    assert said[0].shape == want.shape
    assert float((said[0] - want).abs().max()) <= 2e-5


def test_a_tied_head_that_is_written_differently_is_found_in_a_part(tmp_path: Path) -> None:
    config = MODELS["tied"]
    tensors = random_tensors(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][-1] += 1
    directory = write_directory(tmp_path, config, tensors)
    load_decoder(directory, pytorch.prepare, LoadOptions(partition=Meeting(2).part(0)))
    with pytest.raises(TensorMismatchError, match="differs from the embedding"):
        load_decoder(directory, pytorch.prepare, LoadOptions(partition=Meeting(2).part(1)))


def test_experts_are_not_split(tmp_path: Path) -> None:
    config = CONFIGS["gpt_oss"]
    directory = write_checkpoint(tmp_path, config)
    with pytest.raises(UsageError, match=r"tensor_parallel 2: experts \(.*\) are not split"):
        load_decoder(directory, pytorch.prepare, LoadOptions(partition=Meeting(2).part(0)))


def test_packed_weights_are_not_split(tmp_path: Path) -> None:
    base = pairs.write_target(tmp_path / "base", num_hidden_layers=2)
    packed, _ = quantise_file(load_file(base / "model.safetensors"), gptq)
    config = pairs.target_config(num_hidden_layers=2) | {"quantization_config": GPTQ}
    pairs.save(tmp_path / "packed", config, packed)
    with pytest.raises(UsageError, match="these are packed"):
        load_decoder(
            tmp_path / "packed", pytorch.prepare, LoadOptions(partition=Meeting(2).part(0))
        )


def test_a_draft_head_may_not_share_a_split_lm_head(tmp_path: Path) -> None:
    directory = pairs.write_target(tmp_path / "target")
    part = load_decoder(directory, pytorch.prepare, LoadOptions(partition=Meeting(2).part(0)))
    pairs.write_head(tmp_path / "shared", pairs.CASES["modelopt"])
    with pytest.raises(UsageError, match="shares the target's LM head, which is split"):
        load_head(tmp_path / "shared", part, pytorch.prepare, HeadOptions())
