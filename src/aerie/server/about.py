"""What is served, for the page: the model, how it computes, how it drafts, and why."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import aerie
from aerie.server.service import Service


def add_about(app: FastAPI, service: Service) -> None:
    """GET /about."""

    @app.get("/about")
    async def about() -> dict[str, Any]:
        """The model, its numbers, its policy, and why that drafted as it did last."""
        facts = service.worker.ready()
        config, speculation = facts.config, facts.config.speculation
        is_off = speculation.method == "none"
        limits = speculation.limits
        return {
            "version": aerie.__version__,
            "model": service.settings.name,
            "device": facts.device,
            "dtype": facts.dtype,
            "ranks": config.model.tensor_parallel,
            "numerics": config.model.numerics,
            "engine": config.engine,
            "context": facts.limits.context,
            "method": speculation.method,
            "policy": "off" if is_off else speculation.chosen_policy,
            "tree": {"top_k": limits.top_k, "depth": limits.depth, "nodes": limits.nodes},
            "tool_parser": facts.dialect.name,
            "chats": "harmony" if facts.writes_harmony else "template",
            # Why the last round drafted, or did not.
            "reason": service.worker.numbers.reason,
        }
