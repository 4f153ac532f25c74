"""The trained tiny pair, once per worker."""

from pathlib import Path

import pytest

from tests.unit.engine.cores import Pair, load_pair, write_pair


@pytest.fixture(scope="session")
def pair_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def pair(pair_directory: Path) -> Pair:
    return load_pair(pair_directory, "exact")
