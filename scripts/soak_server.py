"""64 streams at a time, none lost or mixed: scripts/soak_server.py [SECONDS [CLIENTS]].

Every stream's text is compared with what an engine of its own decodes. Writes server_soak.log.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter

from server_asks import Known, known_asks, streamed
from server_under_test import EXACT, ROOT, Server, origin, serving

SEED = 20261116
N_TOKENS = 64
TELL_SECONDS = 60.0


def visit(server: Server, known: Known, until: float, seen: Counter[str]) -> None:
    """The same stream again and again."""
    while time.monotonic() < until:
        text = streamed(server, known)
        seen["lost" if text is None else "equal" if text == known.text else "mixed"] += 1


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    n_clients = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    lines = [f"provenance: {origin()}", f"seed {SEED}, {n_clients} streams, {seconds:.0f} s"]
    asks = known_asks(n_clients, N_TOKENS, SEED)
    seen = [Counter[str]() for _ in asks]
    with serving(*EXACT, "--max-batch", str(n_clients), "--log-level", "warning") as server:
        began = time.monotonic()
        until = began + seconds
        clients = [
            threading.Thread(target=visit, args=(server, known, until, own))
            for known, own in zip(asks, seen, strict=True)
        ]
        for client in clients:
            client.start()
        while alive := [client for client in clients if client.is_alive()]:
            alive[0].join(min(TELL_SECONDS, max(1.0, until - time.monotonic())))
            counts = sum(seen, Counter[str]())
            lines.append(
                f"{time.monotonic() - began:.0f} s: {dict(counts)}, "
                f"{server.metric('aerie_generation_tokens_total'):.0f} tokens, "
                f"{server.resident():.1f} MB resident"
            )
            print(lines[-1], flush=True)
        server.settle()
        counts = sum(seen, Counter[str]())
        least = min(own["equal"] for own in seen)
        is_well = set(counts) == {"equal"} and server.call("GET", "/health")[0] == 200
        found = {"ok": is_well, "least_of_a_stream": least, **counts}
        said = server.log.read_text()
    lines += [json.dumps(found), f"server's log: {said.splitlines()[1:4]}"]
    (ROOT / "reports" / "server_soak.log").write_text("\n".join(lines) + "\n")
    print(lines[-2])
    if not is_well:
        raise SystemExit("streams were lost or mixed")


if __name__ == "__main__":
    main()
