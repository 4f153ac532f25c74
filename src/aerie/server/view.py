"""The live view: four static files, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

from fastapi import FastAPI, Response

FILES = {
    "/": ("view.html", "text/html; charset=utf-8"),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/view.css": ("view.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_view(app: FastAPI) -> None:
    """GET / and what it loads."""
    folder = resources.files("aerie.server") / "static"
    for path, (name, kind) in FILES.items():
        answer = _answer((folder / name).read_bytes(), kind)
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)


def _answer(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
