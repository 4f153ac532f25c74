"""Audits servers over HTTP: the same requests alone, together, again, and without speculation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aerie.bench.audit.cells import SAMPLINGS
from aerie.bench.audit.transcript import LEAST_P, compare_samples
from aerie.bench.comparison import n_shared
from aerie.bench.serve.load import ask, read_json, read_whole
from aerie.bench.serve.peer import PromptTerms, Server, find_server, write_prompts
from aerie.errors import UsageError
from aerie.text.loops import repeated_share

DRAWN_TOKENS = 2  # of a draw: the second one may be drafted, and few enough outcomes have a share
SHOWN = 32  # characters of a text behind the place where it parts
OFF = {"speculative": False}
ALONE = "alone"  # what the other steps are held against
Tell = Callable[[dict[str, Any]], None]
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Terms:
    """What servers are asked for."""

    texts: int = 8
    context: int = 256  # tokens of a prompt, by the built-in pair's tokenizer
    new_tokens: int = 64
    draws: int = 200  # of each side of the chi-square test
    clients: int = 16  # at a time, where all ask together
    seed: int = 0


QUICK = Terms(texts=4, context=64, new_tokens=24, draws=60)


@dataclass(frozen=True)
class Step:
    """All requests once: to which server, with what added to each, and how many at a time."""

    name: str
    server: Server
    clients: int
    added: Body = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ServerAudit:
    """One server, or one that speculates beside one that does not."""

    terms: Terms
    on: Server
    off: Server | None = None
    takes_switch: bool = False  # `speculative: false` in a request

    @classmethod
    def find(cls, urls: Sequence[str], terms: Terms) -> ServerAudit:
        """The servers at these addresses, and what the first of them can be asked."""
        on, *others = (find_server(url) for url in urls)
        return cls(terms, on, others[0] if others else None, takes_switch(on))

    def run(self, tell: Tell) -> dict[str, Any]:
        """Everything, a step after the other; `tell` gets each step when it is done."""
        prompts = write_prompts(
            PromptTerms(self.terms.context, self.terms.texts), self.terms.texts, self.terms.seed
        )
        steps, repeated = [], {}
        for sampling in SAMPLINGS:
            bodies = [self._body(prompt, n, sampling) for n, prompt in enumerate(prompts)]
            alone: list[str] = []
            for step in self._steps():
                row, texts = _take(step, bodies)
                if step.name == ALONE:
                    alone = texts
                else:
                    row |= self._compared(bodies, alone, texts)
                steps.append({"step": step.name, "sampling": sampling, **row})
                tell(steps[-1])
            repeated[sampling] = repeated_in(self.on, alone)
        chi_square = self._chi_square(prompts[0])
        differing = sum(step.get("differing", 0) for step in steps)
        is_same = chi_square is None or chi_square["p_value"] >= LEAST_P
        return {
            "ok": not differing and is_same,
            "differing": differing,
            "compared": sum(step.get("compared", 0) for step in steps),
            "terms": asdict(self.terms),
            "servers": [asdict(server) for server in (self.on, self.off) if server],
            "takes_speculative_false": self.takes_switch,
            "steps": steps,
            "chi_square": chi_square,
            "repeated_8_grams": repeated,
        }

    def _steps(self) -> list[Step]:
        n, on, off = self.terms.clients, self.on, self.off
        steps = [Step(ALONE, on, 1), Step("together", on, n), Step("twice", on, 1)]
        if self.takes_switch:
            steps += [Step("off", on, 1, OFF), Step("off, together", on, n, OFF)]
        if off is not None:
            steps += [Step("second server", off, 1), Step("second server, together", off, n)]
        return steps

    def _compared(
        self, bodies: Sequence[Body], alone: Sequence[str], texts: Sequence[str]
    ) -> dict[str, Any]:
        """How many differ from those asked alone, and where the first of them parts."""
        parted = [n for n, own in enumerate(texts) if own != alone[n]]
        first = None
        if parted:
            n = parted[0]
            index = n_shared(alone[n], texts[n])
            first = {
                "prompt": n,
                "character": index,
                "alone": alone[n][index : index + SHOWN],
                "here": texts[n][index : index + SHOWN],
                "logprob_gap": gap_at(self.on, bodies[n], alone[n], index),
            }
        return {"compared": len(texts), "differing": len(parted), "first_difference": first}

    def _chi_square(self, prompt: str) -> dict[str, Any] | None:
        """Draws with speculation against draws without, other seeds on each side."""
        if self.off is None and not self.takes_switch:
            return None
        asked = {"prompt": prompt, "max_tokens": DRAWN_TOKENS, **SAMPLINGS["sampled"]}
        n, clients = self.terms.draws, self.terms.clients
        without = Step("off", self.off or self.on, clients, {} if self.off else OFF)
        one, other = (
            Counter(_take(step, [{**asked, "seed": seed} for seed in seeds])[1])
            for step, seeds in (
                (Step("on", self.on, clients), range(n)),
                (without, range(n, 2 * n)),
            )
        )
        found = compare_samples(one, other)
        return {**asdict(found), "outcomes": len(one | other), "least_p": LEAST_P}

    def _body(self, prompt: str, number: int, sampling: str) -> Body:
        asked = {"prompt": prompt, "max_tokens": self.terms.new_tokens, "temperature": 0}
        return {**asked, **SAMPLINGS[sampling], "seed": self.terms.seed + number}


def takes_switch(server: Server) -> bool:
    """Whether a server reads `speculative`: a value of the wrong type must be refused."""
    asked = {"prompt": "x", "max_tokens": 1}
    is_read = not _is_taken(server, {**asked, "speculative": "neither"})
    return is_read and _is_taken(server, {**asked, **OFF})


def repeated_in(server: Server, texts: Sequence[str]) -> float | None:
    """Mean share of repeated 8-grams, in the server's own tokens; None where it tells none."""
    shares = []
    for text in texts:
        asked = {"prompt": text, "add_special_tokens": False}
        try:
            heard = ask(server.url, server.named(asked), "/tokenize")
        except UsageError:
            return None
        tokens = read_json(heard).get("tokens")
        if text and not tokens:
            return None  # it has such a page, and takes something else there
        shares.append(repeated_share(tokens, ()))
    return sum(shares) / len(shares)


def gap_at(server: Server, body: Body, text: str, index: int) -> float | None:
    """Between the two likeliest tokens where a text has its character `index`, asked once more.

    None where the server tells no log-probabilities, or writes another text this time.
    """
    try:
        (choice,) = read_json(ask(server.url, server.named({**body, "logprobs": 2})))["choices"]
    except UsageError:
        return None
    told = choice.get("logprobs") or {}
    offsets, best = told.get("text_offset"), told.get("top_logprobs")
    if not offsets or not best or choice["text"][:index] != text[:index]:
        return None
    place = max((i for i, offset in enumerate(offsets) if offset - offsets[0] <= index), default=0)
    values = sorted(best[place].values(), reverse=True)
    return values[0] - values[1] if len(values) > 1 else None


def _is_taken(server: Server, body: Body) -> bool:
    try:
        ask(server.url, server.named(body))
    except UsageError:
        return False
    return True


def _take(step: Step, bodies: Sequence[Body]) -> tuple[dict[str, Any], list[str]]:
    """What a step took and what the server counted meanwhile; the texts.

    A request that fails ends the audit with its reason.
    """
    asked = [{**body, **step.added} for body in bodies]
    heard, seconds, counted = step.server.ask_all(asked, step.clients, ask)
    texts = [read_whole(one).text for one in heard]
    queries = counted["counters"].get("prefix_cache_queries", 0)
    share = counted["counters"].get("prefix_cache_hits", 0) / queries if queries else None
    found = {"texts": len(texts), "seconds": round(seconds, 3), **counted}
    return {**found, "prefix_hits": share}, texts
