"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import implementations_in
from aerie.kernels.numpy_cpu import (
    commit,
    growth,
    layout,
    masks,
    memory,
    near_ties,
    partial_kv,
    round_choice,
    round_draft,
    round_rows,
    round_text,
    round_verdict,
    sampling,
    scores,
    verdict,
)

# The operations of an engine's round. Those that are called rarely, or are as quick as they are
# defined, come from the base.
KERNELS = implementations_in(
    commit, growth, layout, masks, memory, near_ties, partial_kv, round_choice,
    round_draft, round_rows, round_text, round_verdict, sampling, scores, verdict,
)  # fmt: skip
