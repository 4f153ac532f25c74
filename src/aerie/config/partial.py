"""Long contexts: the target runs on over a part of its KV, and a full pass judges what it said."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.config.values import choice, read_fields, require

MOST = 1 << 20  # of any number below


@dataclass(frozen=True)
class PartialConfig:
    """Verification over a part of the KV; names as users of SpecPV know them."""

    # "lossless": the full KV judges every token; "lossy": what a part of it accepted is kept.
    specpv: str = "off"
    # Which blocks are looked at: "mass" (the attention they got last) or "bounds" (min/max keys).
    specpv_select: str = "mass"
    specpv_block_size: int = 16  # positions
    n_sink_blocks: int = 2
    n_retrieval_blocks: int = 256
    n_window_blocks: int = 8
    n_spec_tokens_buf: int = 128  # tokens that may wait for the full pass
    partial_threshold: int = 4096  # mean context from which on it is considered
    full_refresh_steps: int = 32  # partial passes between two full ones, at most
    n_dense_layers: int = 2  # the first layers look at everything

    def __post_init__(self) -> None:
        read_fields(self)
        choice("partial.specpv", self.specpv, ("off", "lossless", "lossy"))
        choice("partial.specpv_select", self.specpv_select, ("mass", "bounds"))
        for name, least in _LEAST.items():
            value = getattr(self, name)
            require(least <= value <= MOST, f"partial.{name} is {value}, limit {least}..{MOST}")

    @property
    def is_on(self) -> bool:
        """Whether any round may look at a part of its KV."""
        return self.specpv != "off"

    @property
    def n_blocks(self) -> int:
        """Blocks that a partial pass looks at."""
        return self.n_sink_blocks + self.n_retrieval_blocks + self.n_window_blocks


_LEAST = {
    "specpv_block_size": 1,
    "n_sink_blocks": 0,
    "n_retrieval_blocks": 0,
    "n_window_blocks": 1,  # the last block is being written
    "n_spec_tokens_buf": 1,
    "partial_threshold": 0,
    "full_refresh_steps": 1,
    "n_dense_layers": 0,
}
