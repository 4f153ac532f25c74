"""Decode the page's examples with the built-in pair, one for each kind of draft, and keep them.

    python -m scripts.record_view_examples

Writes src/aerie/server/static/view/examples.json: what the live page shows before anybody has
asked it for anything. Rounds are written as the server tells them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from aerie import Engine, SamplingParams
from aerie.bench.provenance import provenance
from aerie.server.rounds import describe_round
from scripts import ROOT

OUT = ROOT / "src/aerie/server/static/view/examples.json"
PROMPT = '''import json


def load_config(path):
    """Load a JSON file and return it as a dict."""
'''
SAMPLING = {"max_tokens": 96, "temperature": 0.6, "seed": 1}
DRAFTS: dict[str, dict[str, Any]] = {
    "fixed tree": {"policy": "fixed", "top_k": 3, "depth": 5, "nodes": 16},
    "chain": {"policy": "fixed", "top_k": 1, "depth": 5, "nodes": 6},
    "planner": {"policy": "planner"},
}


def main() -> None:
    """Decode every example; they differ in their rounds, never in their text."""
    examples = [decode(name, drafts) for name, drafts in DRAFTS.items()]
    assert len({head["text"] for head, _ in examples}) == 1, "the texts differ"
    made = provenance("cpu")
    kept = {name: made[name] for name in ("aerie", "commit", "date", "device", "torch")}
    asked = {"prompt": PROMPT, **SAMPLING}
    written = [_with_list(head, "rounds", map(_compact, rounds)) for head, rounds in examples]
    text = _with_list({"made": kept, "asked": asked}, "examples", written)
    OUT.write_text(text + "\n", encoding="utf-8")
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size} bytes")


def decode(name: str, drafts: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One example with its text, and every round."""
    engine = Engine.load(numerics="exact", speculation=drafts)
    request_id = engine.submit(PROMPT, SamplingParams(**SAMPLING))
    rounds, text, n_tokens = [], "", 0
    while engine.core.request(request_id).ended is None:
        updates = engine.step()
        trees = engine.core.launcher.trees.values()
        rounds += [describe_round(tree, engine.tokenizer) for tree in trees]
        text += "".join(update.text for update in updates)
        n_tokens += sum(len(update.token_ids) for update in updates)
    limits = engine.core.config.speculation.limits
    tree = {"top_k": limits.top_k, "depth": limits.depth, "nodes": limits.nodes}
    return {"name": name, "tree": tree, "text": text, "tokens": n_tokens}, rounds


def _with_list(head: dict[str, Any], name: str, lines: Iterable[str]) -> str:
    """An object with a list behind, an entry on a line: short, and a change can be read."""
    return f'{_compact(head)[:-1]},"{name}":[\n' + ",\n".join(lines) + "]}"


def _compact(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
