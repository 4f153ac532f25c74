"""The live view: static files, nothing from elsewhere; open to all, for they hold no secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Response

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{prefix}/{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, path)
        elif _suffix(path) in KINDS:
            yield "/" if path == "/view.html" else path, entry


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


FILES = dict(_walk(resources.files("aerie.server") / "static", ""))  # by path


def add_view(app: FastAPI) -> None:
    """GET / and what it loads."""
    for path, file in FILES.items():
        answer = _answer(file.read_bytes(), KINDS[_suffix(file.name)])
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)


def _answer(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
