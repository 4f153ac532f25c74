"""How often the full KV holds what a part of it said, on held-out documents, on a CPU.

    python -m scripts.partial_kv reports/raw/partial_kv_cpu.json --documents 4

The built-in pair decodes greedily with a chain of 5 in fast numerics, float32, one thread: with
full KV, then with previews (lossless) of several sizes and both ways to choose blocks, a document
after the other in turns. Tokens of every preview must be those of full KV. Rows: tokens that
previews left, the share that held, full passes, tokens a full pass, seconds of decoding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from aerie.api import Engine
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from aerie.bench.round.setup import read_prompts, start
from aerie.text.loops import repeated_share

CHAIN = {"top_k": 1, "depth": 5, "nodes": 6}
# Retrieved blocks of 16 positions; sinks and window come on top (2 and 8 blocks).
PARTS = {
    "full": {"specpv": "off"},
    "mass 32": {"specpv": "lossless", "n_retrieval_blocks": 32},
    "mass 128": {"specpv": "lossless", "n_retrieval_blocks": 128},
    "mass 256": {"specpv": "lossless", "n_retrieval_blocks": 256},
    "bounds 256": {"specpv": "lossless", "n_retrieval_blocks": 256, "specpv_select": "bounds"},
}


def engine_of(part: dict[str, Any], context: int, n_new: int) -> Any:
    partial = {**part, "n_spec_tokens_buf": 24, "partial_threshold": 1024}
    core = Engine.load(
        device="cpu", probe="off", numerics="fast", speculation=CHAIN, partial=partial,
        scheduler={"max_batch": 1},
        cache={"n_pages": (context + n_new + 256) // 16 + 2, "prefix_reuse": False},
    ).core  # fmt: skip
    return core


def decode(core: Any, prompt: list[int], n_new: int) -> tuple[list[int], Any, float]:
    """The text of a prompt, its statistics, and seconds from its last prompt token on."""
    (request_id,) = start(core, [prompt], n_new)
    begin = time.process_time()
    while not core.is_idle:
        core.step()
    seconds = time.process_time() - begin
    request = core.forget(request_id)
    return request.output, request.statistics, seconds


def measure(context: int, n_documents: int, n_new: int) -> list[dict[str, Any]]:
    """Rows of one context: every document with every part, in turns."""
    prompts = read_prompts(n_documents, context, 4096)
    cores = {name: engine_of(part, context, n_new) for name, part in PARTS.items()}
    rows = []
    for document, prompt in enumerate(prompts):
        wanted = None
        for name, core in cores.items():
            output, counts, seconds = decode(core, prompt, n_new)
            wanted = output if wanted is None else wanted
            rows.append({
                "context": context, "document": document, "part": name,
                "is_equal": output == wanted, "tokens": len(output),
                "full_passes": counts.target_passes, "previewed": counts.previews.tokens,
                "judged": counts.previews.judged, "held": counts.previews.held,
                "seconds": round(seconds, 4), "repeated": round(repeated_share(output, ()), 4),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a context and part."""
    found = []
    for context, part in dict.fromkeys((row["context"], row["part"]) for row in rows):
        own = [row for row in rows if (row["context"], row["part"]) == (context, part)]
        total = {name: sum(row[name] for row in own) for name in own[0] if name in COUNTED}
        agreement = total["held"] / total["judged"] if total["judged"] else None
        found.append({
            "context": context, "part": part, "documents": len(own),
            "equal": sum(row["is_equal"] for row in own),
            "agreement": None if agreement is None else round(agreement, 4),
            "tokens_a_full_pass": round(total["tokens"] / total["full_passes"], 3), **total,
        })  # fmt: skip
    return found


COUNTED = ("tokens", "full_passes", "previewed", "judged", "held", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--new", type=int, default=96)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for n in asked.contexts for row in measure(n, asked.documents, asked.new)]
    made = {"provenance": provenance("cpu"), "summary": summed(rows), "rows": rows}
    write_json(asked.out, made)
    print(json.dumps(made["summary"]))


if __name__ == "__main__":
    main()
