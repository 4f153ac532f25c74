"""KV memory, and how many requests share it."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.config.values import read_fields, require


@dataclass(frozen=True)
class CacheConfig:
    """KV memory: pages of slots shared by target and draft."""

    n_pages: int = 0  # 0: as many as the device has room for, and the batch a use
    page_size: int = 16
    prefix_reuse: bool = True  # keep finished texts' pages until the memory is needed
    gpu_memory: float = 0.9  # share of a GPU's memory that weights, KV and rounds may take

    def __post_init__(self) -> None:
        read_fields(self)
        require(self.page_size >= 1, f"page_size is {self.page_size}, must be at least 1")
        is_possible = self.n_pages == 0 or self.n_pages >= 2
        require(is_possible, f"n_pages is {self.n_pages}, must be at least 2 (one is inert) or 0")
        share = self.gpu_memory
        require(0 < share <= 1, f"gpu_memory is {share}, a share above 0 and up to 1")


@dataclass(frozen=True)
class SchedulerConfig:
    """Which requests run together."""

    max_batch: int = 32
    prefill_chunk: int = 0  # prompt tokens a step, all requests together; 0: by the device
    chunk_beside: int = 0  # the same while others decode: so long their next token may wait

    def __post_init__(self) -> None:
        read_fields(self)
        require(1 <= self.max_batch <= 128, f"max_batch is {self.max_batch}, limit 1..128")
        for name in ("prefill_chunk", "chunk_beside"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}, 0 or more")
