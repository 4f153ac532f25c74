"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import implementations_in
from aerie.kernels.numpy_cpu import (
    growth,
    layout,
    near_ties,
    partial_kv,
    round_choice,
    round_draft,
    round_rows,
    round_text,
    round_verdict,
    sampling,
    scores,
)

# The operations of an engine's round. Those that are called rarely, or are as quick as they are
# defined, come from the base.
KERNELS = implementations_in(
    growth, layout, near_ties, partial_kv, round_choice,
    round_draft, round_rows, round_text, round_verdict, sampling, scores,
)  # fmt: skip
