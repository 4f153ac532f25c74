"""A contract of loads, run against any OpenAI-compatible server: fresh prompts, streamed answers.

Every client waits for an answer before it asks again. What arrives is only stamped while a load
runs, and read afterwards.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aerie.bench.contract import read_toml, strict
from aerie.bench.record import percentiles, shown
from aerie.bench.round.setup import read_prompts, tokenizer_of_pair
from aerie.bench.serve.load import Heard, Reply, ask, look_up, read_counters, read_stream
from aerie.config import require
from aerie.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
N_MESSAGES = 3  # of errors, in a row
COLUMNS = {
    "load": "{point}",
    "requests": "{load[requests]}",
    "errors": "{errors}",
    "tok/s": "{tokens_per_second:.0f}",
    "TTFT ms": "{ttft_ms}",
    "gap ms": "{gap_ms}",
    "gap a token ms": "{gap_per_token_ms}",
}


@dataclass(frozen=True)
class PromptTerms:
    """How long prompts are, by the built-in pair's tokens, and how many texts they come from."""

    tokens: int
    texts: int


@dataclass(frozen=True)
class Load:
    """So many clients at a time, until so many requests have been answered."""

    name: str
    clients: int
    requests: int
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        is_possible = 1 <= self.clients <= self.requests
        require(is_possible, f"{self.name}: {self.requests} requests of {self.clients} clients")

    @property
    def point(self) -> str:
        """What rows name it by."""
        return f"{self.name} {self.clients}"


@dataclass(frozen=True)
class PeerContract:
    """Everything a server is asked for."""

    name: str
    new_tokens: int
    prompts: PromptTerms
    first: Load
    loads: tuple[Load, ...]

    def of_turn(self, turn: int) -> tuple[Load, ...]:
        """Loads of one turn: what comes first after "ready" comes once."""
        return self.loads if turn else (self.first, *self.loads)


@dataclass(frozen=True)
class Server:
    """Where it answers, and the model it is asked for."""

    url: str
    model: str | None
    version: Any

    def named(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request with the model it has, where it names one."""
        return body if self.model is None else {"model": self.model, **body}

    def ask_all(
        self, bodies: Iterable[Mapping[str, Any]], clients: int, ask: Callable[..., T]
    ) -> tuple[list[T], float, dict[str, Any]]:
        """Answers in the order of the requests, so many of which are under way at a time.

        With the seconds that all of them took, and what the server counted of them.
        """
        before, start = self._counters(), time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            heard = list(pool.map(partial(ask, self.url), map(self.named, bodies)))
        seconds = time.perf_counter() - start
        gained = {name: n - before.get(name, 0) for name, n in self._counters().items()}
        return heard, seconds, drafted(gained)

    def _counters(self) -> dict[str, int]:
        return read_counters(look_up(self.url, "/metrics") or "")


def read_peer_contract(path: Path) -> PeerContract:
    """A contract from its file; an unknown or missing key is an error that names it."""
    values = read_toml(path)
    own = {
        "prompts": strict(PromptTerms, values.get("prompts", {})),
        "first": strict(Load, values.get("first", {})),
        "loads": tuple(strict(Load, load) for load in values.get("loads", ())),
    }
    found: PeerContract = strict(PeerContract, {**values, **own})
    return found


def find_server(url: str) -> Server:
    """What a server says about itself; the first of its models is asked for."""
    models = json.loads(look_up(url, "/v1/models") or "{}").get("data", ())
    version = json.loads(look_up(url, "/version") or "null")
    about = json.loads(look_up(url, "/about") or "{}")
    told = {name: about[name] for name in ("dtype", "numerics", "policy") if name in about}
    return Server(
        url, models[0]["id"] if models else None, {**version, **told} if told else version
    )


def write_prompts(terms: PromptTerms, n_prompts: int, turn: int) -> list[str]:
    """Held-out texts, each behind a line that no other prompt of any turn begins with."""
    tokenizer = tokenizer_of_pair()
    ids = read_prompts(min(n_prompts, terms.texts), terms.tokens, tokenizer.vocab_size)
    texts = [tokenizer.decode(own) for own in ids]
    return [f"# {turn}.{index}\n{texts[index % len(texts)]}" for index in range(n_prompts)]


def run_turn(
    server: Server, contract: PeerContract, turn: int, tell: Callable[[dict[str, Any]], None]
) -> None:
    """All loads of one turn, one after the other; `tell` gets a row after each."""
    loads = contract.of_turn(turn)
    prompts = write_prompts(contract.prompts, sum(load.requests for load in loads), turn)
    for load in loads:
        own, prompts = prompts[: load.requests], prompts[load.requests :]
        bodies = [_body(contract, load, prompt) for prompt in own]
        heard, seconds, counted = server.ask_all(bodies, load.clients, _try)
        answers = [_read(one, contract.new_tokens) for one in heard]
        tell({"group": turn, **summarise(load, answers, seconds), **counted})


def drafted(gained: Mapping[str, int]) -> dict[str, Any]:
    """How drafts went, and what was recorded meanwhile, as far as the server counts."""
    drafts = gained.get("num_drafts", 0)
    length = 1.0 + gained["num_accepted_tokens"] / drafts if drafts else None
    return {"counters": dict(gained), "acceptance_length": length}


def _body(contract: PeerContract, load: Load, prompt: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": contract.new_tokens,
        "temperature": load.temperature,
        "top_p": load.top_p,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _try(url: str, body: Mapping[str, Any]) -> Heard | str:
    """An answer, or why there is none: a failed request is counted, and the load goes on."""
    try:
        return ask(url, body)
    except (UsageError, OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__


def _read(heard: Heard | str, n_asked: int) -> Reply | str:
    """What was heard, or what is wrong with it."""
    if isinstance(heard, str):
        return heard
    try:
        reply = read_stream(heard)
    except UsageError as error:
        return str(error)
    if reply.n_tokens is None:
        return "the server does not count tokens: it must know stream_options.include_usage"
    if reply.n_tokens != n_asked:
        return f"{reply.n_tokens} tokens, asked for {n_asked}"
    return reply


def summarise(load: Load, answers: Sequence[Reply | str], seconds: float) -> dict[str, Any]:
    """The figures of one load; those of failed requests are left out, and they are counted."""
    replies = [answer for answer in answers if isinstance(answer, Reply)]
    errors = [answer for answer in answers if isinstance(answer, str)]
    n_tokens = sum(reply.n_tokens or 0 for reply in replies)
    gaps = [gap for reply in replies for gap in gaps_of(reply)]
    firsts = [1e3 * reply.first_seconds for reply in replies]
    return {
        "point": load.point,
        "load": {"clients": load.clients, "requests": load.requests},
        "sampling": {"temperature": load.temperature, "top_p": load.top_p},
        "seconds": seconds,
        "tokens": n_tokens,
        "tokens_per_second": n_tokens / seconds,
        "ttft_ms": _percentiles(firsts),
        "gap_ms": _percentiles([gap.ms for gap in gaps]),
        "gap_per_token_ms": _percentiles([gap.ms / gap.n_tokens for gap in gaps if gap.n_tokens]),
        "prompt_tokens": sum(reply.n_prompt or 0 for reply in replies),
        "errors": len(errors),
        "messages": sorted(set(errors))[:N_MESSAGES],
        "requests": [_request(reply) for reply in replies],
    }


class Gap(NamedTuple):
    """Between two arrivals, and the tokens that came with the later; None: the server is silent."""

    ms: float
    n_tokens: int | None


def gaps_of(reply: Reply) -> list[Gap]:
    """How long a reader waited for each arrival after the first."""
    return [
        Gap(1e3 * (late.seconds - early.seconds), late.n_tokens)
        for early, late in pairwise(reply.arrivals)
    ]


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    return percentiles(values) if values else None


def _request(reply: Reply) -> dict[str, Any]:
    digest = hashlib.sha256(reply.text.encode()).hexdigest()[:16]
    first_ms, ms = round(1e3 * reply.first_seconds, 3), round(1e3 * reply.seconds, 3)
    return {"ttft_ms": first_ms, "ms": ms, "tokens": reply.n_tokens, "text_sha256": digest}


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each load."""
    waits = ("ttft_ms", "gap_ms", "gap_per_token_ms")
    return shown(COLUMNS, [{**row, **{name: _shown(row[name]) for name in waits}} for row in rows])


def _shown(found: Mapping[str, float] | None) -> str:
    return "-" if found is None else f"{found['p50']:.1f}, p99 {found['p99']:.1f}"
