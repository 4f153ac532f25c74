"""Vocabularies and tokenizers of different sizes: more embeddings than tokens, and fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import aerie
from aerie.attention import pytorch
from aerie.errors import CheckpointError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe import probe_at_load
from aerie.text.tokenizer import load_tokenizer
from tests.unit.models import pairs
from tests.unit.models.handmade import CONFIG, write_checkpoint

PAIR = Path(aerie.__file__).parent / "assets/pair"
N_TOKENS, N_ROWS = 4096, 4160


def load(target: Path, head: Path) -> tuple[Decoder, Eagle3Head]:
    options = LoadOptions(dtype=torch.float32)
    decoder = load_decoder(target, pytorch.prepare, options)
    return decoder, load_head(head, decoder, pytorch.prepare, HeadOptions())


def config_of(directory: Path, **fields: Any) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text()) | fields


def tensors_of(directory: Path) -> dict[str, Tensor]:
    return {k: t for path in directory.glob("*.safetensors") for k, t in load_file(path).items()}


def pad_pair(folder: Path) -> tuple[Path, Path]:
    """The built-in pair with rows in target and head's map that no token has, as Qwen's have."""
    target = tensors_of(PAIR / "target")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        target[name] = functional.pad(target[name], (0, 0, 0, N_ROWS - N_TOKENS))
    pairs.save(folder / "target", config_of(PAIR / "target", vocab_size=N_ROWS), target)
    head = tensors_of(PAIR / "head") | {"d2t": torch.zeros(N_TOKENS, dtype=torch.int64)}
    pairs.save(folder / "head", config_of(PAIR / "head", vocab_size=N_ROWS), head)
    return folder / "target", folder / "head"


def test_padding_changes_nothing(tmp_path: Path) -> None:
    encode = load_tokenizer(PAIR / "target").encode
    plain, plain_head = load(PAIR / "target", PAIR / "head")
    padded, padded_head = load(*pad_pair(tmp_path))
    assert (padded.geometry.vocab_size, padded.embedding.shape[0]) == (N_ROWS, N_ROWS)
    want = probe_at_load(plain, plain_head, "refuse", encode)
    got = probe_at_load(padded, padded_head, "refuse", encode)
    assert want is not None and got == want


QWEN = CONFIG | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 8, "num_hidden_layers": 8}


@pytest.mark.parametrize(
    ("n_rows", "ids", "error"),
    [
        (4160, range(4032, 4096), "agrees with its target on only"),  # reads, and is no good
        (4032, range(4032, 4096), "64 ids up to 4095 of the probe's text.* 4032 embeddings"),
        (4160, [], "0 ids up to 0"),
        (4160, [7], "1 ids up to 7 .* at least 64"),
    ],
)
def test_a_tokenizer_that_is_not_the_models(
    tmp_path: Path, n_rows: int, ids: range | list[int], error: str
) -> None:
    write_checkpoint(tmp_path / "target", QWEN | {"vocab_size": n_rows})
    case = pairs.CASES["official"]
    config = case.config | {"vocab_size": n_rows}
    tensors = pairs.stored_tensors(case)
    tensors["t2d"] = functional.pad(tensors["t2d"], (0, n_rows - pairs.VOCAB))
    pairs.save(tmp_path / "head", config, tensors)
    decoder, head = load(tmp_path / "target", tmp_path / "head")
    with pytest.raises(CheckpointError, match=error):
        probe_at_load(decoder, head, "refuse", lambda text: list(ids))
