"""Thousands of requests, good, bad and abandoned: python -m scripts.fuzz_server [REQUESTS [SEED]].

Nobody may be answered 500, the engine may not end, memory may not grow, and completions asked for
in between must have the tokens of an engine of their own. Writes server_fuzz.log.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aerie.bench.provenance import provenance
from scripts import ROOT
from scripts.server_under_test import EXACT, HEADERS, STARTS, Known, known_asks, serving, verdict
from tests.e2e.server_process import Served

CLIENTS = 8
PART = 1000
FIRST_LOOK, MOST_GROWTH = 2000, 1.03
# Of a hundred requests: known completions, other good ones, bad ones, and those left alone.
SHARES = {"known": 12, "good": 28, "bad": 44, "left": 16}
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e-300, 1e308),
    *("", "1", "\ud800", "a" * 5000, [], [[]], {}, {"a": 1}, [None], [1, "a"], ["a"] * 70),
    *([0] * 40_000, [-1], [4095], [4096], {"5": 1}, {"x": 1}, {"5": 1e300}, {"99999": 1}),
)
FIELDS = (
    *("prompt", "max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "ignore_eos"),
    *("stop_token_ids", "stream", "stream_options", "speculative", "show_rounds", "logprobs"),
    *("response_format", "user", "model", "echo", "suffix", "best_of", "tools", "messages"),
    *("unknown", "max_completion_tokens", "sampling_params", "text", "input_ids", "tokens"),
    *("prompt_logprobs", "top_logprobs", "min_tokens", "return_logprob", "logprob_start_len"),
)
RAW = (b"", b"{", b"null", b"[]", b'"a"', b"{}", b"\xff\xfe", b"[" * 2000, b'{"prompt": NaN}')
PATHS = ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize")
OTHER = ("/health", "/metrics", "/v1/models", "/v1/models/x", "/nothing", "/version", "/", "/../x")
FINE = {200, 400, 404, 405, 413, 429, 431}


@dataclass(frozen=True)
class Case:
    """One request; `leaves` is when its client does, in seconds."""

    kind: str
    path: str
    content: bytes
    method: str = "POST"
    headers: dict[str, str] | None = None
    leaves: float | None = None


def good_body(rng: random.Random, n_tokens: int) -> dict[str, Any]:
    """A completion that is to be answered."""
    body: dict[str, Any] = {"prompt": rng.choice(STARTS), "max_tokens": rng.randint(1, n_tokens)}
    options = {
        "n": lambda: rng.randint(1, 3),
        "temperature": lambda: rng.choice([0, 0.3, 1, 2]),
        "top_p": lambda: rng.choice([1, 0.9, 0.01]),
        "top_k": lambda: rng.choice([-1, 0, 1, 50]),
        "min_p": lambda: rng.choice([0, 0.1, 1]),
        "presence_penalty": lambda: rng.uniform(-2, 2),
        "frequency_penalty": lambda: rng.uniform(-2, 2),
        "repetition_penalty": lambda: rng.choice([0.5, 1, 1.5, 10]),
        "logit_bias": lambda: {str(rng.randrange(4096)): rng.uniform(-100, 100)},
        "seed": lambda: rng.randrange(1 << 63),
        "stop": lambda: rng.choice(["return", ["\n\n", "x"], "🙂"]),
        "stop_token_ids": lambda: [rng.randrange(4096) for _ in range(3)],
        "ignore_eos": lambda: True,
        "speculative": lambda: False,
        "stream": lambda: True,
        "logprobs": lambda: rng.choice([0, 1, 20]),
        "echo": lambda: True,
        "min_tokens": lambda: rng.randint(0, body["max_tokens"]),
        "user": lambda: "somebody",
    }
    for name in rng.sample(sorted(options), rng.randint(0, 6)):
        body[name] = options[name]()
    if rng.random() < 0.2:
        body["prompt"] = [rng.randrange(1, 4096) for _ in range(rng.randint(1, 60))]
    if body.get("stream") and rng.random() < 0.5:
        body |= {"show_rounds": True, "stream_options": {"include_usage": True}}
    return body


def good_case(rng: random.Random) -> Case:
    body = good_body(rng, 10)
    kind = rng.random()
    if kind < 0.15:
        own = {"messages": [{"role": "user", "content": rng.choice(STARTS)}]}
        del body["prompt"]
        body.pop("echo", None)
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
        return Case("good", "/v1/chat/completions", json.dumps({**body, **own}).encode())
    if kind < 0.25:
        body = {"text": rng.choice(STARTS), "sampling_params": {"max_new_tokens": 4}}
        return Case("good", "/generate", json.dumps(body).encode())
    if kind < 0.3:
        return Case("good", "/tokenize", json.dumps({"prompt": rng.choice(STARTS)}).encode())
    return Case("good", "/v1/completions", json.dumps(body).encode())


def bad_case(rng: random.Random) -> Case:
    """A good one with something wrong; by chance it may still be good."""
    kind = rng.random()
    leaves = 3.0  # if it should be good, and long
    if kind < 0.08:
        return Case("bad", rng.choice(PATHS), rng.choice(RAW), leaves=leaves)
    if kind < 0.12:
        content = rng.randbytes(rng.randint(1, 400))
        return Case("bad", rng.choice(PATHS), content, leaves=leaves)
    if kind < 0.18:
        method = rng.choice(["GET", "PUT", "DELETE", "POST", "OPTIONS", "HEAD"])
        return Case("bad", rng.choice((*OTHER, *PATHS)), b"", method, leaves=leaves)
    path, body = rng.choice(PATHS), good_body(rng, 10)
    if path == "/v1/chat/completions":
        del body["prompt"]
        parts = [{"role": "user", "content": "a"}, {"role": 5}, {}, 1, {"content": [{}]}]
        body["messages"] = rng.choices(parts, k=rng.randint(0, 3))
    elif path != "/v1/completions":
        body = {rng.choice(FIELDS): rng.choice(HOSTILE)}
    for _ in range(rng.randint(1, 3)):
        body[rng.choice(FIELDS)] = rng.choice(HOSTILE)
    content = json.dumps(body).encode()
    headers = None
    if kind < 0.3:
        content = content[: rng.randrange(len(content))]
    elif kind < 0.36:
        headers = {"content-type": rng.choice(["text/plain", "", "application/json; x"])}
    return Case("bad", path, content, headers=headers, leaves=leaves)


def left_case(rng: random.Random) -> Case:
    body = good_body(rng, 200)
    content = json.dumps(body).encode()
    return Case("left", "/v1/completions", content, leaves=rng.random() * 0.3)


def ask(server: Served, case: Case) -> str:
    """What came of it, in a word: a status, left, or cut."""
    connection = server.connect(case.leaves or 120.0)
    try:
        connection.request(case.method, case.path, case.content, case.headers or HEADERS)
        answer = connection.getresponse()
        if case.kind == "left":
            answer.readline()
            return "left"
        until = time.monotonic() + (case.leaves or 120.0)
        while answer.read1(1 << 16):
            if time.monotonic() > until:
                return "left"
        return str(answer.status)
    except TimeoutError:
        return "left"
    except (OSError, http.client.HTTPException):
        return "cut"
    finally:
        connection.close()


def one(server: Served, seed: int, index: int, known: list[Known]) -> tuple[str, str]:
    """Request `index` of a run: its kind and what came of it."""
    rng = random.Random(seed * 1_000_003 + index)
    (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
    if kind == "known":
        return kind, verdict(server, rng.choice(known))
    case = {"good": good_case, "bad": bad_case, "left": left_case}[kind](rng)
    return kind, ask(server, case)


def judge(counts: Counter[tuple[str, str]], first: float, last: float) -> dict[str, Any]:
    """The run against what it promised."""
    n_all = sum(counts.values())
    n_good = sum(n for (kind, what), n in counts.items() if what in ("equal", "200"))
    n_left = sum(n for (_, what), n in counts.items() if what == "left")
    strange = {
        f"{kind} {what}": n
        for (kind, what), n in counts.items()
        if not (what in ("equal", "left") or (what.isdigit() and int(what) in FINE))
        or (kind == "good" and what not in ("200", "429"))
    }
    shares = {"good": round(n_good / n_all, 3), "left": round(n_left / n_all, 3)}
    growth = round(last / first, 4)
    is_well = not strange and shares["good"] >= 0.3 and shares["left"] >= 0.1
    return {
        "ok": is_well and growth <= MOST_GROWTH,
        "requests": n_all,
        "shares": shares,
        "strange": strange,
        "resident_growth": growth,
    }


def main() -> None:
    n_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 20261116
    lines = [f"provenance: {provenance('cpu')}"]
    lines.append(f"request i is made by random.Random({seed} * 1_000_003 + i), i < {n_requests}")
    known = known_asks(40, 24, seed)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[int, float] = {}
    with serving(*EXACT, "--log-level", "error") as server, ThreadPoolExecutor(CLIENTS) as pool:
        for start in range(0, n_requests, PART):
            part = range(start, min(start + PART, n_requests))
            counts.update(pool.map(lambda index: one(server, seed, index, known), part))
            server.wait_for_nobody()
            sizes[part.stop] = server.resident()
            told = {" ".join(key): n for key, n in sorted(counts.items())}
            lines.append(f"{part.stop}: {sizes[part.stop]:.1f} MB resident, {told}")
            print(lines[-1], flush=True)
            if server.process.poll() is not None or server.call("GET", "/health").status != 200:
                lines.append("the engine ended")
                break
        ended = server.metric("aerie_kv_cache_usage_perc")
        said = server.log.splitlines()[3:13]
    found = judge(counts, sizes.get(FIRST_LOOK, sizes[min(sizes)]), sizes[max(sizes)])
    found["ok"] = found["ok"] and ended == 0 and max(sizes) == n_requests
    lines += [f"server's log: {said}", json.dumps({**found, "kv_in_use": ended})]
    (ROOT / "reports/raw/server_fuzz.log").write_text("\n".join(lines) + "\n")
    print(lines[-1])
    if not found["ok"]:
        raise SystemExit("the server did not hold what it promises")


if __name__ == "__main__":
    main()
