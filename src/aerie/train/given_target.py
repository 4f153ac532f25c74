"""Heads for any supported target: features from the engine's own decoder, text from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import UsageError
from aerie.models.decoder import Decoder
from aerie.models.draft_vocabulary import choose_ids, count_ids
from aerie.models.eagle3.values import usual_boundaries
from aerie.models.geometry import Geometry
from aerie.models.linear import DenseLinear
from aerie.models.load import LoadOptions, load_decoder
from aerie.train.batches import Batches, Stage
from aerie.train.features import DecoderFeatures
from aerie.train.head_files import save_head
from aerie.train.head_model import HeadModel, HeadShape
from aerie.train.progress import Progress
from aerie.train.tokenizer import load_tokenizer
from aerie.train.train_head import HeadPlan, train_head
from aerie.train.train_target import activation_dtype

WINDOW = 512
MAX_DRAFT_VOCAB = 32_000
LENGTHS = (512, 2048, 8192)  # those that fit the text and the target are used, equally often


def train_for_given(
    model: Path, text: Sequence[Path], out: Path, device: str, seconds: float, is_resumed: bool
) -> HeadShape:
    """Train and save a head; returns its shape. Every architecture the decoder runs will do."""
    progress = Progress()
    options = LoadOptions(dtype=activation_dtype(device), device=device)
    decoder = load_decoder(model, pytorch.prepare, options)
    tokens = read_tokens(model, text)
    geometry = decoder.geometry
    draft_ids = _choose_draft_ids(tokens, geometry.vocab_size)
    n_draft = geometry.vocab_size if draft_ids is None else draft_ids.shape[0]
    window = min(WINDOW, _power_of_two_below(tokens.shape[0] // 4))
    shape = _shape_for(geometry, n_draft, window)
    lengths = [
        n for n in LENGTHS if window <= n <= min(tokens.shape[0] // 3, geometry.max_positions)
    ]
    stages = (Stage(0.0, dict.fromkeys(lengths or [window], 1.0)),)
    plan = HeadPlan(
        seconds=seconds,
        shape=shape,
        n_rows=max(lengths or [window]),
        stages=stages,
        device=device,
        checkpoints=out / "head-checkpoint",
        is_resumed=is_resumed,
    )
    progress.say(f"head for {geometry.architecture}: {shape}")
    torch.manual_seed(plan.seed)
    head = HeadModel(shape).to(device)
    _begin(head, decoder, draft_ids)
    ids = None if draft_ids is None else draft_ids.to(device)
    batches = Batches(tokens, plan.n_rows, stages, plan.seed, device, first_token=None)
    train_head(DecoderFeatures(decoder, ids), (batches,), head, plan, progress, ids)
    save_head(head, out / "head", geometry.max_positions, draft_ids)
    progress.say(f"head: saved to {out / 'head'}")
    return shape


def read_tokens(model: Path, text: Sequence[Path]) -> NDArray[np.uint32]:
    """All files through the target's tokenizer, each as it would be prompted."""
    if not text:
        raise UsageError(
            "--model needs --text: files to train the head on, best of all text like "
            "what the target will write"
        )
    if not (model / "tokenizer.json").is_file():
        raise UsageError(f"{model} has no tokenizer.json; the text cannot be read without it")
    tokenizer = load_tokenizer(model)
    texts = [path.read_text(encoding="utf-8") for path in _list_files(text)]
    ids = [np.array(tokenizer.encode(own).ids, dtype=np.uint32) for own in texts]
    return np.concatenate(ids)


def _choose_draft_ids(tokens: NDArray[np.uint32], vocab_size: int) -> Tensor | None:
    """The most frequent ids, ascending, where the vocabulary is too large to draft from whole."""
    if vocab_size <= MAX_DRAFT_VOCAB:
        return None
    counts = count_ids(
        [torch.from_numpy(tokens.astype(np.int64))], vocab_size, "the text to train on"
    )
    return choose_ids(counts, MAX_DRAFT_VOCAB)


def _shape_for(geometry: Geometry, n_draft: int, window: int) -> HeadShape:
    """A head like one layer of the target."""
    attention = geometry.attention
    width = geometry.mlp_width if geometry.experts is None else 4 * geometry.hidden_size
    return HeadShape(
        hidden=geometry.hidden_size,
        target_hidden=geometry.hidden_size,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        mlp_width=width,
        vocab_size=geometry.vocab_size,
        draft_vocab_size=n_draft,
        taps=_choose_taps(geometry.n_layers),
        window=window,
        norm_eps=geometry.norm_eps,
        rope_theta=geometry.rope.theta,
    )


def _choose_taps(n_layers: int) -> tuple[int, ...]:
    """The usual choice, 2, N//2, N-3; in shallow targets an even spread ending at N."""
    usual = usual_boundaries(n_layers)
    if usual[0] < usual[1] < usual[2]:
        return usual
    return tuple(sorted({max(1, n_layers // 3), max(1, 2 * n_layers // 3), n_layers}))


def _begin(model: HeadModel, decoder: Decoder, draft_ids: Tensor | None) -> None:
    head = decoder.head
    if isinstance(head, DenseLinear):
        rows = head.weight if draft_ids is None else head.weight[draft_ids.to(head.weight.device)]
        model.begin_from(decoder.final_norm.weight, rows)


def _power_of_two_below(limit: int) -> int:
    if limit < 8:
        raise UsageError("the text is too short to train on; give more files")
    return int(1 << (int(limit).bit_length() - 1))


def _list_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Files as given, folders as all `.txt`, `.md` and `.py` files below them, sorted."""
    out: list[Path] = []
    for path in paths:
        if path.is_dir():
            out += [p for p in sorted(path.rglob("*")) if p.suffix in (".txt", ".md", ".py")]
        else:
            out.append(path)
    return tuple(out)
