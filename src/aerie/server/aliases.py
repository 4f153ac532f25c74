"""Small paths that clients of SGLang and vLLM ask for before, between and after their requests."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from aerie.server.service import Service


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
