"""The trained tiny pair, its target whole and in two processes, once per worker."""

from pathlib import Path

import pytest

from tests.unit.engine.cores import write_pair
from tests.unit.parallel.split_runs import Both, load_both


@pytest.fixture(scope="session")
def pair_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def both(pair_directory: Path) -> Both:
    return load_both(pair_directory)
