"""Prefix reuse: pages of finished requests, found again by the exact text they hold.

A node is one full page of a text: its key is the node before it, the page's tokens and the one
token after it. That token belongs to the key because the draft's KV of a position is made from the
pair (state of the position, token after it): with another token the target's KV of the page would
be right and the draft's last entry wrong. Node ids are never used twice, so a forgotten page cannot
be found through a stale key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from aerie.engine.pages import Ledger

Key = tuple[int, tuple[int, ...], int]
ROOT = 0


@dataclass
class Node:
    """One kept page."""

    node_id: int
    key: Key
    page: int
    last_used: int


class PrefixCache:
    """Finds kept pages by text; forgets the least recently used when pages run short."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._nodes: dict[Key, Node] = {}
        self._ids = count(ROOT + 1)
        self._clock = count(1)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Pages that already hold the beginning of a text, in order.

        At least the last two tokens are left to compute: the root of the first tree, and the
        position before it, whose features the draft starts from.
        """
        found: list[Node] = []
        parent = ROOT
        for start in range(0, len(tokens) - 1 - self._ledger.page_size, self._ledger.page_size):
            node = self._nodes.get(self._key(parent, tokens, start))
            if node is None:
                break
            found.append(node)
            parent = node.node_id
        # The last first: an ancestor is then always more recent, and forgotten later.
        for node in reversed(found):
            node.last_used = next(self._clock)
        return [node.page for node in found]

    def insert(self, tokens: Sequence[int], pages: Sequence[int], n_positions: int) -> None:
        """Keep the full pages of a text whose first `n_positions` are valid for both models."""
        parent = ROOT
        fresh: list[Node] = []
        for index in range(n_positions // self._ledger.page_size):
            key = self._key(parent, tokens, index * self._ledger.page_size)
            node = self._nodes.get(key)
            if node is None:
                node = Node(next(self._ids), key, pages[index], 0)
                self._nodes[key] = node
                self._ledger.keep(node.page)
            fresh.append(node)
            parent = node.node_id
        for node in reversed(fresh):
            node.last_used = next(self._clock)

    def make_room(self, n_pages: int) -> None:
        """Forget idle pages, oldest first, until so many are free or none is left."""
        if self._ledger.n_free >= n_pages:
            return
        idle = [node for node in self._nodes.values() if self._ledger.is_idle(node.page)]
        for node in sorted(idle, key=lambda node: node.last_used):
            if self._ledger.n_free >= n_pages:
                return
            del self._nodes[node.key]
            self._ledger.drop(node.page)

    def _key(self, parent: int, tokens: Sequence[int], start: int) -> Key:
        end = start + self._ledger.page_size
        return parent, tuple(tokens[start:end]), tokens[end]
