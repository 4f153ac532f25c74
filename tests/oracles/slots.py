"""A KV memory of one dictionary: what each slot holds, its owner, and how moves change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Content = tuple[int, ...]  # the tokens of the whole path whose KV this is: right or wrong at sight


@dataclass
class Memory:
    """Slots by number; slot 0 is never given out."""

    n_slots: int
    cells: dict[int, Content] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(1, self.n_slots))

    def take(self, n: int) -> list[int]:
        assert len(self.free) >= n, f"{n} slots asked for, {len(self.free)} are free"
        taken, self.free = self.free[:n], self.free[n:]
        return taken

    def write(self, slot: int, content: Content) -> None:
        self.cells[slot] = content

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Read all, then write all."""
        assert len(set(targets)) == len(targets), "two moves write one slot"
        read = [self.cells[slot] for slot in sources]
        self.cells.update(zip(targets, read, strict=True))

    def give_back(self, slots: Iterable[int]) -> None:
        for slot in slots:
            assert slot not in self.free, f"slot {slot} is freed twice"
            del self.cells[slot]
            self.free.append(slot)

    def sequence(self, slots: Sequence[int]) -> list[Content]:
        return [self.cells[slot] for slot in slots]


def fresh_run(tokens: Sequence[int]) -> list[Content]:
    """What the slots of a sequence hold when it is computed from nothing."""
    return [tuple(tokens[: position + 1]) for position in range(len(tokens))]


def is_conserved(before: Iterable[int], kept: Iterable[int], freed: Iterable[int]) -> bool:
    """Whether every slot was either kept or freed, exactly once."""
    return Counter(before) == Counter(kept) + Counter(freed)


@dataclass(frozen=True)
class Cut:
    """What a request emits of its accepted run and bonus."""

    tokens: list[int]
    n_kept_rows: int
    is_finished: bool


def cut(accepted: Sequence[int], bonus: int, stops: Iterable[int], room: int) -> Cut:
    """Emit until the first stop token, which stays, or until `room` tokens are emitted."""
    stop_ids = set(stops)
    emitted: list[int] = []
    for token in [*accepted, bonus]:
        if len(emitted) >= room:
            break
        emitted.append(token)
        if token in stop_ids:
            break
    ended = bool(emitted) and emitted[-1] in stop_ids
    return Cut(emitted, 1 + min(len(accepted), len(emitted)), ended or len(emitted) >= room)
