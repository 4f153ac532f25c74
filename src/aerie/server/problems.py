"""Errors in OpenAI's shape, whatever went wrong and wherever."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from aerie.errors import AerieError, EngineFailedError, UsageError
from aerie.requests.params import SamplingParams
from aerie.server.logs import facts
from aerie.server.notes import note_of
from aerie.server.validation import complain

LOG = logging.getLogger("aerie.server")
INVALID, LIMIT, SERVER = "invalid_request_error", "rate_limit_error", "server_error"
RETRY_LATER = {"retry-after": "1"}
CLIENT_GONE = 499  # never sent; it is what logs and counters say
MOST_WORDS = 500  # characters of a message
# What the framework says of a path or a body in its own words.
WORDS = {
    400: "the body is not JSON that can be read",
    404: "there is no such path; GET /openapi.json lists them",
    405: "this path does not take that method",
}
PARAMS = frozenset(entry.name for entry in fields(SamplingParams))
PATH = re.compile(r"(?<![\w.])/[\w.-]+(?:/[\w.-]+)+")


class ApiError(Exception):
    """An answer that is an error; `status` is the HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """The JSON that clients expect."""
        kind = LIMIT if self.status == 429 else INVALID if self.status < 500 else SERVER
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


class ClientLeft(ApiError):
    """A client went away before it was answered."""

    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, "the client left")


class ClientStalled(Exception):
    """A client stopped reading: no answer can reach it."""


def shortened(words: str) -> str:
    """A message of bounded length: its beginning and its end, which says what to do."""
    if len(words) <= MOST_WORDS:
        return words
    return f"{words[: MOST_WORDS // 2]} … {words[-MOST_WORDS // 3 :]}"


def public_words(words: str) -> str:
    """The first line of a reason, without this machine's paths."""
    return shortened(PATH.sub("…", words.partition("\n")[0]))


def of_failure(failure: Exception) -> ApiError:
    """What an exception is to a client: its own fault by name, ours without detail."""
    if isinstance(failure, ApiError):
        return failure
    if isinstance(failure, UsageError):
        words = str(failure)
        named = words.split(maxsplit=1)[0] if words else ""
        return ApiError(400, words, named if named in PARAMS else None)
    if isinstance(failure, EngineFailedError):
        return ApiError(503, "the engine failed; see the server's log")
    if isinstance(failure, HTTPException):
        message = WORDS.get(failure.status_code, str(failure.detail))
        return ApiError(failure.status_code, message, headers=failure.headers)
    return ApiError(500, "the server failed; its log has the request id and the reason")


def install(app: FastAPI) -> None:
    """Replace the framework's own error bodies."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError | ValidationError):
            found = complain(error, request.headers.get("content-type"))
            error = ApiError(400, found.message, found.param)
        answered = of_failure(error)
        if isinstance(error, ClientStalled):
            return answered.response()  # never sent: the answer had begun
        note = note_of(request.scope)
        note.problem = str(answered)
        if answered.status == 500:
            own = facts(request_id=note.request_id)
            LOG.error("request %s failed", note.request_id, exc_info=error, extra=own)
        return answered.response()

    known = (ApiError, AerieError, RequestValidationError, ValidationError, HTTPException)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, answer)
