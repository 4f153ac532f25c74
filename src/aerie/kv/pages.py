"""The KV ledger: pages of slots, what holds them, and an audit that nothing is lost or shared."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from aerie.errors import AerieError


class LedgerError(AerieError):
    """The ledger's books do not balance: a bug, never a user's fault."""


class Ledger:
    """Counts holders of pages of `page_size` slots. Page 0 is inert and never handed out.

    A page is free, held by one or more requests, or idle: kept for its content though no
    request holds it. Idle pages are given up one by one, by the cache that kept them.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        # Ascending on purpose: consecutive pages give attention runs of consecutive slots.
        self._free = list(range(n_pages - 1, 0, -1))
        self._holders: Counter[int] = Counter()
        self._kept: set[int] = set()
        # In the order in which they became idle. Where thousands were taken from its front, a plain
        # dict looks at the gaps they left before it finds the first.
        self._idle: OrderedDict[int, None] = OrderedDict()

    def scatter(self) -> None:
        """Hand free pages out with gaps, as after hours of use: what costs are measured on."""
        self._free.sort(key=lambda page: (page % 2, -page))

    @property
    def n_free(self) -> int:
        """Pages neither held nor kept."""
        return len(self._free)

    @property
    def n_idle(self) -> int:
        """Pages kept for their content and not held."""
        return len(self._idle)

    @property
    def oldest_idle(self) -> int | None:
        """The page that has been idle for longest; None: no page is."""
        return next(iter(self._idle), None)

    @property
    def n_slots(self) -> int:
        """Slots of the pool, the inert page included."""
        return self.n_pages * self.page_size

    def pages_for(self, n_positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-n_positions // self.page_size)

    def take(self, n_pages: int) -> list[int] | None:
        """So many free pages, or None and nothing taken."""
        if n_pages > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n_pages)]
        self._holders.update(taken)
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for pages that are held or kept."""
        for page in pages:
            if page not in self._holders and page not in self._kept:
                raise LedgerError(f"page {page} was shared but has no content")
            self._holders[page] += 1
            self._idle.pop(page, None)

    def give(self, pages: Sequence[int]) -> None:
        """One holder fewer; a page without holders is free unless it is kept.

        The last page first: the beginning of a text is worth keeping longer than its end.
        """
        for page in reversed(pages):
            if page not in self._holders:
                raise LedgerError(f"page {page} was returned but nobody held it")
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                if page in self._kept:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def keep(self, page: int) -> None:
        """Keep a held page's content beyond its holders."""
        if page not in self._holders:
            raise LedgerError(f"page {page} is to be kept but nobody holds it")
        self._kept.add(page)

    def is_idle(self, page: int) -> bool:
        """Kept, and not held."""
        return page in self._idle

    def drop(self, page: int) -> None:
        """Give up an idle page's content."""
        if not self.is_idle(page):
            raise LedgerError(f"page {page} is not idle")
        self._kept.remove(page)
        del self._idle[page]
        self._free.append(page)

    def audit(self, holdings: Iterable[Iterable[int]]) -> None:
        """Holders match the requests and every page is in one state; raises LedgerError."""
        held = Counter(page for pages in holdings for page in pages)
        if held != self._holders:
            raise LedgerError(f"holders differ from the requests: {held - self._holders}")
        everything = [*self._free, *(set(held) | self._kept)]
        if sorted(everything) != list(range(1, self.n_pages)):
            raise LedgerError("pages are missing or counted twice")
        if set(self._idle) != self._kept - set(held):
            raise LedgerError("idle pages are not those that are kept and not held")
