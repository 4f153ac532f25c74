"""Draft trees for the cases: node stores grown layer by layer, and ragged layouts of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits

import numpy as np

from aerie.kernels.cases.draws import cycle, draw_probas
from aerie.kernels.cases.table import Array, Rng

VOCAB = 32_000
COMPAT_ROOT = 1.001
COMPAT_DISCOUNT = np.float32(0.9999)


@dataclass(frozen=True)
class Plan:
    """How a node store is grown: layer i has a frontier of `widths[i]`, the last is not expanded.

    `nodes` and `columns` are capacities; None leaves a little room to spare.
    """

    batch: int
    top_k: int
    widths: tuple[int, ...] = (1,)
    kind: str = "usual"
    compat: bool = False
    nodes: int | None = None
    columns: int | None = None

    @property
    def n_nodes(self) -> int:
        """Nodes stored when the last frontier has been chosen."""
        return 1 + self.top_k * sum(self.widths[:-1])


@dataclass
class Store:
    """The node store of a batch; `path` holds undiscounted scores, everything else as in K2."""

    tokens: Array  # [B, N]
    scores: Array  # [B, N]
    depths: Array  # [B, N]
    prev: Array  # [B, N]
    next: Array  # [B, N]
    side: Array  # [B, N]
    path: Array  # [B, N]
    count: int
    frontier: Array  # [B, W]
    mask: Array  # [B, W, F]
    fed_count: int


@dataclass(frozen=True)
class Candidates:
    """The candidates of one layer, slot-major, and their order."""

    last: Array  # [B, W] path score of each frontier slot
    probas: Array  # [B, W*K]
    tokens: Array  # [B, W*K]
    scores: Array  # [B, W*K]
    order: Array  # [B, W*K]

    @property
    def sorted_scores(self) -> Array:
        """Path scores in order."""
        return np.take_along_axis(self.scores, self.order, 1)


def draw_candidates(rng: Rng, last: Array, top_k: int, kind: str = "usual") -> Candidates:
    """Candidates below frontier slots of path scores `last[B, W]`; tokens differ in a slot."""
    batch, width = last.shape
    probas = draw_probas(rng, (batch, width, top_k), kind)
    start = rng.integers(0, VOCAB, (batch, width, 1))
    step = rng.integers(1, VOCAB // top_k, (batch, width, 1))
    tokens = (start + step * np.arange(top_k)) % VOCAB
    clean = np.clip(np.where(np.isnan(probas), np.float32(0), probas), 0, 1)
    flat = (batch, width * top_k)
    scores = (clean * last[:, :, None]).reshape(flat)
    order = np.argsort(-scores, axis=1, kind="stable").astype(np.int64)
    return Candidates(last, probas.reshape(flat), tokens.reshape(flat), scores, order)


def grow(rng: Rng, plan: Plan) -> Store:
    """Grow a store: every candidate becomes a node, the best ones are the next frontier."""
    store = _rooted(plan)
    for width in plan.widths[1:]:
        last = np.take_along_axis(store.path, store.frontier, 1)
        _add_layer(store, draw_candidates(rng, last, plan.top_k, plan.kind), plan, width)
    return store


def _rooted(plan: Plan) -> Store:
    batch = plan.batch
    capacity = plan.n_nodes + 3 + plan.top_k * plan.widths[-1]
    nodes = capacity if plan.nodes is None else plan.nodes
    room = sum(plan.widths[1:]) + plan.top_k
    columns = room + 2 if plan.columns is None else plan.columns

    def table(root: float, rest: float, dtype: str) -> Array:
        made = np.full((batch, nodes), rest, dtype)
        made[:, 0] = root
        return made

    # What lies beyond the count is left over from an earlier round and must not matter.
    return Store(
        tokens=table(11, 777, "int64"),
        scores=table(COMPAT_ROOT if plan.compat else 1.0, 0.5, "float32"),
        depths=table(0, 9, "int64"),
        prev=table(-1, 7, "int64"),
        next=table(-1, 7, "int64"),
        side=table(-1, 7, "int64"),
        path=table(1.0, 0.0, "float32"),
        count=1,
        frontier=np.zeros((batch, 1), np.int64),
        mask=np.zeros((batch, 1, columns), bool),
        fed_count=0,
    )


def _add_layer(store: Store, layer: Candidates, plan: Plan, next_width: int) -> None:
    batch, width = store.frontier.shape
    top_k = plan.top_k
    slots = np.arange(width * top_k) // top_k
    ids = store.count + np.arange(width * top_k)
    here = np.s_[:, store.count : store.count + width * top_k]
    parents = store.frontier[:, slots]
    store.tokens[here] = layer.tokens
    store.path[here] = layer.scores
    is_discounted = plan.compat and store.count > 1
    store.scores[here] = layer.scores * COMPAT_DISCOUNT if is_discounted else layer.scores
    store.depths[here] = np.take_along_axis(store.depths, parents, 1) + 1
    store.prev[here] = parents
    store.next[here] = -1
    store.side[here] = np.where((ids - store.count) % top_k == top_k - 1, -1, ids + 1)
    first = np.broadcast_to(store.count + top_k * np.arange(width), (batch, width))
    np.put_along_axis(store.next, store.frontier, first, 1)
    chosen = layer.order[:, :next_width]
    mask = np.take_along_axis(store.mask, (chosen // top_k)[:, :, None], 1)
    reach = np.arange(next_width)
    mask[:, reach, store.fed_count + reach] = True
    store.mask = mask
    store.frontier = store.count + chosen
    store.count += width * top_k
    store.fed_count += next_width


def best_scores(store: Store, n_entries: int, compat: bool = False) -> Array:
    """The best path scores of the nodes in use, descending, the root first: `sort_scores`."""
    best = -np.sort(-store.path[:, : store.count], axis=1)[:, :n_entries]
    if compat:
        best[:, 0] = COMPAT_ROOT
    return np.ascontiguousarray(best)


def merge_paths(rng: Rng, store: Store, lengths: Array) -> Array:
    """Append an n-gram path of `lengths[b]` nodes below some node; returns the nodes in use.

    Tokens lie past the vocabulary, so none is already among its siblings.
    """
    counts = np.full(len(lengths), store.count, np.int64)
    for index, length in enumerate(lengths):
        parent = int(rng.integers(store.count))
        for offset in range(length):
            node = store.count + offset
            store.tokens[index, node] = VOCAB + node
            store.prev[index, node] = parent
            store.depths[index, node] = store.depths[index, parent] + 1
            store.path[index, node] = store.path[index, parent]
            parent = node
        counts[index] += length
    return counts


def select(rng: Rng, store: Store, counts: Array, sizes: Array, kind: str = "best") -> Array:
    """An ancestor-closed choice [B, N]: the best `sizes[b]` nodes, or the closure of random ones.

    The closure of random nodes may hold more than `sizes[b]`.
    """
    chosen = np.zeros(store.prev.shape, bool)
    for index, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        order = np.argsort(-store.path[index, :count], kind="stable")
        picked = order if kind == "best" else rng.permutation(count)
        for node in picked[:size]:
            while node >= 0 and not chosen[index, node]:
                chosen[index, node] = True
                node = store.prev[index, node]
        chosen[index, 0] = True
    return chosen


@dataclass(frozen=True)
class Layout:
    """The ragged rows of a verify batch, as K10c emits them, with the depth of each row."""

    indptr: Array  # [B+1]
    tokens: Array  # [R]
    depths: Array  # [R]
    parents: Array  # [R]
    first_child: Array  # [R]
    next_sibling: Array  # [R]
    bits: Array  # [R, 4]

    @property
    def rows(self) -> Array:
        """Rows of each request."""
        return np.diff(self.indptr)

    def span(self, request: int) -> slice:
        """The flat rows of a request."""
        return slice(int(self.indptr[request]), int(self.indptr[request + 1]))

    def path(self, rng: Rng, request: int, depth: int) -> list[int]:
        """Rows of the request from the root to some row of that depth, or of the deepest."""
        depths = self.depths[self.span(request)]
        if not len(depths):
            return []
        parents = self.parents[self.span(request)]
        node = int(rng.choice(np.flatnonzero(depths == min(depth, int(depths.max())))))
        found = [node]
        while parents[node] >= 0:
            node = int(parents[node])
            found.append(node)
        return found[::-1]

    def children(self, request: int, node: int) -> list[int]:
        """Rows of a row's children, in link order."""
        return [int(r) for r in np.flatnonzero(self.parents[self.span(request)] == node)]


def size_of(shape: str) -> int:
    """Rows of a shape, which its name ends with."""
    return int(shape.lstrip(ascii_lowercase))


def tree_parents(rng: Rng, shape: str) -> list[int]:
    """Parent of each row of a shape such as `chain5`, `star4`, `binary7`, `comb9`, `random12`."""
    kind, size = shape.rstrip(digits), size_of(shape)
    # An n-gram path hangs below some drafted node, after every drafted node.
    drafted = size - size // 3

    def merged(node: int) -> int:
        if node == drafted:
            return int(rng.integers(drafted))
        return int(rng.integers(node)) if node < drafted else node - 1

    rules: dict[str, Callable[[int], int]] = {
        "chain": lambda node: node - 1,
        "star": lambda node: 0,
        "binary": lambda node: (node - 1) // 2,
        "comb": lambda node: (node - 1) // 2 * 2,
        "random": lambda node: int(rng.integers(node)),
        "ngram": merged,
    }
    return [-1 if node == 0 else rules[kind](node) for node in range(size)]


def lay_out(
    rng: Rng, shapes: Sequence[str], vocab: int = VOCAB, n_spare: int = 0, batch: int | None = None
) -> Layout:
    """Rows of one tree per request, then `n_spare` rows of no request, as a buffer's tail is.

    The shapes are repeated over a `batch`.
    """
    names = cycle(shapes, len(shapes) if batch is None else batch, "str").tolist()
    trees = [_linked(tree_parents(rng, name), rng, vocab) for name in names]
    spare = np.tile(np.array([[-1], [0], [-1], [-1], [-1], [0], [0], [0], [0]]), (1, n_spare))
    flat = np.concatenate([*trees, spare], axis=1).astype(np.int64)
    indptr = np.cumsum([0] + [tree.shape[1] for tree in trees]).astype(np.int32)
    bits = np.ascontiguousarray(flat[5:].T).astype(np.uint32)
    tokens, depths, parents, first, following = (line.copy() for line in flat[:5])
    return Layout(indptr, tokens, depths, parents, first, following, bits)


def _linked(parents: list[int], rng: Rng, vocab: int) -> Array:
    """Tokens, depths, parents, links and ancestor words of one tree, one line each."""
    size = len(parents)
    base = rng.integers(0, vocab, size + 1).tolist()
    depths, first, following, last_child = [0] * size, [-1] * size, [-1] * size, [-1] * size
    bits, rank, tokens = [1] * size, [0] * (size + 1), [0] * size
    for node, parent in enumerate(parents):
        # Consecutive tokens below one parent: siblings differ while there are at most `vocab`.
        tokens[node] = (base[parent] + rank[parent]) % vocab
        rank[parent] += 1
        if parent < 0:
            continue
        depths[node], bits[node] = depths[parent] + 1, bits[parent] | 1 << node
        if first[parent] < 0:
            first[parent] = node
        else:
            following[last_child[parent]] = node
        last_child[parent] = node
    words = [[bit >> 32 * word & 0xFFFFFFFF for bit in bits] for word in range(4)]
    lines = [tokens, depths, parents, first, following, *words]
    return np.array(lines, np.int64).reshape(9, size)
