"""What is kept of a source file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie.train.cleaning import END_OF_TEXT, line_shingles, read_file, strip_header, why_not

CODE = "import os\n\n\ndef f(x):\n    return os.path.join(x, 'name')\n" * 10


def test_licence_header_goes_and_other_comments_stay() -> None:
    header = "# Copyright someone\n# Licensed under the Apache License\n\n"
    assert strip_header(header + CODE) == CODE.strip("\n") + "\n"
    assert strip_header("# What this file does.\n" + CODE).startswith("# What this file does.")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CODE, ""),
        ("x = 1\n", "size"),
        ("# Automatically generated, do not edit\n" + CODE, "generated"),
        (CODE + f"mark = '{END_OF_TEXT}'\n", "holds the end-of-text mark"),
        (CODE + "x = '" + "a" * 1200 + "'\n", "long lines"),
        ("table = [\n" + "    1234567, 7654321, 1112223,\n" * 50 + "]\n", "table of numbers"),
        ("s = 'абвгдежзиклмнопрстуфхцчшщ'\n" * 40, "not ascii"),
        (CODE + "\0", "binary"),
    ],
)
def test_reason(text: str, reason: str) -> None:
    assert why_not(text) == reason


def test_line_ends_are_normalised(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(CODE.replace("\n", "\r\n").encode())
    assert read_file(path).text == CODE.strip("\n") + "\n"
    path.write_bytes(b"\xff\xfe" * 200)
    assert read_file(path).reason == "not utf-8"
    assert read_file(tmp_path / "absent.py").reason == "unreadable"


def test_shingles_ignore_indentation_and_blank_lines() -> None:
    lines = [f"line {i}" for i in range(10)]
    plain = line_shingles("\n".join(lines))
    indented = line_shingles("\n\n".join("    " + line for line in lines))
    assert np.array_equal(plain, indented)
    assert plain.shape == (7,)
    assert line_shingles("one\ntwo").shape == (0,)
