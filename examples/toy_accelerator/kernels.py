"""K3 and K13 on the chip: what a backend supplies, and what its memory does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.card import Limit
from aerie.kernels.formula import Formula
from aerie.kernels.implementation import Implementation
from aerie.kernels.registry import BackendInfo
from toy_accelerator.chip import Chip

CHIP = Chip()

# Read by `--backend toy_accelerator:BACKEND`. Kernels that are not in KERNELS come from the base.
BACKEND = BackendInfo(
    name="toy",
    module="toy_accelerator",
    base="reference",
    needs=("numpy",),
    devices=("cpu",),
    summary="two kernels on a made-up chip, overlay on reference",
)

# Where the chip holds less than the card asks for: refused before anything runs, never computed
# elsewhere instead.
LIMITS: Mapping[str, tuple[Limit, ...]] = {
    "calculate_work_deltas": (Limit(Formula("B*C"), Formula("8192"), "scores the chip holds"),),
    "build_active_slots": (Limit(Formula("S"), Formula("512"), "slots the chip holds"),),
}


def calculate_work_deltas(
    *, work_scores: NDArray[np.float32], node_top_k: int, verify_num: int
) -> dict[str, Any]:
    """K3. The card asks for float64 sums, ascending requests, rounded once."""
    CHIP.reset()
    scores = CHIP.upload(work_scores)
    gains = CHIP.reserve(8 * (node_top_k + 1))
    CHIP.run_gains(scores, gains, work_scores.shape, (node_top_k, verify_num))
    sums = CHIP.download(gains, node_top_k + 1, np.float64)
    with np.errstate(over="ignore"):
        return {"G": (sums / max(work_scores.shape[0], 1)).astype(np.float32)}


def build_active_slots(
    *,
    finished: NDArray[np.bool_],
    seq_len: NDArray[np.int64],
    length_limit: NDArray[np.int64],
    eos_terminated: NDArray[np.bool_],
    **emptied: NDArray[Any],
) -> dict[str, Any]:
    """K13. The arrays that are written in place stay with the host: their number varies."""
    n_slots = len(finished)
    CHIP.reset()
    flags = CHIP.upload(np.concatenate((finished, eos_terminated)))
    lengths = CHIP.upload(np.concatenate((seq_len, length_limit)))
    out = CHIP.reserve(8 * n_slots + 4)
    CHIP.run_active(flags, lengths, out, n_slots)
    words = CHIP.download(out, 2 * n_slots + 1, np.int32)
    inverse = words[n_slots : 2 * n_slots]
    for name, array in emptied.items():
        array[inverse < 0] = -1 if name == "draft_tokens" else 0
    return {
        "active_slots": words[:n_slots],
        "active_inverse": inverse,
        "active_count": words[2 * n_slots :],
    }


KERNELS: Mapping[str, Implementation] = {
    "calculate_work_deltas": Implementation(calculate_work_deltas),
    "build_active_slots": Implementation(build_active_slots),
}
