"""The KV ledger: pages of slots, who owns them, and an audit that nothing is lost or shared."""

from __future__ import annotations

from collections.abc import Iterable

from aerie.errors import AerieError


class LedgerError(AerieError):
    """The ledger's books do not balance: a bug, never a user's fault."""


class Ledger:
    """Hands out pages of `page_size` slots. Page 0 is inert and never handed out."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        # Ascending on purpose: consecutive pages give attention runs of consecutive slots.
        self._free = list(range(n_pages - 1, 0, -1))
        self._owned: set[int] = set()

    @property
    def n_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    @property
    def n_slots(self) -> int:
        """Slots of the pool, the inert page included."""
        return self.n_pages * self.page_size

    def pages_for(self, n_positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-n_positions // self.page_size)

    def take(self, n_pages: int) -> list[int] | None:
        """So many pages, or None and nothing taken."""
        if n_pages > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n_pages)]
        self._owned.update(taken)
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Return pages; returning one that is not owned is an error."""
        for page in pages:
            if page not in self._owned:
                raise LedgerError(f"page {page} was returned but nobody owned it")
            self._owned.remove(page)
            self._free.append(page)

    def audit(self, owners: Iterable[Iterable[int]]) -> None:
        """Every page is free or owned by exactly one request; raises LedgerError otherwise."""
        held = [page for pages in owners for page in pages]
        if len(held) != len(set(held)):
            raise LedgerError("a page has two owners")
        if set(held) != self._owned:
            raise LedgerError(f"owned {sorted(self._owned ^ set(held))} do not match the requests")
        everything = sorted([*held, *self._free])
        if everything != list(range(1, self.n_pages)):
            raise LedgerError("pages are missing or counted twice")
