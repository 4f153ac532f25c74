"""The line between the event loop and the engine: whole messages, in order, in both directions."""

from __future__ import annotations

import contextlib
import logging
import pickle
import queue
import select
import socket
import threading
from typing import Any

LOG = logging.getLogger("aerie.server")
HEAD_BYTES = 8  # of a message: its length, big-endian
READ_BYTES = 256 * 1024  # at a time, more than a socket holds
FLUSH_SECONDS = 2.0  # that an end which closes waits for the other one to read


class LineEnded(Exception):
    """The other end is closed, or its process is gone."""


class Line:
    """One end of it; the other one is this program's own, in this process or another.

    To send never waits: a thread writes, whether or not the other end reads. What waits is
    bounded by what was taken in, for every token is told once.
    """

    def __init__(self, end: socket.socket) -> None:
        end.set_inheritable(False)  # a process that had it too would keep the line open
        self._socket = end
        self._arrived = bytearray()  # the beginning of the next message
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._unsent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="line", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """For an event loop that waits for messages."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Put it behind what waits to be written; lost, if the other end is gone."""
        self._unsent.put(message)

    def wait(self, seconds: float | None = None) -> None:
        """Until something arrives, or the line ends; so long at most."""
        self._poll.poll(None if seconds is None else 1000 * seconds)

    def receive(self) -> list[Any]:
        """The messages that have come whole, without waiting. LineEnded: there will be no more."""
        try:
            arrived = self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LineEnded from error
        if not arrived:
            raise LineEnded
        self._arrived += arrived
        found = []
        while (end := self._end_of_message()) <= len(self._arrived):
            found.append(pickle.loads(self._arrived[HEAD_BYTES:end]))
            del self._arrived[:end]
        return found

    def close(self) -> None:
        """Write what waits, then tell both ends that this was all; a second time does nothing."""
        self._unsent.put(None)
        self._thread.join(FLUSH_SECONDS)
        self._hang_up()
        self._socket.close()

    def _end_of_message(self) -> int:
        """Where the first one ends, as far as that is known."""
        return HEAD_BYTES + int.from_bytes(self._arrived[:HEAD_BYTES], "big")

    def _write(self) -> None:
        try:
            while (message := self._unsent.get()) is not None:
                body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
                self._socket.sendall(len(body).to_bytes(HEAD_BYTES, "big") + body)
        except OSError:
            pass  # `receive` says so
        except Exception:
            LOG.exception("what was to be sent cannot be")
            self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
