"""Texts of random schemas: valid where they end, prefixes where they are cut, plain decoding's.

Also runs by itself and keeps its log: python -m tests.e2e.grammar_runs reports/grammar_runs.log
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
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
    ("graphs", TREE),
    ("direct", {**TREE, "method": "eagle3+ngram"}),
    ("graphs", {"top_k": 1, "depth": 4, "nodes": 5}),
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
    # Its bytes one by one: other tokens than those that were masked.
    matcher = engine.grammars.compiled(JsonSchema(schema)).matcher()
    for byte in completion.text.encode():
        assert matcher.step(byte_token(engine, byte)), completion.text
    return False


def byte_token(engine: Engine, byte: int) -> int:
    """The token of one byte."""
    tokenizer = engine.tokenizer
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


def main() -> None:
    """Run so many schemas (300 unless told) and keep the log."""
    out, n_schemas = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 300
    plain = load("direct", {"method": "none"})
    drafting = [load(*way) for way in WAYS]
    lines, begin, wrong = [f"provenance: {provenance('cpu')}"], time.time(), 0
    met, n_texts, n_ended, n_tokens = Counter[str](), 0, 0, 0
    saved = Counter[str]()
    for number, start in enumerate(range(0, n_schemas, TOGETHER)):
        schemas = [draw_schema(seed) for seed in range(start, min(start + TOGETHER, n_schemas))]
        way = number % len(WAYS)
        texts, others = write(plain, schemas), write(drafting[way], schemas)
        for index, (text, other) in enumerate(zip(texts, others, strict=True)):
            schema = schemas[index // len(SEEDS)]
            n_texts, n_tokens = n_texts + 1, n_tokens + len(text.token_ids)
            saved["target passes, plain"] += text.statistics.target_passes
            saved["target passes, drafting"] += other.statistics.target_passes
            try:
                n_ended += check(plain, schema, text)
                assert text.token_ids == other.token_ids, "other tokens than plain decoding's"
            except (AssertionError, ValueError, jsonschema.ValidationError) as error:
                wrong += 1
                seed = SEEDS[index % len(SEEDS)]
                lines.append(f"schema {start + index // len(SEEDS)}, seed {seed}: {error}"[:600])
                print(lines[-1], flush=True)
        for schema in schemas:
            met.update(kinds_of(schema))
        print(
            f"{n_texts} texts, {n_ended} ended, {wrong} wrong, {time.time() - begin:.0f} s",
            flush=True,
        )
    lines += [
        f"{n_schemas} schemas, {len(SEEDS)} seeds each: {n_texts} texts, {n_tokens} tokens,"
        f" {time.time() - begin:.0f} s",
        f"wrong (invalid, no prefix, or other tokens than plain decoding's): {wrong}",
        f"ended by themselves within {MOST_TOKENS} tokens: {n_ended} ({n_ended / n_texts:.3f})",
        f"schemas that have: {dict(sorted(met.items()))}",
        f"saved: {dict(saved)}",
    ]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[-5:]))
    sys.exit(bool(wrong) or n_ended < LEAST_ENDED * n_texts)


if __name__ == "__main__":
    main()
