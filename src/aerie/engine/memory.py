"""Memory of requests: pages from the ledger, slots in the request-to-slot table."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.config import CacheConfig
from aerie.engine.pages import Ledger, LedgerError
from aerie.engine.request import Request
from aerie.kernels.registry import Kernels


class Memory:
    """Gives every running request a table row and the pages that cover its positions."""

    def __init__(
        self, config: CacheConfig, n_requests: int, longest: int, kernels: Kernels, device: str
    ) -> None:
        self.ledger = Ledger(config.n_pages, config.page_size)
        width = min(self.ledger.n_slots, self.ledger.pages_for(longest) * config.page_size)
        self.table = torch.zeros((n_requests, width), dtype=torch.int32, device=device)
        self._kernels = kernels
        self._rows = list(range(n_requests - 1, -1, -1))

    def can_start(self, request: Request, n_positions: int) -> bool:
        """Whether a row is free and so many positions would fit now."""
        return bool(self._rows) and self.ledger.pages_for(n_positions) <= self.ledger.n_free

    def start(self, request: Request) -> None:
        """Give a request its table row."""
        request.held.row = self._rows.pop()

    def cover(self, request: Request, n_positions: int) -> bool:
        """Make sure positions [0, n_positions) have slots; False and unchanged if they cannot."""
        size = self.ledger.page_size
        covered = len(request.held.pages) * size
        wanted = min(n_positions, self.table.shape[1])
        missing = self.ledger.pages_for(wanted) - len(request.held.pages)
        if missing <= 0:
            return True
        pages = self.ledger.take(missing)
        if pages is None:
            return False
        request.held.pages += pages
        device = self.table.device
        first = torch.tensor(pages, dtype=torch.int32, device=device)[:, None] * size
        slots = (first + torch.arange(size, dtype=torch.int32, device=device)).reshape(-1)
        self._kernels["assign_req_to_token_pool_operator"](
            req_to_token=self.table,
            req_pool_indices=torch.tensor([request.held.row], device=device),
            start=torch.tensor([covered], device=device),
            end=torch.tensor([covered + slots.shape[0]], device=device),
            out_cache_loc=slots,
        )
        return True

    def slots(self, request: Request) -> Tensor:
        """Slots of every covered position, a view of the table."""
        return self.table[request.held.row, : len(request.held.pages) * self.ledger.page_size]

    def release(self, request: Request) -> None:
        """Take back everything a request holds."""
        self.ledger.give(request.held.pages)
        request.held.pages = []
        if request.held.row >= 0:
            self._rows.append(request.held.row)
            request.held.row = -1

    def audit(self, requests: list[Request]) -> None:
        """The ledger balances and the table says what the pages say."""
        self.ledger.audit(request.held.pages for request in requests)
        size = self.ledger.page_size
        for request in requests:
            expected = [
                page * size + offset for page in request.held.pages for offset in range(size)
            ]
            if self.slots(request).tolist() != expected:
                raise LedgerError(f"request {request.job.request_id}: table and pages differ")
