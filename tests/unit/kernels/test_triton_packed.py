"""Tiles of packed products: rules, tables, and the instructions that codes are unpacked with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.chips import CHIPS, DeviceRecord
from aerie.errors import UsageError
from aerie.kernels.triton_gpu import packed, packed_plan
from aerie.kernels.triton_gpu.packed_plan import (
    PARTS,
    ROW_BUCKETS,
    Key,
    Product,
    Tile,
    bucket_of,
    parse_table,
    table_record,
    tile_for,
)

WIDE = Product("multiply_fp8", 28672, 4096, 128)
ENTRY = Key("multiply_int4", 4096, 4096, 8)
each_chip = pytest.mark.parametrize("name", CHIPS)


@pytest.fixture
def on_chip(monkeypatch: pytest.MonkeyPatch) -> Callable[[DeviceRecord], None]:
    """Tiles are chosen for a chip that is not here, by the rule: tuned ones have run on theirs."""

    def choose(chip: DeviceRecord) -> None:
        monkeypatch.setattr(packed_plan, "record_of", lambda device: chip)
        monkeypatch.setattr(packed_plan, "tuned", lambda device: {})

    return choose


def rows(n_rows: int, n_in: int = 4096, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(n_rows, n_in, dtype=dtype, device="meta")


@each_chip
@pytest.mark.parametrize("n_rows", [1, 5, 8, 9, 16, 17, 64, 65, 2048])
@pytest.mark.parametrize("n_out", [17, 4096, 6144, 28672, 128256])
def test_every_tile_fits_and_leaves_the_bits_of_all_others(
    name: str, n_rows: int, n_out: int, on_chip: Callable[[DeviceRecord], None]
) -> None:
    on_chip(CHIPS[name])
    for product in (WIDE, replace(WIDE, name="multiply_int4")):
        for dtype in (torch.bfloat16, torch.float32):
            own = replace(product, n_out=n_out)
            tile = tile_for(own, rows(n_rows, dtype=dtype))
            assert tile.is_one_order()
            assert tile.shared_bytes(own, dtype.itemsize) <= CHIPS[name].shared_bytes


def test_shipped_tiles_leave_the_bits_of_all_others() -> None:
    tiles = packed_plan.tuned(CHIPS["h200"])
    assert tiles and all(tile.is_one_order() for tile in tiles.values())


def test_few_outputs_have_two_programs_for_each_processor(
    on_chip: Callable[[DeviceRecord], None],
) -> None:
    chip = CHIPS["h200"]
    on_chip(chip)
    for n_out in (4096, 6144, 28672):
        tile = tile_for(replace(WIDE, n_out=n_out), rows(1))
        assert tile.outputs == 16 or -(-n_out // tile.outputs) >= 2 * chip.processors


def test_a_short_inner_axis_has_one_part(on_chip: Callable[[DeviceRecord], None]) -> None:
    on_chip(CHIPS["h200"])
    short = Product("multiply_fp8", 4096, 128 * (PARTS - 1), 128)
    assert not short.has_parts and not tile_for(short, rows(1, short.n_in)).is_spread
    assert replace(short, n_in=128 * PARTS).has_parts


def test_a_tuned_tile_is_taken_as_it_is(
    on_chip: Callable[[DeviceRecord], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = Tile(8, 64, PARTS, 6)
    record = table_record([(ENTRY, tile, {"us": 5.0})], {})
    on_chip(CHIPS["h200"])
    monkeypatch.setattr(packed_plan, "tuned", lambda device: parse_table(record, "a test"))
    product = Product(ENTRY.name, ENTRY.n_out, ENTRY.n_in, 128)
    assert tile_for(product, rows(5)) == tile
    assert tile_for(product, rows(9)) != tile
    assert tile_for(product, rows(5, dtype=torch.float32)) != tile  # no other dtype was tuned


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 0}, "version 0 of a table of packed products"),
        ({"rows": 7}, "a tile that no product takes"),
        ({"tile": Tile(64, 64, 4, 3, is_spread=False)}, "a tile that no product takes"),
        ({"tile": Tile(16, 16, 3, 3)}, "a tile that no product takes"),
    ],
)
def test_other_tables_are_refused(fields: dict[str, Any], message: str) -> None:
    key = replace(ENTRY, rows=fields.get("rows", ENTRY.rows))
    record = table_record([(key, fields.get("tile", Tile(8, 16, 4, 3)), {})], {})
    with pytest.raises(UsageError, match=message):
        parse_table(record | {"version": fields.get("version", record["version"])}, "a test")


def test_a_number_of_rows_has_the_least_bucket_that_holds_it() -> None:
    assert [bucket_of(n) for n in (1, 2, 8, 9, 64, 65, 5000)] == [1, 8, 8, 16, 64, 2048, 2048]
    assert list(ROW_BUCKETS) == sorted(ROW_BUCKETS)


def run(assembly: str, word: int) -> list[int]:
    """What the instructions make of four bytes: the semantics of three of them, in Python."""
    registers = {"$4": word}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for name, *operands in re.findall(r"(prmt|lop3|shr)\.\w+ (\S+), (.*?);", assembly):
        target, given = operands[0], [value(own.strip()) for own in operands[1].split(",")]
        if name == "prmt":
            pool = (given[0] | given[1] << 32).to_bytes(8, "little")
            chosen = [pool[given[2] >> 4 * i & 7] for i in range(4)]
            registers[target] = int.from_bytes(bytes(chosen), "little")
        elif name == "lop3":
            assert given[3] == 0xEA  # (a and b) or c
            registers[target] = given[0] & given[1] | given[2]
        else:
            registers[target] = given[0] >> given[1]
    return [registers[f"${i}"] >> shift & 0xFFFF for i in range(4) for shift in (0, 16)]


@pytest.mark.parametrize(
    ("assembly", "dtype", "large"),
    [(packed._TO_BFLOAT16, torch.bfloat16, 128), (packed._TO_FLOAT16, torch.float16, 1024)],
)
def test_bytes_become_the_floats_of_their_halves(
    assembly: Any, dtype: torch.dtype, large: int
) -> None:
    held = [0x10, 0xF3, 0x8A, 0x5F]
    bits = run(assembly.value, int.from_bytes(bytes(held), "little"))
    floats = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(dtype)
    low, high = (floats.float() - large).tolist()[:4], (floats.float() - large).tolist()[4:]
    assert low == [byte & 15 for byte in held] and high == [byte >> 4 for byte in held]
