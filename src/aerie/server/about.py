"""What is served, for the page: the model, how it computes, how it drafts, and why."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import aerie
from aerie.server.rounds import CAPTURED
from aerie.server.service import Service


def add_about(app: FastAPI, service: Service) -> None:
    """GET /about."""

    @app.get("/about")
    async def about() -> dict[str, Any]:
        """The model, its numbers, its policy, and why that drafted as it did last."""
        core = service.worker.ready().engine.core
        speculation, weights = core.config.speculation, core.parts.target.embedding
        is_captured = core.rounds is not None
        is_off = speculation.method == "none"
        limits = speculation.limits
        return {
            "version": aerie.__version__,
            "model": service.settings.name,
            "device": str(weights.device),
            "dtype": str(weights.dtype).removeprefix("torch."),
            "numerics": core.config.model.numerics,
            "engine": "graphs" if is_captured else "eager",
            "context": core.limits.context,
            "method": speculation.method,
            "policy": "off" if is_off else speculation.chosen_policy,
            "tree": {"top_k": limits.top_k, "depth": limits.depth, "nodes": limits.nodes},
            "why_no_rounds": CAPTURED if is_captured else None,
            # Why the last round drafted, or did not.
            "reason": getattr(core.parts.policy, "reason", None),
        }
