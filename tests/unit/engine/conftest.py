"""The trained tiny pair, once per worker."""

from pathlib import Path

import pytest

from tests.unit.engine.cores import LAUNCHERS, Pair, load_pair, write_pair


@pytest.fixture(scope="session")
def pair_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def pair(pair_directory: Path) -> Pair:
    return load_pair(pair_directory, "exact")


@pytest.fixture(scope="session")
def eight_bit_pair(pair_directory: Path) -> Pair:
    """Its head multiplies in eight bits; the target is the other pair's."""
    return load_pair(pair_directory, "exact", products="fp8")


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    """Whatever a test says of an engine holds for both."""
    assert isinstance(request.param, str)
    return request.param
