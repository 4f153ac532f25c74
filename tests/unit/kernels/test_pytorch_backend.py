"""The PyTorch backend's own rules: what it adopts, and that it never waits for the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aerie.errors import KernelArgumentError, KernelError, UsageError
from aerie.kernels import catalogue, load
from aerie.kernels.arguments import check_memory, dtype_name
from aerie.kernels.binding import bind
from aerie.kernels.card import Card, Port
from aerie.kernels.cases import cases_for
from aerie.kernels.pytorch import KERNELS, adopt, sampling
from aerie.kernels.pytorch.noise import gumbel, philox
from tests.laws.tree import ROOT

BACKEND = ROOT / "src/aerie/kernels/pytorch"
# The table of kernels is built on import and takes arrays in; everything else runs on the device.
SOURCES = sorted(path for path in BACKEND.glob("*.py") if path.name != "table.py")


# --- adopt -------------------------------------------------------------------------------------


def test_numpy_is_shared_on_a_cpu() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    adopted = adopt(array, "cpu", True)
    adopted[1, 2] = 41
    assert array[1, 2] == 41


def test_bit_patterns_become_bfloat16() -> None:
    patterns = np.array([0x3F80, 0xC000], np.uint16)
    adopted = adopt(patterns, "cpu", True)
    assert adopted.dtype == torch.bfloat16
    assert adopted.float().numpy().tolist() == [1.0, -2.0]
    adopted.zero_()
    assert not patterns.any()


@pytest.mark.parametrize("is_written", [False, True])
def test_a_tensor_is_taken_as_it_is(is_written: bool) -> None:
    tensor = torch.zeros(3)
    assert adopt(tensor, "cpu", is_written) is tensor


@pytest.mark.parametrize("made", [np.arange(4)[::-1], np.broadcast_to(np.arange(1), 4)])
def test_what_cannot_be_shared_is_copied_or_refused(made: np.ndarray) -> None:
    assert adopt(made, "cpu", False).numpy().tolist() == made.tolist()
    with pytest.raises(UsageError, match="written in place"):
        adopt(made, "cpu", True)


def test_a_tensor_of_another_device_is_refused_by_name() -> None:
    card = catalogue()["calculate_work_deltas"]
    with pytest.raises(KernelArgumentError, match=r"loaded for cuda.*lives on cpu"):
        check_memory(card, {"work_scores": torch.zeros(1, 4)}, "cuda")
    with pytest.raises(KernelArgumentError, match=r"loaded for cpu.*lives on meta"):
        check_memory(card, {"work_scores": torch.zeros(1, 4, device="meta")}, "cpu")


def test_numpy_cannot_be_written_on_an_accelerator() -> None:
    card = catalogue()["build_active_slots"]
    with pytest.raises(KernelArgumentError, match=r"copied to cuda.*pass a tensor"):
        check_memory(card, {"accept_count": np.zeros(1, np.int64)}, "cuda")
    check_memory(card, {"seq_len": np.zeros(1, np.int64)}, "cuda")


@pytest.mark.parametrize("value", [[1, 2], 3, None])
def test_what_is_no_array_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="takes tensors and NumPy arrays"):
        adopt(value, "cpu", False)


# --- nothing waits for the device: the source --------------------------------------------------

# Methods and functions that read the device, or whose result has a shape only the device knows.
WAITING = {
    "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "is_nonzero", "unique",
    "unique_consecutive", "masked_select", "equal", "allclose", "bincount", "tensor", "as_tensor",
    "from_numpy", "synchronize",
}  # fmt: skip
HOST_CASTS = {"bool", "int", "float"}

# Loops the card allows: over depth, over a fixed number of rounds or words, or over arguments.
LOOPS = {
    "refusals.py:words": "the checks of the card",
    "growth.py:draft_tree_layer_score_index_gen_op": "the outputs, by name",
    "layout.py:_ancestor_words": "log2(128) rounds of pointer doubling",
    "walk.py:plant": "log2(128) rounds of pointer doubling",
    "walk.py:path_by_match": "the depth of the tree",
    "walk.py:path_by_coins": "the depth of the tree",
    "noise.py:philox": "ten rounds",
    "noise.py:gumbel": "the four words of a counter",
    "sampling.py:_is_possible": "the options that were given, each with its rule",
    "replay.py:_smallest": "the buckets, which are host numbers",
    "replay.py:draft_replay_input_operator": "four arrays of rows",
    "replay.py:extend_replay_input_operator": "four arrays of rows",
    "round_text.py:find_text_path": "the longest suffix, at most eight tokens",
    "round_text.py:_walked": "pointer doubling, log2 of the longest path",
    "round_choice.py:path_weights": "pointer doubling, log2 of the deepest path",
    "round_choice.py:note_chosen_nodes": "three of the noted arrays",
    "round_verdict.py:hand_over_verdict": "the columns of the report",
    "products.py:multiply_unpacked": "sixteen rows at a time, so that a row's bits are its own",
    "products.py:_write": "some outputs at a time, which bounds what is float32",
    "experts.py:multiply_experts": "as many tiles of pairs as there can be",
    "partial_kv.py:weigh_kv_blocks": "the layers: all keys of one at a time",
    "partial_kv.py:bound_kv_blocks": "the layers: all keys of one at a time",
    "partial_kv.py:gather_kv_blocks": "keys and values",
    "partial_kv.py:splice_drafted_run": "three of the node arrays",
}
LOOP_NODES = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def waits(tree: ast.AST) -> list[str]:
    """Calls in a syntax tree that would make the host wait for the device."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in WAITING:
                found.append(f"{node.lineno}: .{name}(")
            case ast.Call(func=ast.Name(id=name)) if name in HOST_CASTS:
                found.append(f"{node.lineno}: {name}(")
            case ast.Call(func=ast.Attribute(attr="repeat_interleave"), args=[count, *_]):
                is_host = isinstance(count, ast.Constant) or ast.unparse(count) == "top_k"
                if not is_host and "output_size" not in ast.unparse(node):
                    found.append(f"{node.lineno}: repeat_interleave without output_size")
    return found


def looping(path: Path) -> set[str]:
    """Functions of a file that hold a loop or a comprehension."""
    return {
        f"{path.name}:{function.name}"
        for function in functions_of(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, LOOP_NODES) for node in ast.walk(function))
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_source_never_reads_the_device(path: Path) -> None:
    assert waits(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_every_loop_has_its_reason() -> None:
    assert set().union(*map(looping, SOURCES)) == set(LOOPS)


@pytest.mark.parametrize(
    "line",
    ["x.sum().item()", "int(x[0])", "bool(x.any())", "x.nonzero()", "x.repeat_interleave(counts)"],
)
def test_the_rule_bites(line: str) -> None:
    assert len(waits(ast.parse(line))) == 1


# --- nothing waits for the device: what is really called ---------------------------------------


class NoWaiting(TorchDispatchMode):
    """Refuses operations that would synchronise on CUDA, seen as they run on a CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in WAITING | {"_local_scalar_dense", "_unique2"}, f"{name} waits"
        if name in ("index", "index_put", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
            assert not masks, f"{name} with a boolean mask waits"
        return func(*args, **(kwargs or {}))


def test_the_guard_bites() -> None:
    flags = torch.ones(2, dtype=torch.bool)
    for wait in (lambda: flags.any().item(), lambda: bool(flags[0]), lambda: flags[flags]):
        with pytest.raises(AssertionError, match="waits"), NoWaiting():
            wait()


def check_port(port: Port, value: Any, sizes: dict[str, int], inputs: dict[str, Any]) -> None:
    if port.dtypes == ("host_int",):
        assert type(value) is int, port.name
        return
    assert tuple(value.shape) == tuple(size(sizes) for size in port.sizes), port.name
    assert value.is_contiguous(), port.name
    assert dtype_name(value) in port.dtypes, port.name
    if len(port.dtypes) > 1:
        rows = inputs["input_hidden" if "input_hidden" in inputs else "x"]
        assert value.dtype == adopt(rows, "cpu", False).dtype


@pytest.mark.parametrize("name", catalogue())
def test_outputs_are_as_the_card_says_and_nothing_waits(name: str) -> None:
    card: Card = catalogue()[name]
    kernel = load("pytorch", data_errors="status")[name]
    n_run = 0
    for case in cases_for(name):
        inputs = case.build()
        try:
            sizes = bind(card, inputs)
        except (KernelError, UsageError):
            continue
        with NoWaiting():
            result = kernel(**inputs)
        for port in card.outputs:
            check_port(port, getattr(result, port.name), sizes, inputs)
        n_run += 1
    assert n_run >= 20


def test_the_table_holds_every_kernel_and_every_check() -> None:
    cards = catalogue()
    assert set(KERNELS) == set(cards)
    for name, implementation in KERNELS.items():
        is_checked_first = bool(cards[name].written and cards[name].refusals)
        assert (implementation.check is not None) == is_checked_first, name


# --- noise -------------------------------------------------------------------------------------

# Known answers of Philox4x32-10 from the Random123 distribution (kat_vectors).
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
KNOWN = [
    ((0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("counter_and_key", "answer"), KNOWN)
def test_philox_gives_the_known_answers(
    counter_and_key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    words = [torch.tensor([[word]]) for word in counter_and_key]
    found = philox(tuple(words[:4]), (words[4], words[5]))
    assert tuple(int(word) for word in found) == answer


def test_noise_of_a_row_does_not_depend_on_the_batch() -> None:
    seed, position = torch.tensor([5, -7, 2**62]), torch.tensor([0, 90_000, 3])
    together = gumbel(13, seed, position, torch.tensor([0, 1, 2]))
    for row in range(3):
        one = slice(row, row + 1)
        alone = gumbel(13, seed[one], position[one], torch.tensor([row]))
        assert torch.equal(together[one], alone)
    assert together.dtype == torch.float32
    assert torch.isfinite(together).all()


def test_greedy_rows_without_a_seed_cost_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> torch.Tensor:
        raise AssertionError("noise was drawn although no row can be sampled")

    monkeypatch.setattr(sampling, "gumbel", never)
    result = load("pytorch")["sample_target_tokens"](
        logits=np.array([[0, 2, 2], [1, 0, -1]], np.float32),
        positions=np.array([4, 5]),
        temperature=np.zeros(2, np.float32),
        qo_indptr=np.array([0, 1, 2], np.int32),
    )
    assert result.target_tokens.numpy().tolist() == [1, 0]
