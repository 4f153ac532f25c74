"""Which packages and files may be learned from."""

from __future__ import annotations

import pytest

from aerie.train.sources import find_sources, is_permissive, is_source


@pytest.mark.parametrize(
    ("licence", "is_fine"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True),
        ("Apache-2.0 OR BSD-2-Clause", True),
        ("Python Software Foundation License", True),
        ("ISC License (ISCL)", True),
        ("MPL-2.0 AND MIT", False),
        ("Mozilla Public License 2.0 (MPL 2.0)", False),
        ("GPL-3.0-or-later", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("LicenseRef-NVIDIA-Proprietary", False),
        ("MIT AND LGPL-2.1", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_licence(licence: str, is_fine: bool) -> None:
    assert is_permissive(licence) is is_fine


@pytest.mark.parametrize(
    ("path", "is_fine"),
    [
        ("pkg/module.py", True),
        ("pkg/tests/test_module.py", True),
        ("pkg/module.pyi", False),
        ("pkg/__pycache__/module.py", False),
        ("pkg/testdata/broken.py", False),
        ("pkg/message_pb2.py", False),
        ("../../bin/tool.py", False),
    ],
)
def test_file(path: str, is_fine: bool) -> None:
    assert is_source(path) is is_fine


def test_finds_the_standard_library_and_never_this_project() -> None:
    found = find_sources()
    assert found.packages[0].name == "python"
    assert any(file.path == "json/decoder.py" and file.package == 0 for file in found.files)
    assert "aerie" not in {package.name for package in found.packages}
    assert not any(is_permissive(package.licence) for package in found.refused)
