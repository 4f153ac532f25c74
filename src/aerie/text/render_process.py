"""The process that renders chats: a template is a program, and this one can be ended.

It reads frames (a length, then JSON) from standard input: the templates first, then a conversation
at a time. It answers each with a frame of its own: OK and the prompt, or BAD and the reason.
Memory and processor time are limited; the server limits the time that passes.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any, BinaryIO

from aerie.errors import AerieError
from aerie.text.chat import ChatTemplate, compile_chat_template

HEAD_BYTES = 8  # of a frame: its length, big-endian
OK, BAD = b"+", b"-"


def frame(body: bytes) -> bytes:
    """A length and what follows it."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def main() -> None:
    """Serve until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    told: Any = _read(source)
    if told is None:
        return
    most = int(told["bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    template = compile_chat_template(told["sources"], told["tokens"], told["origin"])
    _write(sink, OK)
    while (asked := _read(source)) is not None:
        _allow(int(told["seconds"]))
        _write(sink, _render(template, asked))


def _allow(seconds: int) -> None:
    """So much more time of a processor: a loop ends even if the server is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soon = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soon, resource.RLIM_INFINITY))


def _render(template: ChatTemplate, asked: dict[str, object]) -> bytes:
    try:
        return OK + template.render(**asked).encode()  # type: ignore[arg-type]
    except UnicodeEncodeError:
        return BAD + b"the chat template writes half of a UTF-16 pair, which is no character"
    except AerieError as error:
        return BAD + str(error).encode(errors="replace")


def _write(sink: BinaryIO, answer: bytes) -> None:
    sink.write(frame(answer))
    sink.flush()


def _read(source: BinaryIO) -> dict[str, object] | None:
    head = source.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    found = json.loads(source.read(int.from_bytes(head, "big")))
    assert isinstance(found, dict)
    return found


if __name__ == "__main__":
    main()
