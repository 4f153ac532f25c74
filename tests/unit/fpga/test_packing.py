"""What is packed for a card's memory comes back; folded norms give the same products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie.errors import UsageError
from aerie.fpga.draft_weights import _Matrices, made_up_weights
from aerie.fpga.packing import arrays_of, gathered, read_pack, striped, write_pack
from aerie.perf.point import Sizes

TINY = Sizes("tiny", 128, 4, 2, 64, 256, 300, 300)


def test_a_pack_comes_back_bit_for_bit(tmp_path: Path) -> None:
    weights = made_up_weights(TINY, rank=64, n_positions=16)
    write_pack(weights, tmp_path, channels=5)
    back = read_pack(tmp_path)
    wanted = arrays_of(weights)
    assert list(back) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(back[name], array, name)
        assert back[name].dtype == array.dtype


def test_neighbouring_stripes_lie_in_neighbouring_channels() -> None:
    array = np.arange(4 * 3 * 16, dtype=np.uint8)
    banks, placed = striped({"one": array}, channels=3, size=16)
    assert [bank[:16] for bank in banks] == [
        array[16 * i : 16 * i + 16].tobytes() for i in range(3)
    ]
    banks[1][3] ^= 1
    with pytest.raises(UsageError, match="sum of its manifest"):
        gathered(banks, placed["one"], 16)


def test_folded_norms_give_the_same_products() -> None:
    rng = np.random.default_rng(0)
    hidden = 16
    norms = rng.uniform(0.5, 2, (4, hidden))
    shapes = ((24, 2 * hidden), (32, hidden), (40, hidden))
    qkv, gate_up, head = (rng.standard_normal(shape) for shape in shapes)
    plain = _Matrices(norms, qkv, gate_up, head, np.eye(hidden))
    folded = plain.folded()
    x = rng.standard_normal(2 * hidden)
    joined = np.concatenate([norms[0], norms[1]])
    np.testing.assert_allclose(folded.qkv @ x, plain.qkv @ (joined * x))
    np.testing.assert_allclose(folded.head @ x[:hidden], plain.head @ (norms[3] * x[:hidden]))
    assert (folded.norms == 1).all()
