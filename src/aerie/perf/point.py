"""An operating point: model sizes, batch, tree and context, and what each kernel sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.errors import UnknownNameError
from aerie.perf.device import filled


@dataclass(frozen=True)
class Sizes:
    """A draft head and the vocabulary it proposes from; `target_vocab` is the verifier's."""

    name: str
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_width: int
    draft_vocab: int
    target_vocab: int
    n_taps: int = 3


# eagle4, the drafter of the hardware design: 32 key heads make its attention 61 MB at 4 bits in
# groups of 128, and this feed-forward width its MLP 122 MB.
GEOMETRIES = {
    "eagle4": Sizes("eagle4", 4096, 32, 32, 128, 19072, 128256, 128256),
    "llama-3.1-8b": Sizes("llama-3.1-8b", 4096, 32, 8, 128, 14336, 32000, 128256),
    "built-in": Sizes("built-in", 256, 4, 1, 128, 2048, 4096, 4096),
}


def find_sizes(name: str) -> Sizes:
    """Built-in sizes by name, or a TOML file with the fields of `Sizes`."""
    if name.endswith(".toml"):
        import tomllib

        sizes: Sizes = filled(Sizes, tomllib.loads(Path(name).read_text(encoding="utf-8")), name)
        return sizes
    if name not in GEOMETRIES:
        raise UnknownNameError("geometry", name, [*GEOMETRIES, "FILE.toml"])
    return GEOMETRIES[name]


@dataclass(frozen=True)
class Tree:
    """Shape of a draft: children a node, nodes fed a level, levels, rows verified a request."""

    top_k: int = 8
    width: int = 8
    depth: int = 5
    verify: int = 32

    @property
    def nodes(self) -> int:
        """Nodes of the fullest store: the root, the first level, then width x top_k a level."""
        return 1 + self.top_k + (self.depth - 1) * self.width * self.top_k


@dataclass(frozen=True)
class Point:
    """One cell of a table."""

    sizes: Sizes
    tree: Tree
    batch: int = 1
    context: int = 1024
    accepted: int = 3  # draft tokens accepted a round, for lists whose length depends on it

    @property
    def rows(self) -> int:
        """Rows verified, all requests."""
        return self.batch * self.tree.verify

    def names(self) -> dict[str, int]:
        """Axes, scalars and counts of one call at full width, nothing refused, for K1 to K7."""
        tree, batch, rows = self.tree, self.batch, self.rows
        columns = self.context + tree.verify
        return {
            "B": batch, "W": tree.width, "K": tree.top_k, "H": self.sizes.hidden, "E": 2,
            "N": tree.nodes, "M": tree.verify, "F": tree.width * tree.depth, "R": rows,
            "V": self.sizes.target_vocab, "VD": self.sizes.draft_vocab, "P": batch, "L": columns,
            "D": tree.depth, "S": 1, "C": min(tree.verify, tree.nodes) + tree.top_k,
            "node_top_k": tree.top_k, "verify_num": tree.verify, "tree_depth": tree.depth,
            "cumu_count": tree.nodes - tree.width * tree.top_k,
            "kv_capacity": batch * columns,
            "mask_capacity": batch * ((tree.verify * columns + 7) // 8),
            # Of a call that refuses no request; every child has a parent of its own.
            "taken": batch, "parents": batch * min(tree.width, tree.top_k), "rows": rows,
            "slots": batch * columns, "rewritten": 0, "loaded": rows, "walked_rows": rows,
            "walked": batch, "live": batch, "bonus": batch, "accepted": batch * self.accepted,
        }  # fmt: skip
