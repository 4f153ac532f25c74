"""The account of KV memory: what a position costs, what a device has free, how many pages fit."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aerie.assemble.sizes import history_of, hot_bytes, n_previewed, near_width
from aerie.config import EngineConfig, require
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.footprint import device_bytes

# On a CPU: so many positions for every request of the batch, or one of full length if that is more,
# but never more than this share of what is free.
CPU_POSITIONS, CPU_SHARE = 1280, 0.5
# What a GPU needs beside weights and KV: libraries, recorded graphs, and rows on their way. A row
# keeps a few copies of its hidden states, its MLP's inside, and in float32 its logits.
GPU_RESERVE, COPIES, LOGIT_COPIES = 1 << 30, 8, 3
# Offsets inside one layer of the pool are 32-bit (`attention/triton/backend.py`).
MOST_ELEMENTS = 2**31 - 1
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Needs:
    """What the memory of an engine must hold, whatever its device has."""

    slot_bytes: int  # one position: keys and values of the target and of the draft head
    most_slots: int  # that attention on a GPU can address
    longest: int  # positions of one request: context, scratch of a round, the root
    reserve: int  # bytes beside KV that rounds on a GPU allocate later


def kv_needs(config: EngineConfig, target: Decoder, head: Eagle3Head | None, longest: int) -> Needs:
    """The needs of a configuration whose device, dtype and engine are chosen."""
    pools = [target.allocate_pool(1)] + ([] if head is None else [head.allocate_pool(1)])
    # On a CPU the other ranks' parts lie in the same memory.
    others = [pools[0]] * (config.model.tensor_parallel - 1) if config.model.device == "cpu" else []
    slot_bytes = sum(pool.keys.nbytes + pool.values.nbytes for pool in pools + others)
    geometry, itemsize = target.geometry, target.embedding.dtype.itemsize
    n_rows = max(config.scheduler.prefill_chunk, config.graphs.rows[-1])
    row = (COPIES * geometry.hidden_size + 2 * geometry.mlp_width) * itemsize
    reserve = GPU_RESERVE + n_rows * (row + LOGIT_COPIES * 4 * geometry.vocab_size)
    reserve += 0 if head is None else hot_bytes(config, head)
    if head is not None and config.engine == "graphs":
        # Features of every seat, kept while nothing is drafted.
        feature = len(head.taps) * geometry.hidden_size * itemsize
        reserve += (config.scheduler.max_batch + 1) * history_of(head.reach) * feature
    if config.partial.is_on:
        near = pools[0].keys.nbytes + pools[0].values.nbytes
        reserve += n_previewed(config) * near_width(config) * near
    if config.model.numerics == "exact" and config.model.device.startswith("cuda"):
        reserve += _parts_bytes(config, target, longest)
    most_slots = MOST_ELEMENTS // max(pool.keys[0].numel() for pool in pools)
    return Needs(slot_bytes, most_slots, longest, reserve)


def _parts_bytes(config: EngineConfig, target: Decoder, longest: int) -> int:
    """What exact attention leaves to its merge: of every verified row the spans of its text."""
    # Late: a machine without a GPU has no triton.
    spans_of = importlib.import_module("aerie.attention.triton.exact").spans_of
    attention = target.geometry.attention
    n_parts: int = config.graphs.rows[-1] * spans_of(longest) * attention.n_heads
    return 4 * n_parts * (attention.head_dim + 2)


def with_pages(config: EngineConfig, needs: Needs) -> EngineConfig:
    """The configuration with its pages counted; a number that was asked for must fit."""
    cache, device = config.cache, config.model.device
    page_bytes = cache.page_size * needs.slot_bytes
    if cache.n_pages:
        free = _free_memory(device)
        most = _addressable(device, free // page_bytes, needs, cache.page_size)
        require(
            cache.n_pages <= most,
            f"cache.n_pages {cache.n_pages} of {cache.page_size} positions need"
            f" {cache.n_pages * page_bytes / 1e9:.1f} GB ({needs.slot_bytes} bytes a position, the"
            f" draft's included), {device} has {free / 1e9:.1f} GB free: at most {most}",
        )
        return config
    free = free_bytes(config, needs)
    most = _addressable(device, free // page_bytes, needs, cache.page_size)
    useful = config.scheduler.max_batch * needs.longest
    if device == "cpu":
        useful = min(useful, max(config.scheduler.max_batch * CPU_POSITIONS, needs.longest))
    n_pages = min(-(-useful // cache.page_size) + 1, most)
    require(
        n_pages >= 2,
        f"{device} has {free / 1e9:.3f} GB for KV, a page of {cache.page_size} positions needs"
        f" {page_bytes / 1e9:.3f}: end what else runs there, raise gpu_memory or take a smaller"
        " model",
    )
    return replace(config, cache=replace(cache, n_pages=n_pages))


def _addressable(device: str, n_pages: int, needs: Needs, page_size: int) -> int:
    return n_pages if device == "cpu" else min(n_pages, needs.most_slots // page_size)


def free_bytes(config: EngineConfig, needs: Needs) -> int:
    """Bytes that KV may take by itself, with the weights in memory already."""
    device = config.model.device
    free = _free_memory(device)
    if device == "cpu":
        return int(CPU_SHARE * free)
    total = torch.cuda.mem_get_info(device)[1]
    left_to_others = (1 - config.cache.gpu_memory) * total
    return max(int(free - left_to_others - needs.reserve), 0)


def _free_memory(device: str) -> int:
    """Bytes that this process may still take on a device."""
    return free_ram() if device == "cpu" else device_bytes(torch.device(device))


def give_back(device: str) -> None:
    """Return to a GPU what engines that are gone have held."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def free_ram() -> int:
    """Bytes of memory this process may still take: the machine's, or its container's."""
    return min(_free_ram())


def _free_ram() -> Iterator[int]:
    if MEMINFO.is_file():
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        yield from (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
    else:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    most = CGROUP / "memory.max"
    limit = most.read_text(encoding="ascii").strip() if most.is_file() else "max"
    if limit != "max":
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
        statistics = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
        # Files that were read and may be forgotten, weights for one, count as used.
        forgettable = [int(s.split()[1]) for s in statistics if s.startswith("inactive_file ")]
        yield max(int(limit) - used + sum(forgettable), 0)
