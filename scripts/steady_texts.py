"""Find held-out pieces whose greedy texts do not loop: writes assets/heldout/steady.json.

    python -m scripts.steady_texts [--lengths 1024,8192] [--device cuda] [--threads 1]

A small pair repeats itself on most prompts, and acceptance on a loop says nothing: benchmarks leave
such texts out. Which prompts these are does not depend on the machine (the texts are those of plain
decoding, in the pair's own geometry or inflated, up to near ties), so they are found once, here;
whoever measures holds its own texts against the same rule again. A piece is a run of a
document's tokens: every document of code of at least the length is cut into such pieces, none
overlapping. A length is done when enough pieces are found or the documents end; the file is
written after every batch, and a second run goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from aerie import Engine, SamplingParams
from aerie.text.heldout import STEADY, Piece, read_pieces
from aerie.text.loops import does_not_loop
from scripts import ROOT

FILE = ROOT / "src/aerie/assets/heldout" / STEADY
# Pieces of a length: eight groups of the largest batch measured there, and a quarter more.
WANTED = {512: 48, 1_024: 320, 8_192: 100, 16_384: 44, 32_768: 32}
NEW_TOKENS = 224  # longer than any text that is measured on these pieces
BATCH_TOKENS = 131_072  # of prompts that are decoded together


def batches(length: int, done: int, encode: Any) -> Iterator[list[Piece]]:
    """Pieces not tried yet, as many at a time as KV memory is given for."""
    together = max(1, min(32, BATCH_TOKENS // length))
    batch: list[Piece] = []
    for number, piece in enumerate(read_pieces(encode, length)):
        if number >= done:
            batch.append(piece)
        if len(batch) == together:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> int:
    """Try pieces of every length until there are enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default=",".join(map(str, WANTED)))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {}
    lengths = [int(text) for text in options.lengths.split(",")]
    engine = Engine.load(
        device=options.device,
        speculation={"method": "none"},
        scheduler={"max_batch": 32},
        cache={"n_pages": (BATCH_TOKENS + 33_000) // 16 + 1024, "prefix_reuse": False},
    )
    asked = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for length in lengths:
        entry = known.setdefault(str(length), {"tried": 0, "steady": []})
        for batch in batches(length, entry["tried"], engine.tokenizer.encode):
            if len(entry["steady"]) >= WANTED[length]:
                break
            began = time.perf_counter()
            texts = engine.generate([piece.tokens for piece in batch], asked)
            for piece, text in zip(batch, texts, strict=True):
                if does_not_loop(text.token_ids, engine.tokenizer.eos_ids):
                    entry["steady"].append(piece.name)
            entry["tried"] += len(batch)
            FILE.write_text(text_of(known), "utf-8")
            seconds = time.perf_counter() - began
            found = f"{len(entry['steady'])} of {entry['tried']}"
            print(f"{length}: {found}, {seconds:.0f} s a batch", flush=True)
    return 0


def text_of(known: dict[str, Any]) -> str:
    """JSON with a line for each length."""
    lines = (f"{json.dumps(length)}: {json.dumps(entry)}" for length, entry in known.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
