"""Few rows by packed weights: definitions, whole and ragged; words in registers; compiled code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels.cases.products import fp8_inputs, int4_inputs
from aerie.kernels.pytorch import products
from aerie.kernels.reference.products import FLOATS
from aerie.kernels.triton_gpu import (
    packed,
    packed_floats,
    packed_lanes,
    packed_words,
    refuse_device,
)
from aerie.kernels.triton_gpu.packed_plan import Product, Tile
from tests.laws.tree import ROOT

NO_TRITON = refuse_device("cpu")
needs_triton = pytest.mark.skipif(NO_TRITON is not None, reason=f"triton: {NO_TRITON}")
MODULES: dict[str, Any] = {"multiply_int4": packed, "multiply_fp8": packed_floats}
BUILDERS: dict[str, Any] = {"multiply_int4": int4_inputs, "multiply_fp8": fp8_inputs}
FEW = Tile(8, 16, 4, 3)
CODES = torch.zeros(128, dtype=torch.uint8)


def exact_inputs(name: str, sizes: tuple[int, int, int], group: int) -> dict[str, Any]:
    """Rows of small whole numbers and scales of powers of two: sums are exact in any order."""
    rng = np.random.default_rng(5)
    made = BUILDERS[name](rng, sizes, group, "float16", True)
    made["x"] = rng.integers(-3, 4, made["x"].shape).astype(np.float16)
    made["bias"] = rng.integers(-3, 4, made["bias"].shape).astype(np.float16)
    made["scales"] = (2.0 ** rng.integers(-14, -11, made["scales"].shape)).astype(np.float32)
    if name == "multiply_fp8":  # floats that are multiples of an eighth, up to 15
        known = [code for code, value in enumerate(FLOATS) if value * 8 == int(value * 8)]
        small = np.array([code for code in known if abs(FLOATS[code]) < 16], np.uint8)
        made["codes"] = rng.choice(small, made["codes"].shape)
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in made.items()}


@needs_triton
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    ("sizes", "group"),
    [
        ((1, 16, 1024), 128),  # one step of every part
        ((8, 16, 4096), 128),  # two that are under way, and two more
        ((3, 37, 1408), 128),  # a part is short, outputs are not a whole tile
        ((16, 33, 3072), 256),  # two steps of a group
        ((9, 16, 5120), 5120),  # one group; five steps, one at a time
    ],
)
def test_few_rows_have_the_bits_of_the_definition(
    name: str, sizes: tuple[int, int, int], group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = exact_inputs(name, sizes, group)
    module, taken = MODULES[name], []
    original = module.lane_tile
    monkeypatch.setattr(
        module, "lane_tile", lambda *given: taken.append(original(*given)) or taken[-1]
    )
    y = getattr(module, name)(**inputs)["y"]
    assert taken[0][1] > 0
    assert torch.equal(y, getattr(products, name)(**inputs)["y"])


@needs_triton
@pytest.mark.parametrize("name", MODULES)
def test_rows_do_not_depend_on_how_many_there_are(name: str) -> None:
    inputs = exact_inputs(name, (40, 32, 2048), 128)
    whole = getattr(MODULES[name], name)(**inputs)["y"]
    for n_rows in (1, 8, 16, 17):
        few = getattr(MODULES[name], name)(**(inputs | {"x": inputs["x"][:n_rows]}))["y"]
        assert torch.equal(few, whole[:n_rows])


def test_steps_under_way_divide_the_steps_of_a_part() -> None:
    x = torch.empty(1, 4096, dtype=torch.bfloat16, device="meta")
    int4, fp8 = Product("multiply_int4", 64, 14336, 128), Product("multiply_fp8", 64, 14336, 128)
    for outputs, warps, steps_each in ((16, 4, 4), (16, 8, 14), (64, 8, 3), (16, 4, 5)):
        tile = Tile(8, outputs, warps, 3)
        for product in (int4, fp8):
            ahead = packed_lanes.lane_tile(tile, product, steps_each, x, CODES)[1]
            assert ahead > 0 and steps_each % ahead == 0


@pytest.mark.parametrize(
    ("tile", "product", "dtype"),
    [
        (Tile(32, 16, 4, 3), Product("multiply_int4", 64, 4096, 128), torch.bfloat16),
        (Tile(8, 16, 1, 3, False), Product("multiply_int4", 64, 4096, 128), torch.bfloat16),
        (FEW, Product("multiply_int4", 64, 4096, 64), torch.bfloat16),
        (FEW, Product("multiply_int4", 64, 4096, 128), torch.float32),
        (FEW, Product("multiply_fp8", 64, 4160, 128), torch.bfloat16),
    ],
)
def test_other_products_go_through_shared_memory(
    tile: Tile, product: Product, dtype: torch.dtype
) -> None:
    x = torch.empty(1, product.n_in, dtype=dtype, device="meta")
    assert packed_lanes.lane_tile(tile, product, 4, x, CODES) == (tile, 0)


def run(assembly: str, word: int) -> list[int]:
    """What the instructions make of a word: the semantics of four of them, in Python."""
    registers: dict[str, int] = {"$8": word}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for name, operands in re.findall(r"(prmt|lop3|shr|mov)\.\w+ (.*?);", assembly):
        if name == "mov":
            low, high, pair = re.findall(r"[$\w]+", operands)
            registers[low], registers[high] = value(pair) & 0xFFFF, value(pair) >> 16
            continue
        target, *given = [own.strip() for own in operands.split(",")]
        first, *others = [value(own) for own in given]
        if name == "prmt":
            pool = (first | others[0] << 32).to_bytes(8, "little")
            chosen = bytes(pool[others[1] >> 4 * i & 7] for i in range(4))
            registers[target] = int.from_bytes(chosen, "little")
        elif name == "lop3":
            assert others[2] == 0xEA  # (a and b) or c
            registers[target] = first & others[0] | others[1]
        else:
            registers[target] = first >> others[0]
    return [registers[f"${i}"] for i in range(8)]


@pytest.mark.parametrize(
    ("assembly", "dtype", "large"),
    [(packed_words._BFLOAT16, torch.bfloat16, 128), (packed_words._FLOAT16, torch.float16, 1024)],
)
def test_words_become_the_floats_of_their_halves(
    assembly: Any, dtype: torch.dtype, large: int
) -> None:
    """Every byte at every place of a word."""
    for byte in range(256):
        held = [(byte + 77 * place) % 256 for place in range(4)]
        bits = run(assembly.value, int.from_bytes(bytes(held), "little"))
        floats = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(dtype).float() - large
        assert floats.tolist()[:4] == [own & 15 for own in held]
        assert floats.tolist()[4:] == [own >> 4 for own in held]


COMPILE = """
import torch
from aerie.kernels.triton_gpu import packed, packed_floats
from aerie.chips import CHIPS
from scripts.compile_triton import Compiler
from scripts.triton_launches import _eight_bits, _four_bits

compiler = Compiler(CHIPS["h200"])
note = compiler.note
def look(kernel, build):
    built = build()
    note(kernel, lambda: built)
    code = built.asm["ttgir"]
    n_wide = code.count("kWidth = 4}>> ->")
    print(built.metadata.shared, code.count("local_"), n_wide, built.asm["ptx"].count("shfl"))
compiler.note = look
for n_rows in (1, 16):
    x = torch.empty(n_rows, 4096, dtype=torch.bfloat16, device="meta")
    calls = (
        lambda: packed.multiply_int4(x=x, **_four_bits(4096, 4096, 128)),
        lambda: packed_floats.multiply_fp8(x=x, **_eight_bits(4096, 4096, 128)),
    )
    compiler.run_all(calls)
"""


@pytest.mark.slow
def test_nothing_is_shuffled_on_its_way_to_the_matrix_unit() -> None:
    """Compiled for the measured chip: shared memory holds sums of parts and nothing else."""
    environment = {**os.environ, "PYTHONPATH": f"src{os.pathsep}."}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == 4
    for shared, n_local, n_wide, n_shuffles in found:
        assert shared <= 8 * 16 * 32 * 4 and not n_local and n_wide and not n_shuffles


@needs_triton
@pytest.mark.parametrize("name", MODULES)
def test_codes_that_begin_anywhere_have_the_same_bits(name: str) -> None:
    inputs = exact_inputs(name, (3, 16, 1024), 128)
    n_bytes = inputs["codes"].numel()
    apart = torch.zeros(n_bytes + 16, dtype=torch.uint8)
    apart[1 : n_bytes + 1] = inputs["codes"].flatten()
    moved = inputs | {"codes": apart[1 : n_bytes + 1].view(inputs["codes"].shape)}
    multiply = getattr(MODULES[name], name)
    assert torch.equal(multiply(**moved)["y"], multiply(**inputs)["y"])
