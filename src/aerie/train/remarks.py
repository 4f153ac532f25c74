"""Remarks of the records, computed from what was measured and collected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from aerie.train.acceptance import DRAFTS, mean_length, ratio_interval
from aerie.train.corpus import Corpus
from aerie.train.evaluate import PromptResult
from aerie.train.heldout import SHORT, Prompt

VENDOR_FOLDER = "_vendor"
# Copies inside permissive packages whose own licence the package's metadata does not tell.
VENDORED_LICENCES = {
    "pip/_vendor/chardet": "LGPL-2.1",
    "pip/_vendor/certifi": "MPL-2.0",
    "setuptools/_vendor/autocommand": "LGPL-3.0",
}


def quotes_vendored(prompt: Prompt) -> bool:
    """Whether a prompt holds a file of a vendored copy; such prompts are not shipped."""
    return any(VENDOR_FOLDER in path.split("/") for _, path in prompt.sources)


def corpus_remarks(corpus: Corpus) -> list[str]:
    """What packages carry under other licences than their own, as shares of the training text."""
    stream = corpus.train
    lengths = np.diff(np.append(stream.starts, stream.tokens.shape[0]))
    tokens: Counter[str] = Counter()
    for document, length in zip(stream.documents, lengths.tolist(), strict=True):
        tokens[vendored_folder(document.path)] += length
    total = max(1, stream.tokens.shape[0])
    found = [
        f"`{folder}` ({licence}, {tokens[folder] / total:.3%})"
        for folder, licence in VENDORED_LICENCES.items()
        if tokens[folder]
    ]
    if not found:
        return []
    return [
        "Packages were chosen by the licence of the installed package. Some carry copies under "
        f"other licences, with their share of the training tokens: {', '.join(found)}. They are "
        "to be left out when the target is trained again. No shipped held-out prompt quotes a "
        "vendored copy; prompts that do are measured and not shipped."
    ]


def vendored_folder(path: str) -> str:
    """`pip/_vendor/chardet/x.py` lies in `pip/_vendor/chardet`; empty outside such folders."""
    parts = path.split("/")
    if VENDOR_FOLDER not in parts[:-1]:
        return ""
    return "/".join(parts[: parts.index(VENDOR_FOLDER) + 2])


def ratios_to_short(results: Sequence[PromptResult]) -> dict[str, dict[str, float]]:
    """Acceptance of each longer bucket over the short one's, loops left out, with intervals."""
    kept = [result for result in results if not result.is_loop]
    base = [result for result in kept if result.bucket <= SHORT]
    longer = sorted({result.bucket for result in kept if result.bucket > SHORT})
    out = {}
    for bucket in longer if base else ():
        for draft in DRAFTS:
            below = [result.walks[draft.name] for result in base]
            above = [result.walks[draft.name] for result in kept if result.bucket == bucket]
            low, high = ratio_interval(above, below)
            out[f"{draft.name}_{bucket // 1024}k"] = {
                "ratio": round(mean_length(above) / mean_length(below), 4),
                "low": round(low, 4),
                "high": round(high, 4),
            }
    return out


def evaluation_remarks(
    results: Sequence[PromptResult], provenance: Mapping[str, object]
) -> list[str]:
    """How many texts loop, what acceptance is with them, and in what numbers they were written."""
    if not results:
        return []
    chains = [draft.name for draft in DRAFTS if draft.name.startswith("chain")]
    figures = []
    for bucket in sorted({result.bucket for result in results}):
        rows = [result for result in results if result.bucket == bucket]
        means = [mean_length([row.walks[name] for row in rows]) for name in chains]
        figures.append(f"{' / '.join(f'{mean:.2f}' for mean in means)} at {bucket}")
    n_loops = sum(result.is_loop for result in results)
    levels = " / ".join(name.removeprefix("chain") for name in chains)
    out = [
        f"{n_loops} of {len(results)} greedy continuations loop: the target is small. With the "
        f"loops, acceptance at {levels} levels is {', '.join(figures)}."
    ]
    if "texts_written_in" in provenance:
        out.append(
            f"Texts were written in {provenance['texts_written_in']}; the head ran in float32. "
            "In other numbers near ties fall differently, and texts part there."
        )
    return out
