"""`aerie serve` with no option: what it says, one completion, and what the engine had chosen.

    python -m scripts.front_door

Exit status 1 where torch sees a GPU and anything but cuda, bfloat16, graphs and the planner was
chosen. The last line of output is JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import torch

from aerie.api import Engine

PROMPT = {"prompt": "def read_lines(path):\n", "max_tokens": 32, "temperature": 0}
WANTED = {"device": "cuda", "dtype": "bfloat16", "engine": "graphs", "policy": "planner"}
PATIENCE = 120  # seconds


def chosen() -> dict[str, Any]:
    """What `Engine.load()` has taken here, and how long that took with costs kept."""
    begin = time.perf_counter()
    engine = Engine.load()
    seconds = time.perf_counter() - begin
    config = engine.config
    found: dict[str, Any] = {
        "device": config.model.device,
        "dtype": config.model.dtype,
        "engine": config.engine,
        "backend": config.backend,
        "policy": config.speculation.policy,
        "context": engine.core.limits.context,
        "kv_tokens": (config.cache.n_pages - 1) * config.cache.page_size,
        "load_seconds": round(seconds, 2),
    }
    if config.model.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        found["gpu_memory_taken"] = round(1 - free / total, 3)
    return found


def ask(port: str) -> dict[str, Any]:
    """One completion from the server."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(PROMPT).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def is_ready(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


def serve() -> None:
    """Start it, ask it, end it; its own lines go to our output."""
    command = [sys.executable, "-m", "aerie", "serve", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert server.stderr is not None
    begin = time.monotonic()
    try:
        said = server.stderr.readline()
        print(said, end="")
        port = said.split("127.0.0.1:")[1].split("/")[0]
        while not is_ready(port):
            assert time.monotonic() < begin + PATIENCE, "the server is not ready"
            time.sleep(0.2)
        print(f"(ready after {time.monotonic() - begin:.1f} s)")
        answer = ask(port)
        print(f"$ curl .../v1/completions -d '{json.dumps(PROMPT)}'")
        print(json.dumps({"text": answer["choices"][0]["text"], "metrics": answer.get("metrics")}))
    finally:
        server.terminate()
        print(server.communicate(timeout=PATIENCE)[1], end="")


def main() -> int:
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"left out: {' and '.join(missing)} not installed here")
    else:
        serve()
    found = chosen()
    ok = not torch.cuda.is_available() or WANTED.items() <= found.items()
    print(json.dumps({"ok": ok, "left_out": missing, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
