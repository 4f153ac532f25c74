"""Operating points and warm engines at them: prompts are read once, other engines take the KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aerie.attention.pool import KVPool
from aerie.bench.profile.bytes import Load
from aerie.bench.round.setup import (
    Room,
    RoundSetup,
    read_prompts,
    start,
    synchronise,
)
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.graphs import smallest
from aerie.models.inflate import LargePair
from aerie.requests.params import SamplingParams

POLICIES = {
    "plain": SpeculationConfig(method="none"),
    "chain3": SpeculationConfig(top_k=1, depth=3, nodes=4),
    "chain5": SpeculationConfig(top_k=1, depth=5, nodes=6),
    "tree3": SpeculationConfig(top_k=4, depth=3, nodes=8),
    "tree5": SpeculationConfig(top_k=8, depth=5, nodes=64),
}
CHUNK = 8192  # prompt tokens a step while a point is prepared


@dataclass(frozen=True)
class Point:
    """Requests of one length."""

    context: int
    batch: int

    @property
    def name(self) -> str:
        """As tables and files call it."""
        return f"{self.context}x{self.batch}"

    def load(self, speculation: SpeculationConfig, graphs: GraphConfig, n_live: int) -> Load:
        """What a captured round of `n_live` of its requests has to do, padded to its bucket."""
        slots = smallest(graphs.slots, n_live)
        per_request = 1 if speculation.method == "none" else speculation.limits.nodes
        rows = smallest(graphs.rows, n_live * per_request + slots - n_live)
        return Load(slots, self.context, rows)


@dataclass(frozen=True, eq=False)
class Filled:
    """A point whose prompts one engine has read, target and draft."""

    point: Point
    source: EngineCore
    ids: list[int]
    prompts: list[list[int]]

    @classmethod
    def read(cls, setup: RoundSetup, pair: LargePair, point: Point, new_tokens: int) -> Filled:
        """Read the prompts with a speculating engine, so that the draft has its KV as well."""
        prompts = read_prompts(point.batch, point.context, pair.target.geometry.vocab_size)
        core = setup.core(pair, POLICIES["chain3"], room_at(point, new_tokens))
        ids = start(core, prompts, new_tokens)
        core.step()  # the draft takes in what was read when its request joins a round
        synchronise(setup.device)
        return cls(point, core, ids, prompts)

    def open(self, core: EngineCore, new_tokens: Sequence[int]) -> list[int]:
        """Requests of another engine that stand where these stood after their prompts."""
        core.step()  # a request that ended leaves the slot it is to be read into
        ids = [
            core.submit(prompt, SamplingParams(n_new, ignore_eos=True))
            for prompt, n_new in zip(self.prompts, new_tokens, strict=True)
        ]
        core.assume_read()
        theirs, own = self.source.parts, core.parts
        pools = [(theirs.pool, own.pool)]
        if own.draft is not None and theirs.draft is not None:
            pools.append((theirs.draft.pool, own.draft.pool))
            # A draft begins with the features of the prompt's last position.
            rows, other_rows = _table_rows(self.source, self.ids), _table_rows(core, ids)
            own.state.features.last[other_rows] = theirs.state.features.last[rows]
        for own_id, other_id, prompt in zip(self.ids, ids, self.prompts, strict=True):
            n = len(prompt) - 1  # the last token of a prompt is the root: no KV yet
            source = _slots(self.source, own_id)[:n]
            destination = _slots(core, other_id)[:n]
            for before, after in pools:
                _copy(before, after, source, destination)
        return ids


def room_at(point: Point, new_tokens: int, graphs: GraphConfig | None = None) -> Room:
    """Memory for a point and what is generated at it."""
    room = Room(point.batch, point.context + new_tokens, chunk=CHUNK)
    return room if graphs is None else Room(room.batch, room.context, CHUNK, graphs=graphs)


def _table_rows(core: EngineCore, ids: Sequence[int]) -> list[int]:
    return [core.request(request_id).held.row for request_id in ids]


def _slots(core: EngineCore, request_id: int) -> torch.Tensor:
    return core.memory.slots(core.request(request_id)).long()


@torch.inference_mode()
def _copy(before: KVPool, after: KVPool, source: torch.Tensor, destination: torch.Tensor) -> None:
    """Layer by layer: a copy of all layers at once would need as much memory again."""
    for (keys, values), (own_keys, own_values) in zip(before.layers, after.layers, strict=True):
        own_keys.index_copy_(0, destination, keys.index_select(0, source))
        own_values.index_copy_(0, destination, values.index_select(0, source))
