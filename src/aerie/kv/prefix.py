"""Prefix reuse: full pages of requests, running or ended, found again by the exact text they hold.

A node is one full page of a text: its key is the node before it, the page's tokens and the one
token after it. That token belongs to the key because the draft's KV of a position is made from the
pair (state of the position, token after it): with another token the target's KV of the page would
be right and the draft's last entry wrong. Node ids are never used twice, so a forgotten page cannot
be found through a stale key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerie.kv.pages import Ledger
from aerie.requests.request import Holding

Key = tuple[int, tuple[int, ...], int]
ROOT = 0


@dataclass
class Node:
    """One kept page."""

    node_id: int
    page: int


class PrefixCache:
    """Finds kept pages by text; forgets the least recently held when pages run short.

    A request that holds a page holds those before it in its text, and gives them back later: a
    node is never forgotten before those that are found through it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._nodes: dict[Key, Node] = {}
        self._keys: dict[int, Key] = {}  # by page
        self.n_inserted = 0  # nodes so far

    def find(self, tokens: Sequence[int]) -> list[Node]:
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
        return found

    def insert(self, tokens: Sequence[int], held: Holding, n_positions: int) -> None:
        """Keep the full pages of a text whose first `n_positions` are valid for both models.

        Goes on where it stopped for this request: pages fill one by one.
        """
        size = self._ledger.page_size
        # The token after a page belongs to its key, so it must be there.
        last = min(n_positions, len(tokens) - 1) // size
        for index in range(held.n_indexed, last):
            key = self._key(held.last_node, tokens, index * size)
            node = self._nodes.get(key)
            if node is None:
                self.n_inserted += 1
                node = Node(ROOT + self.n_inserted, held.pages[index])
                self._nodes[key], self._keys[node.page] = node, key
                self._ledger.keep(node.page)
            held.last_node = node.node_id
        held.n_indexed = max(held.n_indexed, last)

    def make_room(self, n_pages: int) -> None:
        """Forget idle pages, oldest first, until so many are free or none is left."""
        while self._ledger.n_free < n_pages:
            page = self._ledger.oldest_idle
            if page is None:
                return
            del self._nodes[self._keys.pop(page)]
            self._ledger.drop(page)

    def _key(self, parent: int, tokens: Sequence[int], start: int) -> Key:
        end = start + self._ledger.page_size
        return parent, tuple(tokens[start:end]), tokens[end]
