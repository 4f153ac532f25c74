"""Held-out prompts of any context for the matrix and the gates, chosen by a stated rule."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from importlib import resources

from aerie.bench.round.setup import tokenizer_of_pair
from aerie.errors import UsageError

RULE = (
    "shipped held-out prompts whose own length is the context come first, those that "
    "acceptance.csv does not list as loops before the others, by the share of repeated 8-grams "
    "among loops; then the beginnings of longer prompts, then their ends; in the order of names"
)


@dataclass(frozen=True)
class Prompt:
    """A text's tokens, and where they come from."""

    name: str
    tokens: tuple[int, ...]
    is_known: bool  # its own continuation was evaluated, and is no loop


@dataclass(frozen=True)
class _Text:
    name: str
    bucket: int
    tokens: tuple[int, ...]
    is_loop: bool
    repeated: float


class PromptBook:
    """The held-out texts, encoded once."""

    def __init__(self) -> None:
        folder = resources.files("aerie.assets")
        table = (folder / "pair" / "acceptance.csv").read_text(encoding="utf-8")
        known = {row["prompt"]: row for row in csv.DictReader(table.splitlines())}
        tokenizer = tokenizer_of_pair()
        encode = tokenizer.encode
        self.end_ids = tokenizer.eos_ids  # each of them ends a text
        path = folder / "heldout" / "prompts.jsonl.gz"
        with path.open("rb") as stream, gzip.open(stream, "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        self._records = records
        self._known = known
        self._encode = encode
        self._texts: dict[str, _Text] = {}

    def choose(self, context: int, n_prompts: int) -> list[Prompt]:
        """So many different prompts of a context, by `RULE`."""
        records = sorted(
            (r for r in self._records if r["bucket"] >= context),
            key=lambda r: (r["bucket"], r["name"]),
        )
        own = sorted((r for r in records if r["bucket"] == context), key=self._looping)
        longer = [r for r in records if r["bucket"] > context]
        found = [self._whole(self._text(r)) for r in own]
        for cut, where in ((slice(0, context), "beginning"), (slice(-context, None), "end")):
            if len(found) < n_prompts:
                texts = [self._text(r) for r in longer]
                found += [Prompt(f"{t.name} {where}", t.tokens[cut], False) for t in texts]
        if len(found) < n_prompts:
            raise UsageError(f"{n_prompts} prompts of {context} tokens asked, {len(found)} exist")
        return found[:n_prompts]

    def _looping(self, record: dict[str, str]) -> tuple[int, float, str]:
        row = self._known.get(record["name"])
        if row is None:
            return 1, 1.0, record["name"]
        is_loop = int(row["is_loop"])
        return is_loop, float(row["repeated_8gram_share"]) if is_loop else 0.0, record["name"]

    def _whole(self, text: _Text) -> Prompt:
        return Prompt(text.name, text.tokens, not text.is_loop)

    def _text(self, record: dict[str, str]) -> _Text:
        name = record["name"]
        if name not in self._texts:
            is_loop, repeated, _ = self._looping(record)
            tokens = tuple(self._encode(record["text"]))
            self._texts[name] = _Text(name, int(record["bucket"]), tokens, bool(is_loop), repeated)
        return self._texts[name]
