"""The composition root of sizes: what rounds, their memory and their previews are cut to."""

from __future__ import annotations

from aerie.attention.contract import Reach
from aerie.config import MAX_VERIFY, EngineConfig, SpeculationConfig
from aerie.engine.graphs import smallest
from aerie.engine.near_kv import MOST_SEATS
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eight_bits import EightBitLinear, code_bytes
from aerie.speculation.ngram import n_copied
from aerie.speculation.policy import TreeShape
from aerie.speculation.preview import PreviewRule

HISTORY = 1024  # positions kept at most while nothing is drafted: features are large


def hot_bytes(config: EngineConfig, head: Eagle3Head) -> int:
    """What that adds to the memory: rows that are shared, and those of every seat."""
    speculation = config.speculation
    if not speculation.hot_vocabulary:
        return 0
    n_rows = speculation.hot_vocabulary + n_seats_of(config) * speculation.hot_prompt_ids
    width = head.embedding.shape[1]
    has_codes = isinstance(head.output, EightBitLinear)
    codes = code_bytes(speculation.hot_vocabulary, width) if has_codes else 0
    return n_rows * width * head.embedding.dtype.itemsize + codes


def n_seats_of(config: EngineConfig) -> int:
    """As many requests as may decode together; captured rounds have a few sizes."""
    n_seats = config.scheduler.max_batch
    return smallest(config.graphs.slots, n_seats) if config.engine == "graphs" else n_seats


def history_of(reach: Reach) -> int:
    """Positions of features kept for a head that so much matters to."""
    return min(reach.window or HISTORY, HISTORY)


def tree_shape(config: SpeculationConfig) -> TreeShape:
    """The largest tree a configuration allows; plain decoding verifies the root alone."""
    limits = config.limits
    return TreeShape(limits.top_k, limits.depth, 1 if config.method == "none" else limits.nodes)


def n_nodes_of(config: SpeculationConfig) -> int:
    """Nodes stored for a request: what the head proposes, and paths copied from the text."""
    shape = tree_shape(config)
    own = shape.capacity if "eagle3" in config.method else 1
    return own + (n_copied(shape.depth) if "ngram" in config.method else 0)


def scratch_of(config: EngineConfig) -> int:
    """Positions a round may use behind a text: what the draft feeds, or the rows verified.

    A captured round drafts behind what it has just committed.
    """
    speculation = config.speculation
    fed = tree_shape(speculation).fed if "eagle3" in speculation.method else 0
    ahead = speculation.limits.depth + 1 if config.engine == "graphs" else 0
    return max(fed + ahead, speculation.limits.nodes) + longest_run(config)


def longest_run(config: EngineConfig) -> int:
    """Tokens that previews may leave for the full pass: those that its rows have room for."""
    if not config.partial.is_on:
        return 0
    limits = config.speculation.limits
    room = min(config.partial.n_spec_tokens_buf, MAX_VERIFY - limits.nodes)
    return room // (limits.depth + 1) * (limits.depth + 1)


def preview_rule(config: EngineConfig) -> PreviewRule | None:
    """When rounds look at a part of their KV first; None: never."""
    own = config.partial
    if not own.is_on:
        return None
    run, n_near = longest_run(config), own.n_blocks * own.specpv_block_size
    return PreviewRule(own.partial_threshold, n_near, run, own.full_refresh_steps)


def n_previewed(config: EngineConfig) -> int:
    """Requests that are previewed together at most."""
    n_seats = min(config.scheduler.max_batch, MOST_SEATS)
    return smallest(config.graphs.slots, n_seats) if config.engine == "graphs" else n_seats


def near_width(config: EngineConfig) -> int:
    """Positions that are kept apart for each of them: chosen blocks, and a round's behind them."""
    own = config.partial
    return own.n_blocks * own.specpv_block_size + scratch_of(config) + 1


def n_slots_of(config: EngineConfig) -> int:
    """Positions of the KV memory."""
    return config.cache.n_pages * config.cache.page_size
