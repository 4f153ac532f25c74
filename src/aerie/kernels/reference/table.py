"""The reference backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import implementations_in
from aerie.kernels.reference import (
    commit,
    experts,
    growth,
    layout,
    masks,
    memory,
    near_ties,
    partial_kv,
    products,
    replay,
    round_choice,
    round_draft,
    round_rows,
    round_text,
    round_verdict,
    scores,
    verdict,
)

KERNELS = implementations_in(
    commit, experts, growth, layout, masks, memory, near_ties, partial_kv, products, replay,
    round_choice, round_draft, round_rows, round_text, round_verdict, scores, verdict,
)  # fmt: skip
