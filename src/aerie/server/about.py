"""What is served: for the page, and for clients of SGLang and vLLM that ask in their own ways."""

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


def add_aliases(app: FastAPI, service: Service) -> None:
    """What SGLang calls the model, and how both empty the prefix cache."""
    worker, name = service.worker, service.settings.name

    @app.get("/get_model_info", include_in_schema=False)
    async def model() -> dict[str, Any]:
        """By the name it is served under; where its files are is not told."""
        worker.ready()
        return {
            "model_path": name,
            "served_model_name": name,
            "tokenizer_path": name,
            "is_generation": True,
        }

    @app.post("/flush_cache", include_in_schema=False)
    @app.post("/reset_prefix_cache", include_in_schema=False)
    async def forget() -> dict[str, str]:
        """Drop the KV of texts that have ended; requests that run keep what they hold."""
        worker.forget()
        return {"status": "forgotten"}
