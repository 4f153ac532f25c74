"""Errors in OpenAI's shape, whatever went wrong and wherever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from aerie.errors import AerieError, UsageError

LOG = logging.getLogger("aerie.server")
INVALID, SERVER = "invalid_request_error", "server_error"
# What the framework says of a path or a body in its own words.
WORDS = {
    400: "the body is not JSON that can be read",
    404: "there is no such path; GET /openapi.json lists them",
    405: "this path does not take that method",
}


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
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """The JSON that clients expect."""
        kind = INVALID if self.status < 500 else SERVER
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


class ClientStalled(Exception):
    """A client stopped reading; nobody is left to answer."""


def of_failure(failure: Exception) -> ApiError:
    """What an exception is to a client: its own fault by name, ours without detail."""
    if isinstance(failure, ApiError):
        return failure
    if isinstance(failure, UsageError):
        return ApiError(400, str(failure))
    if isinstance(failure, RequestValidationError | ValidationError):
        return _of_validation(failure)
    if isinstance(failure, HTTPException):
        message = WORDS.get(failure.status_code, str(failure.detail))
        return ApiError(failure.status_code, message, headers=failure.headers)
    return ApiError(500, "the server failed; its log has the request id and the reason")


def install(app: FastAPI, count: Callable[[int], None]) -> None:
    """Replace the framework's own error bodies; `count` is told the status of each."""

    def answer(request: Request, error: Exception) -> JSONResponse:
        found = of_failure(error)
        if isinstance(error, ClientStalled):
            return found.response()  # never sent: the answer had begun
        if found.status == 500:
            LOG.error("request %s failed", request.scope.get("aerie_request_id"), exc_info=error)
        count(found.status)
        return found.response()

    known = (ApiError, AerieError, RequestValidationError, ValidationError, HTTPException)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, answer)


def _of_validation(error: RequestValidationError | ValidationError) -> ApiError:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"{WORDS[400]}: {first.get('ctx', {}).get('error', '')}")
    name = where[0] if where else None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{name}: this server does not honour that field; leave it out", name)
    return ApiError(400, f"{'.'.join(where) or 'body'}: {first['msg']}", name)
