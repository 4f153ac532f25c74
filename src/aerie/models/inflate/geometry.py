"""Production geometries: the sizes a small pair is embedded into, built in or from a JSON file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.errors import UnknownNameError
from aerie.models.fields import Fields, read_fields


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of an attention block and its feed-forward."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_width: int


@dataclass(frozen=True)
class ProductionGeometry:
    """A target and its draft head. The head is as wide as the target, as production heads are."""

    n_layers: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    target: BlockSizes
    draft: BlockSizes
    tap_boundaries: tuple[int, ...] | None = None  # None: 2, N//2, N-3 where the pair allows it


_EIGHT_BILLION = BlockSizes(n_heads=32, n_kv_heads=8, head_dim=128, mlp_width=14336)

GEOMETRIES = {
    "llama-3.1-8b": ProductionGeometry(
        n_layers=32,
        hidden_size=4096,
        vocab_size=128256,
        draft_vocab_size=32000,
        target=_EIGHT_BILLION,
        draft=_EIGHT_BILLION,
    )
}

_BLOCK = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
_MODEL = ("num_hidden_layers", "hidden_size", "vocab_size", "draft_vocab_size")
_TAPS = "tap_boundaries"


def find_geometry(name: str) -> ProductionGeometry:
    """A built-in geometry by its name, or one read from a file whose name ends in .json."""
    if name.endswith(".json"):
        return _parse_production_geometry(read_fields(Path(name)))
    if name not in GEOMETRIES:
        raise UnknownNameError("geometry", name, [*GEOMETRIES, "FILE.json"])
    return GEOMETRIES[name]


def _parse_production_geometry(config: Fields) -> ProductionGeometry:
    """Sizes in config.json's words; a `draft` object may give the head's own block.

    `tap_boundaries` (a list) asks for captured states at those boundaries. Unknown fields are
    errors: a typing mistake must not become another geometry.
    """
    draft = config.section("draft")
    _refuse_unknown(config, (*_MODEL, *_BLOCK, "draft", _TAPS))
    _refuse_unknown(draft, _BLOCK)
    target = _read_block(config, config)
    geometry = ProductionGeometry(
        n_layers=config.integer("num_hidden_layers", high=4096),
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        draft_vocab_size=config.integer("draft_vocab_size"),
        target=target,
        draft=_read_block(draft, config),
        tap_boundaries=config.integers(_TAPS) if config.has(_TAPS) else None,
    )
    if geometry.draft_vocab_size > geometry.vocab_size:
        config.note("draft_vocab_size", f"is more than vocab_size {geometry.vocab_size}")
    config.finish()
    return geometry


def _read_block(own: Fields, fallback: Fields) -> BlockSizes:
    sizes = []
    for name in _BLOCK:
        owner = own if own.has(name) else fallback
        sizes.append(owner.integer(name))
    block = BlockSizes(*sizes)
    if block.n_heads % block.n_kv_heads:
        own.note("num_key_value_heads", f"{block.n_heads} heads cannot share {block.n_kv_heads}")
    if block.head_dim % 2:
        own.note("head_dim", f"{block.head_dim} is odd; rotary embedding pairs dimensions")
    return block


def _refuse_unknown(config: Fields, known: tuple[str, ...]) -> None:
    for name in sorted(set(config.values) - set(known)):
        config.note(name, f"is unknown; known: {', '.join(known)}")
