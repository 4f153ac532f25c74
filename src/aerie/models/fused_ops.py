"""Layer operations fused for a GPU, as the table `LoadOptions.ops` takes."""

from __future__ import annotations

import importlib

from aerie.models.layer_ops import LayerOps


def fused_ops() -> LayerOps:
    """One launch per operation; needs triton, and a GPU unless Triton interprets."""
    # Late: a machine without a GPU may have no triton.
    fused = importlib.import_module("aerie.kernels.triton_gpu.fused")
    return LayerOps(fused.normalise, fused.add_normalise, fused.gate, fused.rotate_store)
