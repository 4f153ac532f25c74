"""64 streams at a time, none lost or mixed: python -m scripts.soak_server [SECONDS [CLIENTS]].

Every stream's text is compared with what an engine of its own decodes. Writes
reports/raw/server_soak.log.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from aerie.bench.provenance import provenance
from scripts import ROOT
from scripts.server_under_test import EXACT, Known, known_asks, serving, verdict
from tests.e2e.server_process import Served

SEED = 20261116
N_TOKENS = 64
TELL_SECONDS = 60.0


def visit(server: Served, known: Known, until: float) -> Counter[str]:
    """The same stream again and again."""
    seen = Counter[str]()
    while time.monotonic() < until:
        seen[verdict(server, known)] += 1
    return seen


def main() -> None:
    """A line a minute, then the verdict."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    n_clients = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    lines = [f"provenance: {provenance('cpu')}"]
    lines.append(f"seed {SEED}, {n_clients} streams, {seconds:.0f} s")
    asks = known_asks(n_clients, N_TOKENS, SEED)
    seen = [Counter[str]() for _ in asks]
    options = (*EXACT, "--max-batch", str(n_clients), "--log-level", "warning")
    with serving(*options) as server, ThreadPoolExecutor(n_clients) as pool:
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            until = time.monotonic() + min(left, TELL_SECONDS)
            clients = [pool.submit(visit, server, known, until) for known in asks]
            seen = [own + client.result() for own, client in zip(seen, clients, strict=True)]
            lines.append(
                f"{time.monotonic() - began:.0f} s: {dict(sum(seen, Counter[str]()))}, "
                f"{server.metric('aerie_generation_tokens_total'):.0f} tokens, "
                f"{server.resident():.1f} MB resident"
            )
            print(lines[-1], flush=True)
        server.wait_for_nobody()
        counts = sum(seen, Counter[str]())
        least = min(own["equal"] for own in seen)
        is_well = set(counts) == {"equal"} and server.call("GET", "/health").status == 200
        found = {"ok": is_well, "least_of_a_stream": least, **counts}
        said = server.log.splitlines()[1:4]
    lines += [json.dumps(found), f"server's log: {said}"]
    (ROOT / "reports/raw/server_soak.log").write_text("\n".join(lines) + "\n")
    print(lines[-2])
    if not is_well:
        raise SystemExit("streams were lost or mixed")


if __name__ == "__main__":
    main()
