"""Chats rendered in a process of its own: a template that loops or grows is ended there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence

from aerie.server.problems import RETRY_LATER, ApiError
from aerie.text.chat import ChatTemplate
from aerie.text.render_process import HEAD_BYTES, OK, frame

LOG = logging.getLogger("aerie.server")
START_SECONDS = 60
MOST_BYTES = 512 * 1024 * 1024  # of memory; a conversation of 4 MB takes a fifth of it


class Renderer:
    """One process, one chat at a time; it is started by the first chat and after each bad end."""

    def __init__(self, seconds: float) -> None:
        self.trouble: str | None = None  # how the last chat ended, if it did not end by itself
        self._seconds = seconds
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        reasoning_effort: str | None = None,
    ) -> str:
        """The prompt of a conversation; a client that leaves before its turn costs nothing."""
        asked = {
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "reasoning_effort": reasoning_effort,
        }
        try:
            async with asyncio.timeout(self._seconds):
                await self._turn.acquire()
        except TimeoutError:
            message = "the chats before this one take too long: retry later"
            raise ApiError(503, message, headers=RETRY_LATER) from None
        # Once begun it goes on to its end, or the next chat would read its answer.
        task = asyncio.create_task(self._exchange(template, asked))
        task.add_done_callback(self._next)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    def _next(self, done: asyncio.Task[str]) -> None:
        self._turn.release()
        if not done.cancelled():
            done.exception()  # its client may be gone, and has it otherwise

    async def _exchange(self, template: ChatTemplate, asked: Mapping[str, object]) -> str:
        try:
            async with asyncio.timeout(START_SECONDS):
                process = self._process = self._process or await self._start(template)
            async with asyncio.timeout(self._seconds):
                answer = await _ask(process, asked)
        except TimeoutError:
            raise await self._ended("takes too long") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self._ended("takes too much memory or time") from None
        except RecursionError:
            raise ApiError(400, "messages: nested too deeply", "messages") from None
        except OSError as error:  # no process can be started: texts are still completed
            LOG.error("chats cannot be rendered: %s", error)
            message = "chats cannot be rendered now: retry later"
            raise ApiError(503, message, headers=RETRY_LATER) from None
        self.trouble = None
        text = answer[1:].decode()
        if answer[:1] != OK:
            raise ApiError(400, text, "tools" if text.startswith("tools[") else "messages")
        return text

    async def _start(self, template: ChatTemplate) -> Process:
        """The process, with its templates; what guards this server is not told to it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AERIE_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "aerie.text.render_process"),
            env={**kept, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C is for the server, which lets chats finish
        )
        told = {
            "sources": dict(template.sources),
            "tokens": dict(template.tokens),
            "origin": template.origin,
            "seconds": math.ceil(self._seconds),
            "bytes": MOST_BYTES,
        }
        try:
            await _ask(process, told)
        except BaseException:
            await _end(process)
            raise
        return process

    async def _ended(self, how: str) -> ApiError:
        await self.close()
        self.trouble = f"the last chat was ended: its template {how}"
        LOG.warning("a chat was ended: the template %s", how)
        return ApiError(400, f"the chat template {how} on these messages", "messages")


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _ask(process: Process, asked: object) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(frame(json.dumps(asked).encode()))
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(HEAD_BYTES), "big")
    return await process.stdout.readexactly(size)
