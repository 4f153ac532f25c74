"""Long contexts with a batch that shrinks and grows: nothing fails, nothing is left behind."""

from __future__ import annotations

import time
from typing import Any

import torch

from aerie.bench.round.setup import Room, RoundSetup, read_prompts
from aerie.config import SpeculationConfig
from aerie.models.inflate import LargePair
from aerie.requests.params import SamplingParams

JOIN_EVERY = 12  # steps
TREE = SpeculationConfig(top_k=4, depth=4, nodes=16)


def stress(
    setup: RoundSetup, pair: LargePair, context: int, n_requests: int, seconds: float
) -> dict[str, Any]:
    """Requests of different lengths join and end while the longest stays; JSON values."""
    batch = 4
    core = setup.core(pair, TREE, Room(batch, context + 256, chunk=8192))
    vocabulary = pair.target.geometry.vocab_size
    longest = read_prompts(1, context, vocabulary)[0]
    free_before = core.memory.ledger.n_free
    ids = [core.submit(longest, SamplingParams(200, ignore_eos=True))]
    lengths = [(context >> (1 + n % 5), 8 + 24 * (n % 3)) for n in range(n_requests)]
    begin = time.perf_counter()
    sizes: set[int] = set()
    memory: list[int] = []
    while not core.is_idle and time.perf_counter() - begin < seconds:
        if len(memory) % JOIN_EVERY == 0 and len(ids) <= n_requests:
            length, n_new = lengths[len(ids) - 1]
            ids.append(core.submit(longest[:length], SamplingParams(n_new, ignore_eos=True)))
        core.step()
        sizes.add(sum(core.request(i).ended is None for i in ids))
        memory.append(torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)
    ended = [core.request(i).ended for i in ids]
    return {
        "context": context,
        "requests": len(ids),
        "finished": sum(end is not None for end in ended),
        "errors": [end.error for end in ended if end is not None and end.reason == "error"],
        "batch_sizes": sorted(sizes),
        "pages_leaked": free_before - core.memory.ledger.n_free,
        "allocated_mb": [round(m / 1e6) for m in memory[:: max(len(memory) // 16, 1)]],
        "seconds": round(time.perf_counter() - begin, 2),
        "ok": core.is_idle and free_before == core.memory.ledger.n_free,
    }
