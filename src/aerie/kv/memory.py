"""Memory of requests: pages from the ledger, slots in the request-to-slot table."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aerie.config import CacheConfig
from aerie.kernels.registry import Kernels
from aerie.kv.pages import Ledger, LedgerError
from aerie.kv.prefix import ROOT, PrefixCache
from aerie.requests.request import Holding, Request

AHEAD_POSITIONS = 256  # taken at once while decoding
AHEAD_SHARE = 16  # at most this part of the free pages is taken ahead, by one request


class Memory:
    """Gives every running request a table row and the pages that cover its positions.

    The host has a table of its own, written by kernels for a CPU: a device is sent copies,
    without a wait for it.
    """

    def __init__(
        self, config: CacheConfig, n_requests: int, longest: int, kernels: Kernels, device: str
    ) -> None:
        self._config = config
        self._n_requests = n_requests
        self.reset()
        width = min(self.ledger.n_slots, self.ledger.pages_for(longest) * config.page_size)
        # One row more than there are requests names the inert slot throughout: padding's row.
        self._here = torch.zeros((n_requests + 1, width), dtype=torch.int32)
        self.table = self._here.to(device)  # what rounds read
        self.inert_row = n_requests
        self.kernels = kernels

    def reset(self) -> None:
        """Nothing is held and no text is known; the table's rows are written when taken."""
        config = self._config
        self.ledger = Ledger(config.n_pages, config.page_size)
        self._prefixes = PrefixCache(self.ledger) if config.prefix_reuse else None
        self._rows = list(range(self._n_requests - 1, -1, -1))
        # Who did not fit, and what pages free, idle and indexed so far must reach until it may: a
        # long text is not looked up in every round that it waits.
        self._refused: tuple[Request | None, int] = None, 0

    def start(self, request: Request, n_positions: int) -> bool:
        """Give a request a table row and the pages that already hold its text.

        False and unchanged if no row is free or so many positions do not fit now.
        """
        n_known = self._prefixes.n_inserted if self._prefixes else 0
        available, (refused, wanted) = self.ledger.n_free + self.ledger.n_idle, self._refused
        if not self._rows or (request is refused and available + n_known < wanted):
            return False
        nodes = []
        # A request that wants every token of its prompt scored must compute them all.
        if self._prefixes and not request.wants_scores:
            nodes = self._prefixes.find(request.tokens)
        found = [node.page for node in nodes]
        needed = self.ledger.pages_for(n_positions) - len(found)
        if needed > available:
            # A page that is indexed from here on may be one that it need not take.
            self._refused = request, needed + n_known
            return False
        # Pages found idle cannot be given up for the others as well.
        if needed > available - sum(self.ledger.is_idle(page) for page in found):
            return False
        self.ledger.share(found)
        request.held.row = self._rows.pop()
        if found:
            self._hold(request, found)
        has_room = self.cover(request, n_positions)
        assert has_room, "it was counted before anything was taken"
        request.held.n_indexed = len(nodes)
        request.held.last_node = nodes[-1].node_id if nodes else ROOT
        request.seq_len = request.seen = len(found) * self.ledger.page_size
        request.statistics.reused_tokens += request.seq_len
        return True

    def index(self, request: Request) -> None:
        """Let others find the pages of a request that are full by now."""
        if self._prefixes:
            self._prefixes.insert(request.tokens, request.held, request.seen)

    def covers(self, request: Request, n_positions: int) -> bool:
        """Whether positions [0, n_positions) have slots already."""
        wanted = min(n_positions, self.table.shape[1])
        return self.ledger.pages_for(wanted) <= len(request.held.pages)

    def cover(self, request: Request, n_positions: int) -> bool:
        """Make sure positions [0, n_positions) have slots; False and unchanged if they cannot."""
        wanted = min(n_positions, self.table.shape[1])
        missing = self.ledger.pages_for(wanted) - len(request.held.pages)
        if missing <= 0:
            return True
        wanted_pages = missing + self._ahead(request, missing)
        if self._prefixes:
            self._prefixes.make_room(wanted_pages)
        pages = self.ledger.take(wanted_pages)
        if pages is None:
            return False
        self._hold(request, pages)
        return True

    def foresee(self, request: Request, n_positions: int) -> None:
        """Cover positions that a request will soon need, where plenty of pages are free.

        The next round is launched ahead only if the pages of every request cover it: one that
        takes them when they are missing has held up all others for several rounds by then.
        """
        wanted = self.ledger.pages_for(min(n_positions, self.table.shape[1]))
        if 0 < wanted - len(request.held.pages) <= self._spare(0):
            self.cover(request, n_positions)

    def _spare(self, missing: int) -> int:
        """Pages that one request may take beyond those that it is missing."""
        # Pages that only the prefix cache holds are as good as free: in the end it holds them all.
        return (self.ledger.n_free + self.ledger.n_idle - missing) // AHEAD_SHARE

    def _ahead(self, request: Request, missing: int) -> int:
        """Pages to take beyond what is missing, where plenty are free.

        The table is then written every few hundred tokens, not every page: between two captured
        rounds a write is a launch, and the only one there is.
        """
        own = request.job.length_limit + self.ledger.page_size
        most = self.ledger.pages_for(min(own, self.table.shape[1])) - len(request.held.pages)
        ahead = AHEAD_POSITIONS // self.ledger.page_size
        return max(0, min(most - missing, self._spare(missing), ahead))

    def _hold(self, request: Request, pages: list[int]) -> None:
        """Append pages to what a request holds, in its list and in the table (K10b)."""
        size, row = self.ledger.page_size, request.held.row
        start = len(request.held.pages) * size
        end = start + len(pages) * size
        request.held.pages += pages
        # NumPy throughout: every operation of torch lets go of Python's lock, and may have to wait
        # for it where a server's other threads are busy.
        first = np.array(pages, dtype=np.int32)[:, None] * np.int32(size)
        self.kernels["assign_req_to_token_pool_operator"](
            req_to_token=self._here,
            req_pool_indices=np.array([row]),
            start=np.array([start]),
            end=np.array([end]),
            out_cache_loc=(first + np.arange(size, dtype=np.int32)).reshape(-1),
        )
        if self.table is not self._here:
            self.table[row, start:end].copy_(self._here[row, start:end], non_blocking=True)

    def slots(self, request: Request) -> Tensor:
        """Slots of every covered position, a view of the table."""
        return self.table[request.held.row, : len(request.held.pages) * self.ledger.page_size]

    def release(self, request: Request) -> None:
        """Take back everything a request holds; its text may be found again."""
        if request.held.pages:
            self.index(request)
        self.ledger.give(request.held.pages)
        if request.held.row >= 0:
            self._rows.append(request.held.row)
        request.held = Holding()

    def forget(self) -> None:
        """Free every page that is kept for its text alone."""
        if self._prefixes:
            self._prefixes.make_room(self.ledger.n_pages)

    def audit(self, requests: list[Request]) -> None:
        """The ledger balances and the table says what the pages say."""
        self.ledger.audit(request.held.pages for request in requests)
        size = self.ledger.page_size
        for request in requests:
            pages = request.held.pages
            expected = [page * size + offset for page in pages for offset in range(size)]
            if self.slots(request).tolist() != expected:
                raise LedgerError(f"request {request.job.request_id}: table and pages differ")
