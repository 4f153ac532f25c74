"""The decoder's padded path: the CPU walk's logits, and no value read by the host."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from aerie.attention import pytorch
from aerie.attention.contract import PrepareAttention
from aerie.attention.rows import causal_rows, tree_rows
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.batches import CONFIGS, batches, run
from tests.unit.models.handmade import write_checkpoint


@pytest.mark.parametrize("name", CONFIGS)
def test_padded_equals_blocks(tmp_path: Path, name: str) -> None:
    directory = write_checkpoint(tmp_path, CONFIGS[name])
    walked = load_decoder(directory, pytorch.prepare_blocks, LoadOptions())
    padded = load_decoder(directory, pytorch.prepare_padded, LoadOptions())
    torch.testing.assert_close(run(padded, batches()), run(walked, batches()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_who_asks_for_nothing_has_every_key_and_value(tmp_path: Path, name: str) -> None:
    """A prompt's rows: the last layer is left out behind its keys and values, nothing else is."""
    decoder = load_decoder(
        write_checkpoint(tmp_path, CONFIGS[name]), pytorch.prepare, LoadOptions()
    )
    pools = [decoder.allocate_pool(200) for _ in range(3)]
    n_layers = decoder.geometry.n_layers
    asked = (None, (0, 1)), (torch.arange(0), (0, 1)), (torch.arange(0), (0, n_layers))
    for rows in batches():
        whole, cut, tapped = (
            decoder.forward(rows, pool, wanted, taps)
            for pool, (wanted, taps) in zip(pools, asked, strict=True)
        )
        assert cut.logits.shape[0] == 0 and torch.equal(cut.taps, whole.taps)
        assert bool(tapped.taps[:, 1].any()), "what leaves the last layer was asked for"
        for pool in pools[1:]:
            assert torch.equal(pool.keys, pools[0].keys)
            assert torch.equal(pool.values, pools[0].values)


def _as_fake(value: Any) -> Any:
    """The same structure with tensors that have a shape and no values."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if isinstance(value, tuple):
        return tuple(_as_fake(entry) for entry in value)
    if is_dataclass(value):
        return replace(value, **{f.name: _as_fake(getattr(value, f.name)) for f in fields(value)})
    return value


def _forward_without_values(directory: Path, prepare: PrepareAttention) -> None:
    decoder = load_decoder(directory, prepare, LoadOptions())
    pool, parts = decoder.allocate_pool(200), batches()
    with FakeTensorMode():
        for rows in (_as_fake(part) for part in parts):
            lists = rows.qo_indptr, rows.kv_indptr, rows.kv_indices, rows.bounds
            causal = causal_rows(rows.tokens, *lists)
            tree = tree_rows(rows.tokens, rows.positions, rows.ancestor_bits, *lists)
            for each in (rows, causal, tree):
                _as_fake(decoder).forward(each, _as_fake(pool), torch.arange(4), (0, 2))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_rows_and_padded_forward_read_no_value(tmp_path: Path, name: str) -> None:
    directory = write_checkpoint(tmp_path, CONFIGS[name])
    _forward_without_values(directory, pytorch.prepare_padded)
    with pytest.raises(DataDependentOutputException):  # the check notices a reader
        _forward_without_values(directory, pytorch.prepare_blocks)
