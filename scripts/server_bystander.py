"""What clients that send too much do to one that does not: python -m scripts.server_bystander.

One client streams, one asks /health; six others send a large body and hang up half a second later.
The largest pause of the first two and the server's memory go to reports/raw/server_bystander.json.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from scripts import ROOT
from scripts.server_under_test import EXACT, serving
from tests.e2e.server_process import Served

CLIENTS, HANG_UP_SECONDS = 6, 0.5
WATCH_SECONDS = 8.0  # from the first client on
WARM_SECONDS = 2.0
MOST_SECONDS = 1.0  # that a bystander may wait
MOST_MEGABYTES = 64.0  # that the server may keep afterwards
MEGABYTE = 1024 * 1024

# What they send, each close to the limit of 4 MiB unless its name says otherwise.
BODIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "nothing": ("/v1/completions", lambda: None),
    "text": ("/v1/completions", lambda: {"prompt": "a b " * 975_000, "max_tokens": 1}),
    "text of 0.9 MB": ("/v1/completions", lambda: {"prompt": "a b " * 240_000, "max_tokens": 1}),
    "blanks": ("/v1/completions", lambda: {"prompt": " " * 1_000_000, "max_tokens": 1}),
    "to tokenise": ("/tokenize", lambda: {"prompt": "a b " * 975_000}),
    "a chat": (
        "/v1/chat/completions",
        lambda: {"messages": [{"role": "user", "content": "a b " * 975_000}]},
    ),
    "many messages": (
        "/v1/chat/completions",
        lambda: {"messages": [{"role": "user", "content": "a " * 400}] * 4000},
    ),
    "ids": ("/v1/completions", lambda: {"prompt": [5] * 1_300_000}),
    "wrong ids": ("/v1/completions", lambda: {"prompt": [-1] * 1_000_000}),
    "many names": ("/v1/completions", lambda: {f"x{i}": 1 for i in range(300_000)}),
    "many biases": (
        "/v1/completions",
        lambda: {"prompt": "a", "logit_bias": {str(i): "x" for i in range(300_000)}},
    ),
}


def watch_stream(server: Served, until: float, gaps: list[float]) -> None:
    """Seconds between two chunks of one stream."""
    asked = {"prompt": "x = 1\n", "max_tokens": 30_000, "ignore_eos": True}
    with server.stream(asked) as stream:
        stream.readline()
        last = time.monotonic()
        while last < until and stream.readline():
            now = time.monotonic()
            gaps.append(now - last)
            last = now


def watch_health(server: Served, until: float, waits: list[float]) -> None:
    """Seconds that /health takes."""
    while (began := time.monotonic()) < until:
        assert server.call("GET", "/health").status == 200
        waits.append(time.monotonic() - began)
        time.sleep(0.1)


def send_and_leave(server: Served, path: str, content: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.settimeout(HANG_UP_SECONDS)
        try:
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            time.sleep(HANG_UP_SECONDS)
        except OSError:
            return  # refused while it was still sending


def measure(server: Served, name: str, seconds: float) -> dict[str, Any]:
    path, make = BODIES[name]
    made = make()
    content = None if made is None else json.dumps(made).encode()
    before = server.resident()
    gaps: list[float] = []
    waits: list[float] = []
    until = time.monotonic() + seconds
    watchers = [
        threading.Thread(target=watch_stream, args=(server, until, gaps)),
        threading.Thread(target=watch_health, args=(server, until, waits)),
    ]
    for watcher in watchers:
        watcher.start()
    while not gaps:
        time.sleep(0.01)
    most = before
    clients = [
        threading.Thread(target=send_and_leave, args=(server, path, content))
        for _ in range(CLIENTS if content is not None else 0)
    ]
    for client in clients:
        client.start()
    while time.monotonic() < until:
        most = max(most, server.resident())
        time.sleep(0.05)
    for thread in (*clients, *watchers):
        thread.join()
    server.wait_for_nobody(60.0)
    return {
        "body": name,
        "bytes": 0 if content is None else len(content),
        "largest_gap_s": round(max(gaps), 3),
        "chunks": len(gaps),
        "slowest_health_s": round(max(waits), 3),
        "resident_before_mb": round(before, 1),
        "resident_most_mb": round(most, 1),
        "resident_after_mb": round(server.resident(), 1),
    }


def main() -> None:
    rows = []
    with serving(*EXACT, "--log-level", "warning") as server:
        for name in BODIES:
            measure(server, name, WARM_SECONDS)  # what is allocated once is not a leak
        for name in BODIES:
            rows.append(measure(server, name, WATCH_SECONDS))
            print(json.dumps(rows[-1]), flush=True)
    slowest = max(max(row["largest_gap_s"], row["slowest_health_s"]) for row in rows)
    kept = rows[-1]["resident_after_mb"] - rows[0]["resident_before_mb"]
    limits = {"seconds": MOST_SECONDS, "megabytes": MOST_MEGABYTES}
    load = {"clients": CLIENTS, "hang_up_s": HANG_UP_SECONDS, "watched_s": WATCH_SECONDS}
    found = {"slowest_s": slowest, "kept_mb": round(kept, 1), "limits": limits, "load": load}
    report = {**found, "load_average": os.getloadavg()[0], "rows": rows}
    report["provenance"] = provenance("cpu")
    write_json(ROOT / "reports/raw/server_bystander.json", report)
    print(json.dumps(found))
    if slowest >= MOST_SECONDS or kept >= MOST_MEGABYTES:
        raise SystemExit("a bystander waited too long, or memory did not come back")


if __name__ == "__main__":
    main()
