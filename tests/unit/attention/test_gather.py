"""However slots are brought together, they are those that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aerie.attention.gather import LONG_RUN, Rooms, find_slots, pick

LISTS = {
    "none": [],
    "one slot": [7],
    "one run": range(5, 5 + 3),
    "two long runs": [*range(900, 900 + LONG_RUN), *range(20, 20 + LONG_RUN)],
    "a long run and one slot": [*range(2 * LONG_RUN), 1200],
    "runs too short": [*range(40, 60), *range(10, 30)],
    "backwards": [9, 8, 7],
    "the same twice": [4, 4],
}
N_SLOTS = 1300


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("has_rooms", [False, True])
def test_equals_indexing(name: str, has_rooms: bool) -> None:
    """Fresh or in kept memory, twice, for the second layer finds what the first one left."""
    indices = np.array(LISTS[name], np.int32)
    rooms, slots = Rooms() if has_rooms else None, find_slots(indices)
    for layer in range(2):
        stored = torch.randn(N_SLOTS, 2, 3, generator=torch.Generator().manual_seed(layer))
        wanted = stored[torch.from_numpy(indices).long()]
        assert torch.equal(pick(stored, slots, "keys", rooms), wanted)


def test_only_what_is_scattered_is_gathered() -> None:
    """One run is read in place, a few long ones are copied whole."""
    kinds = {name: find_slots(np.array(ids, np.int32)) for name, ids in LISTS.items()}
    runs = {name: len(own) for name, own in kinds.items() if isinstance(own, tuple)}
    assert runs == {
        "one slot": 1,
        "one run": 1,
        "two long runs": 2,
        "a long run and one slot": 2,
    }


def test_rooms_grow_and_stay() -> None:
    """Keys and values are apart, and so are pools of other shapes or dtypes."""
    rooms, stored = Rooms(), torch.zeros(N_SLOTS, 1, 4)
    first = rooms.of("keys", stored, 33)
    assert rooms.of("keys", stored, 64).data_ptr() == first.data_ptr()
    assert rooms.of("keys", stored, 65).shape == (65, 1, 4)
    others = [
        rooms.of("values", stored, 33),
        rooms.of("keys", stored.double(), 33),
        rooms.of("keys", stored.view(-1, 2, 2), 33),
    ]
    assert len({own.data_ptr() for own in (first, *others)}) == 4
