"""Fault drills: what is promised, what happened, what was lost. python -m scripts.drills runs them.

Real servers of the built-in pair under clients that know their texts: some minutes on two cores.
With Ray installed a replica is lost, too. Writes reports/drills.md and raw/drills.jsonl; exits 1
where anybody was met with silence or wrong text, or a promise broke.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aerie.bench.provenance import provenance
from scripts import ROOT
from scripts.server_under_test import (
    CLOSED,
    EVENT,
    EXACT,
    HEADERS,
    SILENT,
    TOKENS,
    UNREACHED,
    Known,
    ask,
    known_asks,
    serving,
)
from tests.e2e.server_process import Served

SEED = 20261116
N_CLIENTS, N_TOKENS = 6, 40
N_VANISHING = 1000
SOON = 5.0  # seconds in which what is promised after a fault must be seen
NEARLY_FULL = 0.8
PATIENCE = 30.0  # seconds without a byte that a client calls silence
OPTIONS = (*EXACT, "--log-level", "error")
WRONG = "another text"
# A step that fails when it is told to: imported before aerie, in the engine's process alone.
BROKEN_STEP = """
import os, sys
if "aerie.server.engine_process" in sys.orig_argv:
    from aerie.api import Engine
    step = Engine.step
    def broken(self):
        if os.path.exists(os.path.dirname(__file__) + "/now"):
            raise RuntimeError("injected into a step")
        return step(self)
    Engine.step = broken
"""
# A system that holds little for a reader, not megabytes: who does not read is felt in seconds.
SMALL_BUFFERS = """
import socket
make = socket.create_server
def small(*arguments, **options):
    made = make(*arguments, **options)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return made
socket.create_server = small
"""


@dataclass
class Drill:
    """One of them, and what came of it."""

    name: str
    promised: str
    endings: Counter[str] = field(default_factory=Counter)
    happened: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # promises
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Streams that ended in silence, or with a text that is not theirs."""
        return self.endings[SILENT] + self.endings[WRONG]

    def row(self) -> dict[str, Any]:
        """Its numbers; the page has the words."""
        ended = {"endings": self.endings, "broken": self.broken, "lost": self.lost}
        return {"drill": self.name, **ended, "seconds": self.seconds}

    def require(self, is_kept: bool, words: str) -> None:
        """Note what happened, and whether it was promised."""
        (self.happened if is_kept else self.broken).append(words)

    def take(self, known: Known, port: int) -> str:
        """One stream, compared with what it must be."""
        ending = ask(port, known.body, PATIENCE)
        kind = WRONG if ending.kind == TOKENS and ending.text != known.text else ending.kind
        self.endings[kind] += 1
        return kind


@contextmanager
def load(drill: Drill, port: int, asks: Sequence[Known], lasts: bool = True) -> Iterator[None]:
    """Clients that stream in turns until the block ends; `lasts` False: one stream each."""
    is_over = threading.Event()

    def visit(known: Known) -> None:
        while True:
            if drill.take(known, port) in (UNREACHED, "status 503"):
                time.sleep(0.5)  # as Retry-After asks, or nearly
            if is_over.is_set() or not lasts:
                return

    with ThreadPoolExecutor(len(asks)) as pool:
        clients = [pool.submit(visit, known) for known in asks]
        try:
            time.sleep(1.0)  # everybody is being served
            yield
        finally:
            is_over.set()
    for client in clients:
        client.result()


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    until = time.monotonic() + seconds
    while not (is_so := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return is_so


def _runs(pid: int) -> bool:
    """Whether a process is there; one that ended and whose parent has not asked yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def serving_patched(source: str, *options: str) -> Iterator[tuple[Served, Path]]:
    """A server whose interpreters run some code when they start, and the folder of that code."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(source)
        path = os.pathsep.join((folder, str(ROOT / "src")))
        with serving(*options, PYTHONPATH=path) as server:
            yield server, Path(folder)


def whole_again(drill: Drill, server: Served, asks: Sequence[Known]) -> None:
    """After it all: nothing runs, nothing is held, texts are right."""
    server.wait_for_nobody(60.0)
    drill.require(server.metric("aerie_kv_cache_usage_perc") == 0, "KV memory is free again")
    kinds = {drill.take(known, server.port) for known in asks[:2]}
    drill.require(kinds == {TOKENS}, "the next texts are right")


def clients_vanish(drill: Drill, asks: Sequence[Known]) -> None:
    rng = random.Random(SEED)
    waits = [rng.choice([0.0, 0.0, 0.01, 0.05, 0.2]) for _ in range(N_VANISHING)]

    def vanish(server: Served, seconds: float) -> None:
        connection = server.connect()
        body = {**asks[0].body, "max_tokens": 2000, "stream": rng.random() < 0.7}
        connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
        time.sleep(seconds)
        if rng.random() < 0.5:  # reset, not closed
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with serving(*OPTIONS) as server:
        with load(drill, server.port, asks[:2]), ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda wait: vanish(server, wait), waits))
        drill.happened.append(f"{N_VANISHING:,} clients left")
        whole_again(drill, server, asks)


def killed(whom: str) -> Callable[[Drill, Sequence[Known]], None]:
    """kill -9 under load, then a restart on the same port, the load going on."""

    def run(drill: Drill, asks: Sequence[Known]) -> None:
        with serving(*OPTIONS) as first:
            port, engine = first.port, first.engine_pid
            with load(drill, port, asks):
                os.kill(engine if whom == "engine" else first.process.pid, signal.SIGKILL)
                status, began = first.process.wait(30), time.monotonic()
                if whom == "engine":
                    drill.require(status == 2, f"the server ended with status {status}")
                with serving(*OPTIONS, "--port", str(port)) as second:
                    drill.happened.append(f"served again {time.monotonic() - began:.1f} s later")
                    drill.require(_within(SOON, lambda: not _runs(engine)), "no engine is left")
                    time.sleep(2.0)
                    drill.require(second.call("GET", "/health").status == 200, "healthy under load")
                    whole_again_later = second.metric("aerie_generation_tokens_total")
                    drill.require(whole_again_later > 0, "clients that ask again are served")
        must = EVENT if whom == "engine" else CLOSED
        drill.require(drill.endings[must] > 0, f"those who were served saw {must}")

    return run


def poisoned(drill: Drill, asks: Sequence[Known]) -> None:
    poison: list[Any] = [
        {"prompt": "a", "logit_bias": {str(token): -100 for token in range(1024)}, "seed": 1 << 63},
        {"prompt": [5, 10**9]},
        {"prompt": "a", "logit_bias": {"5": 1e39}},
        {"prompt": "a", "repetition_penalty": 1e-300},
        {"prompt": "\ud800"},
        {"prompt": "a", "stop": ["x" * 5000]},
        {"prompt": "a", "max_tokens": 10**12, "n": 10**6},
        {"prompt": ["a"] * 10_000},
        {"prompt": "a " * 1_900_000},
        [[[[]]]] * 1000,
    ]
    with serving(*OPTIONS) as server:
        with load(drill, server.port, asks):
            replies = [server.call("POST", "/v1/completions", body) for body in poison]
        answers = Counter(reply.status for reply in replies)
        drill.require(set(answers) <= {400, 413}, f"statuses {_listed(answers)}")
        drill.require(answers[400] > 5, "refused by name")
        whole_again(drill, server, asks)
    drill.require(set(drill.endings) == {TOKENS}, "bystanders noticed nothing")


def kv_exhausted(drill: Drill, asks: Sequence[Known]) -> None:
    # 12 pages of 16 positions, and every stream may take five of them.
    with serving(*OPTIONS, "--n-pages", "13", "--max-batch", "8") as server:
        with load(drill, server.port, [*asks, *asks], lasts=False):
            is_full = _within(
                SOON, lambda: server.metric("aerie_kv_cache_usage_perc") > NEARLY_FULL
            )
        n_given_back = server.metric("aerie_num_preemptions_total")
        drill.require(is_full, f"more than {NEARLY_FULL:.0%} of KV memory was in use")
        drill.require(n_given_back > 0, f"{n_given_back:.0f} samples gave theirs back for a while")
        reply = server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5000})
        code = reply.body["error"]["code"]
        is_named = (reply.status, code) == (400, "context_length_exceeded")
        drill.require(is_named, "what never fits is 400")
        whole_again(drill, server, asks)
    drill.require(set(drill.endings) == {TOKENS}, "all texts are whole")


def slow_readers(drill: Drill, asks: Sequence[Known]) -> None:
    body = {**asks[0].body, "max_tokens": 4000, "logprobs": 20, "stream": True}
    sent = json.dumps({**body, "show_rounds": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n"
    options = (*EXACT, "--log-level", "warning", "--request-seconds", "2")
    readers = [socket.socket() for _ in range(3)]
    with serving_patched(SMALL_BUFFERS, *options) as (server, _):
        with load(drill, server.port, asks[:2]):
            for reader in readers:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
                reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
                reader.settimeout(PATIENCE)
                reader.connect(("127.0.0.1", server.port))
                reader.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + sent)
            until = time.monotonic() + 60
            while server.log.count("cut off") < 3 and time.monotonic() < until:
                time.sleep(0.2)
        n_cut = server.log.count("cut off")
        drill.require(n_cut == 3, f"{n_cut} of 3 were cut off")
        for reader in readers:
            drill.endings[_drained(reader)] += 1
            reader.close()
        whole_again(drill, server, asks)


def _drained(reader: socket.socket) -> str:
    """What a client finds that begins to read much too late."""
    until = time.monotonic() + PATIENCE
    try:
        while reader.recv(1 << 16):
            if time.monotonic() > until:
                return "a stream that goes on"
    except TimeoutError:
        return SILENT
    except OSError:
        pass  # reset
    return CLOSED


def terminated(drill: Drill, asks: Sequence[Known]) -> None:
    with serving(*OPTIONS) as server:
        with load(drill, server.port, [*asks, *asks], lasts=False):
            server.process.terminate()
            time.sleep(0.1)
            late = ask(server.port, asks[0].body, PATIENCE).kind
            drill.require(late == "status 503", f"who comes late gets {late}")
        status = server.process.wait(30)
        is_clean = status in (0, -signal.SIGTERM)
        drill.require(is_clean, f"the server ended with status {status}, by the signal itself")
    drill.require(set(drill.endings) == {TOKENS}, "what ran was finished")


def broken_step(drill: Drill, asks: Sequence[Known]) -> None:
    with serving_patched(BROKEN_STEP, *OPTIONS) as (server, folder):
        with load(drill, server.port, asks, lasts=False):
            (folder / "now").touch()
        health = server.call("GET", "/health")
        is_said = health.status == 503 and "injected into a step" in health.body.get("reason", "")
        drill.require(is_said, "/health says 503 and why")
        drill.require(server.process.wait(30) == 2, "the server ended with status 2")
        drill.require("Traceback" in server.log, "its log has the traceback")
    drill.require(drill.endings[EVENT] > 0, "those who were served saw an error event")


def replica_lost(drill: Drill, asks: Sequence[Known]) -> None:
    """Two on one machine; one is killed three times, and Ray replaces it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(*OPTIONS, "--replicas", "2", "--port", str(port)) as server:
        for turn in range(3):
            until = time.monotonic() + 60
            while len(_answering(server)) < 2 and time.monotonic() < until:
                time.sleep(0.5)
            # So many that both replicas stream, whoever the router prefers.
            with load(drill, port, [*asks, *asks, *asks], lasts=False):
                victim = replicas(server)[0]
                os.kill(victim, signal.SIGKILL)
                began = time.monotonic()
                kind = drill.take(asks[0], port)
                seconds = time.monotonic() - began
                is_soon = kind == TOKENS and seconds < 5
                drill.require(
                    is_soon, f"loss {turn + 1}: a new request had {kind} {seconds:.1f} s later"
                )
        said = server.log
    drill.require(
        drill.endings[EVENT] > 0, "streams of the lost replicas ended with an error event"
    )
    drill.require(set(drill.endings) <= {TOKENS, EVENT}, "no stream ended otherwise")
    kept = [line for line in said.splitlines() if "Adding" in line]
    (ROOT / "reports/interop/ray-replicas.txt").write_text(_transcript(drill, kept))


def replicas(server: Served) -> list[int]:
    """Processes of Ray's replicas that this server has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_one = (folder / "cmdline").read_bytes().startswith(b"ray::ServeReplica")
        except OSError:
            continue
        if is_one and server.process.pid in _ancestors(int(folder.name)):
            found.append(int(folder.name))
    return found


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def _answering(server: Served) -> set[str]:
    """Replicas that answer, by how long theirs took to load: requests meet now one, now another."""
    pages = (server.call("GET", "/metrics").body for _ in range(16))
    return {re.findall(r'aerie_load_seconds{phase="building"} (.*)', page)[0] for page in pages}


def _transcript(drill: Drill, said: Sequence[str]) -> str:
    plain = [re.sub(r"\x1b\[[0-9;]*m|\b\d+\.\d+\.\d+\.\d+\b", "", line)[:200] for line in said]
    head = f"ray {metadata.version('ray')}: aerie serve --replicas 2, by scripts/drills.sh"
    return "\n".join([head, _listed(drill.endings), *drill.happened, *drill.broken, *plain, ""])


DRILLS: dict[str, tuple[str, Callable[[Drill, Sequence[Known]], None]]] = {
    "1,000 clients vanish": ("they are cancelled; nobody else notices", clients_vanish),
    "kill -9 of the engine": (
        "an error event for each stream, status 2; whoever starts it again is served",
        killed("engine"),
    ),
    "kill -9 of the server": (
        "connections close, no engine stays behind; whoever starts it again is served",
        killed("server"),
    ),
    "poisoned requests": ("each fails alone, by name", poisoned),
    "KV memory exhausted": ("requests wait or give memory back; texts are the same", kv_exhausted),
    "readers that do not read": ("they are cut off; nobody else notices", slow_readers),
    "SIGTERM under load": ("what runs is finished, what comes late is told so", terminated),
    "a replica lost, three times": (
        "its streams end with their tokens or an error event; new requests succeed within 5 s",
        replica_lost,
    ),
    "an exception in a step": ("everybody is told, /health says why, status 2", broken_step),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="drills that hold this text; writes no page")
    only = parser.parse_args().only
    made, asks = provenance("cpu"), known_asks(N_CLIENTS, N_TOKENS, SEED)
    drills = []
    for name, (promised, run) in DRILLS.items():
        if only is not None and only not in name:
            continue
        if run is replica_lost and find_spec("ray") is None:
            print(f"{name}: not run, for ray is not installed", flush=True)
            continue
        drill, began = Drill(name, promised), time.monotonic()
        run(drill, asks)
        drill.seconds = round(time.monotonic() - began, 1)
        print(f"{name}: {_listed(drill.endings)}; broken: {drill.broken}", flush=True)
        drills.append(drill)
    if only is None:
        rows = [json.dumps({"made": made})]
        rows += [json.dumps(drill.row()) for drill in drills]
        (ROOT / "reports/raw/drills.jsonl").write_text("\n".join(rows) + "\n")
        (ROOT / "reports/drills.md").write_text(_page(made, drills))
    if not drills:
        raise SystemExit(f"no drill was run: there are {', '.join(DRILLS)}")
    if any(drill.lost or drill.broken for drill in drills):
        broken = [words for drill in drills for words in drill.broken]
        raise SystemExit(f"a promise was broken: {'; '.join(broken) or 'streams were lost'}")


def _page(made: dict[str, Any], drills: Sequence[Drill]) -> str:
    rows = [
        f"| {drill.name} | {drill.promised} | {_listed(drill.endings)}; "
        f"{'; '.join(drill.happened)} | {'; '.join(drill.broken) or 'none'} | {drill.lost} |"
        for drill in drills
    ]
    refused = (UNREACHED, "status 503")
    tried = sum(drill.endings.total() for drill in drills)
    n_refused = sum(drill.endings[kind] for drill in drills for kind in refused)
    lost, seconds = sum(drill.lost for drill in drills), sum(drill.seconds for drill in drills)
    words = (
        f"Real `aerie serve` processes with the built-in pair, {N_CLIENTS} clients that know the "
        f"text they must get. {tried - n_refused:,} streams, {lost} of them lost, and "
        f"{n_refused:,} attempts that met no server or a 503 while one started; {seconds:.0f} s. "
        f"A stream is lost that ends in silence ({PATIENCE:.0f} s without a byte) or with "
        "another text; a closed connection and an error event are endings that a client sees. "
        "Clients that vanish are not counted as streams, bystanders are.\n\n"
        "Two faults are injected: the step that fails, and socket buffers of 8 KiB for the readers "
        "that do not read (a system's own hold some 4 MB, which takes minutes to fill here). A "
        "server that is sent SIGTERM may end with status 0 or by that signal."
    )
    head = "| drill | promised | how streams ended; what else | promises broken | lost |"
    table = "\n".join([head, "|---|---|---|---|---:|", *rows])
    origin_line = (
        f"aerie {made['aerie']}, commit {made['commit']}, {made['date']}, {made['device']}"
    )
    how = f"Written by `scripts/drills.sh` ({origin_line})."
    return f"# Fault drills\n\n{how}\n\n{words}\n\n{table}\n"


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items(), key=str))


if __name__ == "__main__":
    main()
