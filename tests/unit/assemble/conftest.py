"""Devices that tests make up are forgotten after each of them."""

from collections.abc import Iterator

import pytest

from aerie.chips import record_of


@pytest.fixture(autouse=True)
def forget_devices() -> Iterator[None]:
    record_of.cache_clear()
    yield
    record_of.cache_clear()
