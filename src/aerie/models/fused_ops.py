"""Layer operations fused for a GPU, as the table `LoadOptions.ops` takes."""

from __future__ import annotations

import importlib

from torch import Tensor

from aerie.models import routing
from aerie.models.layer_ops import LayerOps
from aerie.models.routing import Routing


def fused_ops() -> LayerOps:
    """One launch per operation; needs triton, and a GPU unless Triton interprets."""
    # Late: a machine without a GPU may have no triton.
    fused = importlib.import_module("aerie.kernels.triton_gpu.fused")
    routed = importlib.import_module("aerie.kernels.triton_gpu.routing")

    def route(logits: Tensor, n_active: int) -> Routing:
        if logits.shape[0] > routed.MOST_ROWS:  # a prompt's rows: what takes long are its products
            return routing.route(logits, n_active)
        order, starts, shares = routed.route(logits, n_active)
        return Routing(order, starts, shares, n_active)

    return LayerOps(
        fused.normalise,
        fused.add_normalise,
        fused.gate,
        fused.rotate_store,
        fused.turn,
        route=route,
        mix=routed.mix,
    )
