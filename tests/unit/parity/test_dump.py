"""Dumps: what is written is read back, byte for byte, and anything else is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from aerie.errors import DumpError
from aerie.kernels import load
from aerie.kernels.cases import all_cases, cases_for
from aerie.parity.dump import Dump, find_dumps, from_bytes, read_dump, to_bytes, write_dump
from aerie.parity.dump_cases import dump_case, dump_cases
from aerie.parity.dump_file import Container, Stored, decode, encode
from aerie.parity.replay import replay_dump, replay_dumps

ORIGIN = {
    "commit": "test",
    "device": "cpu",
    "backend": "reference",
    "model": "none",
    "seed": 0,
    "created": "2026-11-15",
}
REFERENCE = load("reference", data_errors="status")
K3 = "calculate_work_deltas"


def dump_of(kernel: str, index: int = 0) -> Dump:
    return dump_case(REFERENCE, cases_for(kernel)[index], ORIGIN)


def test_every_case_survives_the_journey() -> None:
    """All cases, refusals included: bytes are stable, and the reference agrees with its record."""
    outcomes: Counter[str] = Counter()
    for case in all_cases():
        data = to_bytes(dump_case(REFERENCE, case, ORIGIN))
        dump = from_bytes(data, case.name)
        assert to_bytes(dump) == data
        outcomes[dump.outcome] += 1
        if dump.n_bytes < 100_000:
            result = replay_dump(REFERENCE, dump, case.name)
            assert result.ok, result
    assert outcomes["ok"] > 400
    assert {"KernelBoundsError", "KernelDtypeError", "NOT_FINITE", "TOO_DEEP"} <= set(outcomes)


def test_the_library_reads_it_too(tmp_path: Path) -> None:
    dump = dump_of("draft_tree_layer_score_index_gen_op")
    write_dump(tmp_path / "one.safetensors", dump)
    arrays = load_file(tmp_path / "one.safetensors")
    np.testing.assert_array_equal(arrays["in.topk_probas"], dump.inputs["topk_probas"])
    np.testing.assert_array_equal(arrays["out.status"], dump.outputs["status"])


def test_bfloat16_keeps_its_name() -> None:
    case = next(c for c in all_cases() if "bf16" in c.features and not c.expects)
    data = to_bytes(dump_case(REFERENCE, case, ORIGIN))
    assert b'"BF16"' in data
    hidden = from_bytes(data, "x").inputs
    assert any(array.dtype == np.uint16 for array in hidden.values())


def test_replay_names_what_differs() -> None:
    dump = dump_of(K3)
    gains = dump.outputs["G"] + np.float32(0.5)
    result = replay_dump(REFERENCE, replace(dump, outputs={"G": gains}), "spoiled")
    assert not result.ok
    assert result.reason is not None and result.reason.startswith("G:")
    refused = replace(dump, outputs={}, outcome="KernelBoundsError")
    assert "the record says KernelBoundsError" in str(replay_dump(REFERENCE, refused, "x").reason)


def test_a_folder_is_replayed_on_another_backend(tmp_path: Path) -> None:
    cases = cases_for("update_cumu_draft_state")[:6]
    assert dump_cases(REFERENCE, cases, tmp_path, ORIGIN) == 6
    report = replay_dumps(load("pytorch", data_errors="status"), find_dumps(tmp_path))
    assert [result.ok for result in report.results] == [True] * 6
    assert read_dump(find_dumps(tmp_path)[0]).provenance["source"].startswith("case ")


def test_a_folder_without_dumps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="holds no dumps"):
        find_dumps(tmp_path)
    with pytest.raises(DumpError, match="not a file"):
        read_dump(tmp_path / "absent")


def edited(metadata: dict[str, str] | None = None, without: str = "", **arrays: Stored) -> bytes:
    """A valid dump of K3 with other metadata, without an array, or with more of them."""
    container = decode(to_bytes(dump_of(K3)), "made")
    kept = {name: array for name, array in container.arrays.items() if name != without}
    return encode(Container({**container.metadata, **(metadata or {})}, {**kept, **arrays}))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"format": "other"}, "format 'other'"),
        ({"version": "2"}, "version '2', expected '1'"),
        ({"kernel": "calculate_nothing"}, "no kernel of this version"),
        ({"card_version": "2"}, "calculate_work_deltas version 2, its card is at version 1"),
        ({"number": "K4"}, "is K3, the dump says 'K4'"),
        ({"scalars": "{}"}, "do not fit the card"),
        ({"scalars": "[1"}, "not JSON"),
        ({"absent": '["G"]'}, "absent says"),
        ({"outcome": "TOO_DEEP"}, "the status says 'ok'"),
        ({"provenance": "{}"}, "provenance lacks commit"),
        ({"extra": "1"}, "missing or unknown"),
    ],
)
def test_wrong_metadata_is_refused(metadata: dict[str, str], said: str) -> None:
    with pytest.raises(DumpError, match=said):
        from_bytes(edited(metadata), "file")


def test_wrong_arrays_are_refused() -> None:
    stray = Stored("F32", np.zeros(1, np.float32))
    for data, said in [
        (edited(without="in.work_scores"), "in.work_scores is missing"),
        (edited(without="out.G"), "out.G is missing"),
        (edited(**{"in.stray": stray}), "without a port"),
        (edited(**{"out.work_scores": stray}), "without a port"),
        (edited(**{"out.G": stray}), r"shape \(1,\), its card says"),
        (edited({"outcome": "KernelBoundsError"}), "yet there are outputs"),
    ]:
        with pytest.raises(DumpError, match=said):
            from_bytes(data, "file")


def with_header(text: str, body: bytes = b"") -> bytes:
    padded = text.encode().ljust(-(-len(text.encode()) // 8) * 8)
    return len(padded).to_bytes(8, "little") + padded + body


TENSOR = '{"a":{"dtype":"%s","shape":%s,"data_offsets":%s}}'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no header"),
        (b"\xff" * 8, "no header"),
        (with_header("{}")[:-1], "no header"),
        (b"\2" + bytes(7) + b"{}", "no multiple of 8"),
        (with_header("[]"), "not a JSON object"),
        (with_header('{"a":NaN}'), "NaN is no JSON"),
        (with_header('{"é":1}'), "not JSON"),
        (with_header('{"__metadata__":{"a":"\\u00e9"}}'), "not plain ASCII"),
        (with_header('{"__metadata__":{"a":"\\u0000"}}'), "not plain ASCII"),
        (with_header('{"%s":1}' % ("n" * 64)), "a name of 64 characters"),
        (with_header(json.dumps({str(i): 1 for i in range(65)})), "65 arrays"),
        (with_header("{]"), "not JSON"),
        (with_header("[" * 9000), "not JSON"),
        (with_header('{"a":1,"a":2}'), "names something twice"),
        (with_header('{"__metadata__":{"a":1}}'), "not a map of strings"),
        (with_header('{"a":{"dtype":"F32"}}'), "no dtype, shape and data_offsets"),
        (with_header(TENSOR % ("F31", "[1]", "[0,4]"), b"0000"), "unknown dtype"),
        (with_header(TENSOR % ("F32", "[-1]", "[0,4]"), b"0000"), "impossible shape"),
        (with_header(TENSOR % ("F32", "[true]", "[0,4]"), b"0000"), "impossible shape"),
        (with_header(TENSOR % ("F32", "[1.0]", "[0,4]"), b"0000"), "impossible shape"),
        (with_header(TENSOR % ("U8", f"[0,{1 << 30},{1 << 30}]", "[0,0]")), "impossible shape"),
        (with_header(TENSOR % ("F32", "[1,1,1,1,1]", "[0,4]"), b"0000"), "5 axes"),
        (with_header(TENSOR % ("F32", "[2]", "[0,4]"), b"0000"), "needs 8 bytes"),
        (with_header(TENSOR % ("F32", "[1]", "[0,4]"), b"000"), "needs 4 bytes"),
        (with_header(TENSOR % ("F32", "[1]", "[4,8]"), b"00000000"), "starts at byte 4"),
        (with_header(TENSOR % ("F32", "[1]", "[2,6]"), b"00000000"), "not aligned for F32"),
        (with_header(TENSOR % ("F32", "[1]", "[0,4]"), b"00000"), "describes 4"),
        (with_header(TENSOR % ("BOOL", "[1]", "[0,1]"), b"\2"), "neither 0 nor 1"),
    ],
)
def test_a_broken_container_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(DumpError, match=said):
        decode(data, "file")


def test_metadata_is_what_the_page_says() -> None:
    metadata = decode(to_bytes(dump_of(K3)), "file").metadata
    assert metadata["format"] == "aerie-dump"
    assert metadata["kernel"] == K3
    assert json.loads(metadata["scalars"]).keys() == {"node_top_k", "verify_num"}
