"""A tokenizer as large as a real model's, grown from the built-in pair's."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from aerie.models.hub import find_pair
from aerie.text.tokenizer import Tokenizer, load_tokenizer


def grown_tokenizer(size: int) -> Tokenizer:
    """The built-in pair's tokenizer with text for every id of a larger vocabulary.

    Its own ids keep their meaning. Every new token is the merge of two others, so that the file is
    a real BPE.
    """
    source, _ = find_pair(None, None)
    file = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = file["model"]["vocab"], file["model"]["merges"]
    assert len(vocab) <= size, f"{len(vocab)} tokens, more than {size}"
    rng, space, met = random.Random(0), "Ġ", set[str]()
    alphabets = ["etaoinshrdlucmfwypvbgk", "0123456789", '{}[]":,.()_-']
    cyrillic = ["".join(pair) for pair in zip("ÐÐÐÐÐÐ", "°±²³´µ", strict=True)]
    pools: list[list[str]] = [list(alphabet) for alphabet in alphabets] + [cyrillic]
    shares = (0.88, 0.03, 0.04, 0.05)
    while len(vocab) < size:
        pool = rng.choices(pools, shares)[0]
        left, right = rng.choice(pool), rng.choice(pool[:40])
        if pool is pools[0] and rng.random() < 0.25 and not left.startswith(space):
            left, right = space, left
        if pool is cyrillic and left not in vocab:
            left, right = left[0], left[1]
        token = left + right
        if left in vocab and right in vocab and token not in met and len(token) <= 14:
            met.add(token)
            pool.append(token)
            if token not in vocab:
                vocab[token] = len(vocab)
                merges.append([left, right])
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer_config.json", "generation_config.json"):
            shutil.copy(source / name, folder)
        made = Path(folder) / "tokenizer.json"
        made.write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
        return load_tokenizer(Path(folder))
