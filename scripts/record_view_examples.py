"""Decode the page's examples with the built-in pair, one for each kind of draft, and keep them.

    python scripts/record_view_examples.py

Writes src/aerie/server/static/view/examples.json: what the live page shows before anybody has
asked it for anything. Rounds are written as the server tells them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from aerie import Engine, SamplingParams  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.engine.round_tree import round_tree  # noqa: E402
from aerie.server.rounds import describe_round  # noqa: E402

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
    assert len({example["text"] for example in examples}) == 1, "the texts differ"
    made = provenance("cpu")
    kept = {name: made[name] for name in ("aerie", "commit", "date", "device", "torch")}
    asked = {"prompt": PROMPT, **SAMPLING}
    # A round on a line: short, and a change can be read.
    lines = json.dumps(
        {"made": kept, "asked": asked, "examples": []}, ensure_ascii=False, separators=(",", ":")
    )[:-2]
    OUT.write_text(lines + ",\n".join(map(_written, examples)) + "]}\n", encoding="utf-8")
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size} bytes")


def decode(name: str, drafts: dict[str, Any]) -> dict[str, Any]:
    """One example: its text, and every round."""
    engine = Engine.load(numerics="exact", speculation=drafts)
    request_id = engine.submit(PROMPT, SamplingParams(**SAMPLING))
    rounds, text, n_tokens = [], "", 0
    while engine.core.request(request_id).ended is None:
        updates = engine.step()
        outcome, engine.core.last_outcome = engine.core.last_outcome, None
        if outcome is not None and outcome.request_ids:
            rounds.append(describe_round(round_tree(outcome, 0), engine.tokenizer))
        text += "".join(update.text for update in updates)
        n_tokens += sum(len(update.token_ids) for update in updates)
    limits = engine.core.config.speculation.limits
    tree = {"top_k": limits.top_k, "depth": limits.depth, "nodes": limits.nodes}
    return {"name": name, "tree": tree, "text": text, "tokens": n_tokens, "rounds": rounds}


def _written(example: dict[str, Any]) -> str:
    head = {**example, "rounds": []}
    rounds = (
        json.dumps(told, ensure_ascii=False, separators=(",", ":")) for told in example["rounds"]
    )
    return (
        "\n"
        + json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-2]
        + "\n"
        + ",\n".join(rounds)
        + "]}"
    )


if __name__ == "__main__":
    main()
