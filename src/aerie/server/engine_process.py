"""The process of an engine: `python -m aerie.server.engine_process N`, N its end of the line."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time

from aerie.server.engine_loop import run_engine
from aerie.server.line import Line, LineEnded
from aerie.server.logs import logging_to_stderr

ORPHAN_SECONDS = 2.0  # to end by itself when the server is gone; loading may take minutes


def main() -> None:
    """Receive what is to be loaded and how much to log; load it, run it until the line ends."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the server decides when this ends
    threading.Thread(target=_end_with_server, name="orphan", daemon=True).start()
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    with contextlib.suppress(LineEnded):  # a server that changed its mind
        while not (told := line.receive()):
            line.wait()
        check, load, log = told[0]
        with logging_to_stderr(*log):
            run_engine(load, line, check)


def _end_with_server() -> None:
    """Standard input is a pipe that is never written to: it ends with the server."""
    os.read(0, 1)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
