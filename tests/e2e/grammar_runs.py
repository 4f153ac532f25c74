"""Texts of random schemas: valid where they end, prefixes where they are cut, plain decoding's.

Also runs by itself and keeps its log: python -m tests.e2e.grammar_runs reports/raw/grammar_runs.log
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from aerie import Engine, SamplingParams
from aerie.api import Completion
from aerie.bench.provenance import provenance
from aerie.text.grammar import JsonSchema
from tests.e2e.schemas import Schema, draw_schema, kinds_of

SEEDS = (1, 2, 3)  # the first one is greedy
MOST_TOKENS = 512
TOGETHER = 30  # schemas in a batch
LEAST_ENDED = 0.9
PROMPT = "import json\n\nvalue = json.loads('''"
TREE = {"top_k": 4, "depth": 4, "nodes": 16}
# Which engine writes what plain decoding wrote, in turns.
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("direct", TREE),
    ("graphs", {"top_k": 2, "depth": 3, "nodes": 6}),
    ("direct", {**TREE, "method": "eagle3+ngram"}),
    ("direct", {"top_k": 2, "depth": 5, "nodes": 10}),
    ("graphs", {"top_k": 1, "depth": 3, "nodes": 4}),
)


def load(engine: str, speculation: dict[str, Any]) -> Engine:
    """The built-in pair in exact numerics."""
    return Engine.load(
        numerics="exact",
        engine=engine,
        speculation=speculation,
        scheduler={"max_batch": 32},
        cache={"n_pages": 2048},
    )


def write(engine: Engine, schemas: Sequence[Schema], most: int = MOST_TOKENS) -> list[Completion]:
    """Every schema with every seed, all together."""
    for schema in schemas:
        for seed in SEEDS:
            params = SamplingParams(
                max_tokens=most,
                temperature=0.0 if seed == SEEDS[0] else 0.9,
                seed=seed,
                grammar=JsonSchema(schema),
            )
            engine.submit(PROMPT, params)
    ids = engine.open_requests
    ended: set[int] = set()
    while len(ended) < len(ids):
        ended |= {u.request_id for u in engine.step() if u.finish_reason is not None}
    return [engine.collect(request_id) for request_id in ids]


def check(engine: Engine, schema: Schema, completion: Completion, most: int = MOST_TOKENS) -> bool:
    """Whether a text ended by itself; AssertionError if it is not what the schema says."""
    assert completion.error is None, completion.error
    if completion.finish_reason == "stop":
        assert completion.token_ids[-1] in engine.tokenizer.eos_ids
        jsonschema.validate(json.loads(completion.text), schema)
        return True
    assert completion.finish_reason == "length" and len(completion.token_ids) == most
    # Its bytes one by one: other tokens than those that were masked. It may end within a character.
    matcher = engine.grammars.compiled(JsonSchema(schema)).matcher()
    for byte in b"".join(map(engine.tokenizer.token_bytes, completion.token_ids)):
        assert matcher.step(byte_token(engine, byte)), completion.text
    return False


def byte_token(engine: Engine, byte: int) -> int:
    """The token of one byte."""
    tokenizer = engine.tokenizer
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


@dataclass
class Tally:
    """What was met so far."""

    schemas: int = 0
    texts: int = 0
    ended: int = 0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """For the log."""
        return [
            *self.wrong,
            f"{self.schemas} schemas, {len(SEEDS)} seeds each: {self.texts} texts,"
            f" {self.tokens} tokens",
            f"wrong (invalid, no prefix, or other tokens than plain decoding's): {len(self.wrong)}",
            f"ended by themselves within {MOST_TOKENS} tokens: {self.ended}"
            f" ({self.ended / self.texts:.3f})",
            f"schemas that have: {dict(sorted(self.kinds.items()))}",
            f"target passes: {dict(self.passes)}",
        ]


def compare(plain: Engine, drafting: Engine, first: int, n_schemas: int, tally: Tally) -> None:
    """One batch: what plain decoding writes is right, and the other engine writes the same."""
    schemas = [draw_schema(seed) for seed in range(first, first + n_schemas)]
    texts, others = write(plain, schemas), write(drafting, schemas)
    for index, (text, other) in enumerate(zip(texts, others, strict=True)):
        tally.texts, tally.tokens = tally.texts + 1, tally.tokens + len(text.token_ids)
        tally.passes["plain"] += text.statistics.target_passes
        tally.passes["drafting"] += other.statistics.target_passes
        number, seed = divmod(index, len(SEEDS))
        try:
            tally.ended += check(plain, schemas[number], text)
            assert text.token_ids == other.token_ids, "other tokens than plain decoding's"
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            tally.wrong.append(f"schema {first + number}, seed {SEEDS[seed]}: {error}"[:600])
    tally.schemas += n_schemas
    for schema in schemas:
        tally.kinds.update(kinds_of(schema))


def main() -> None:
    """Run so many schemas (300 unless told); the log is kept after every batch."""
    out, n_schemas = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 300
    plain, drafting = load("direct", {"method": "none"}), [load(*way) for way in WAYS]
    origin, begin, tally = f"provenance: {provenance('cpu')}", time.time(), Tally()
    for number, first in enumerate(range(0, n_schemas, TOGETHER)):
        n_together = min(TOGETHER, n_schemas - first)
        compare(plain, drafting[number % len(WAYS)], first, n_together, tally)
        lines = [origin, *tally.lines(), f"{time.time() - begin:.0f} s"]
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print("\n".join(lines[-6:]), flush=True)
    sys.exit(bool(tally.wrong) or tally.ended < LEAST_ENDED * tally.texts)


if __name__ == "__main__":
    main()
