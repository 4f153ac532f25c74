"""What approximate arithmetic costs in accepted tokens: writes reports/precision.json.

    python -m scripts.precision_study [--prompts 16] [--tokens 96]

Decodes held-out prompts with the built-in pair once per approximation of
`aerie.parity.precision` and once without. `aerie report` makes the page of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aerie.api import Engine
from aerie.bench.provenance import provenance
from aerie.bench.record import formatted, write_json
from aerie.bench.round.setup import tokenizer_of_pair
from aerie.kernels.registry import Kernels
from aerie.parity.precision import SOFTMAX, VARIANTS, Variant
from aerie.parity.precision_watch import Watch
from aerie.requests.params import SamplingParams
from aerie.text.heldout import read_tokens
from aerie.train.acceptance import Walked, mean_length, middle, resampled

TREE = {"top_k": 4, "depth": 4, "nodes": 12}
BATCH = 8
N_RESAMPLES = 10_000
GREEDY, WARM = 0.0, 1.0
# At temperature 0 K5 is a one-hot and takes no exp: the coarsest are run to show it.
GREEDY_SOFTMAX = ("exp-linear-1", "exp-fixed-8")


@dataclass(frozen=True)
class Setting:
    """One way of decoding; an approximation is compared with exact arithmetic in the same one."""

    rule: str
    temperature: float
    seed: int = 1

    @property
    def name(self) -> str:
        """As the tables say it."""
        return f"{self.rule}, T = {self.temperature:g}"


SETTINGS = (
    Setting("coins", WARM),
    Setting("coins", GREEDY),
    Setting("match", GREEDY),
    Setting("match", WARM),
)


@dataclass(frozen=True)
class Outcome:
    """One run over all prompts."""

    walks: list[Walked]
    tokens: list[tuple[int, ...]]


def main() -> None:
    """Measure, write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("reports/precision.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    write_json(options.out, study(options.prompts, options.tokens))


def study(n_prompts: int, n_tokens: int) -> dict[str, Any]:
    """Every approximation in every setting it matters in."""
    prompts = read_tokens(tokenizer_of_pair().encode, 512, n_prompts)
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS:
        exact = decode(prompts, n_tokens, setting, lambda kernels: kernels)
        rows.append(row("exact", "", setting, exact, exact, Watch()))
        if setting.rule == "coins" and setting.temperature:
            # The same arithmetic with other coins: how large a difference chance makes.
            other = Setting(setting.rule, setting.temperature, seed=2)
            chance = decode(prompts, n_tokens, other, lambda kernels: kernels)
            rows.append(row("other-coins", "control", setting, chance, exact, Watch()))
        for variant in chosen(setting):
            watch = Watch()
            found = decode(prompts, n_tokens, setting, watch.tap(variant))
            rows.append(row(variant.name, variant.meaning, setting, found, exact, watch))
            print(json.dumps(rows[-1]), flush=True)
    return {
        "kind": "measured",
        "prompts": n_prompts,
        "tokens": n_tokens,
        "tree": TREE,
        "batch": BATCH,
        "resamples": N_RESAMPLES,
        "rows": rows,
        "provenance": provenance("cpu"),
    }


def chosen(setting: Setting) -> list[Variant]:
    """K5 runs under the rule coins, the draft layer under match: same tokens whatever the tree."""
    if setting.rule == "match":
        return [variant for variant in VARIANTS if variant.kernel != SOFTMAX]
    softmax = [variant for variant in VARIANTS if variant.kernel == SOFTMAX]
    return [v for v in softmax if setting.temperature or v.name in GREEDY_SOFTMAX]


def decode(
    prompts: list[list[int]], n_tokens: int, setting: Setting, tap: Callable[[Kernels], Kernels]
) -> Outcome:
    """All prompts once; every request has a seed of its own, the same in every run."""
    engine = Engine.load(
        tap=tap,
        device="cpu",
        backend="pytorch",
        speculation={**TREE, "rule": setting.rule},
        scheduler={"max_batch": BATCH},
    )
    params = SamplingParams(n_tokens, setting.temperature, ignore_eos=True)
    ids = [
        engine.submit(prompt, replace(params, seed=1000 * setting.seed + number))
        for number, prompt in enumerate(prompts)
    ]
    while any(engine.core.request(request_id).ended is None for request_id in ids):
        engine.step()
    done = [engine.collect(request_id) for request_id in ids]
    counts = [entry.statistics for entry in done]
    return Outcome(
        [Walked(own.num_drafts, own.num_accepted_tokens) for own in counts],
        [entry.token_ids for entry in done],
    )


def row(
    name: str, meaning: str, setting: Setting, found: Outcome, exact: Outcome, watch: Watch
) -> dict[str, Any]:
    """Acceptance length, its distance from exact arithmetic, and intervals over the prompts."""
    same = sum(one == other for one, other in zip(found.tokens, exact.tokens, strict=True))
    length, exact_length = mean_length(found.walks), mean_length(exact.walks)
    # Of the same samples of prompts.
    lengths, exact_lengths = (resampled(own.walks, N_RESAMPLES) for own in (found, exact))
    return {
        "name": name,
        "meaning": meaning,
        "setting": setting.name,
        "acceptance": length,
        "interval": middle(lengths),
        "difference": length - exact_length,
        "difference_interval": middle(lengths - exact_lengths),
        "same_texts": same,
        "texts": len(found.tokens),
        **paired(watch),
    }


def paired(watch: Watch) -> dict[str, Any]:
    """What the approximation did to the very same calls; None where it was not looked at."""
    gaps = np.array([other - own for own, other in watch.round_acceptances])
    picks = np.random.default_rng(0).integers(0, max(gaps.size, 1), (1000, gaps.size))
    return {
        "expected_difference": float(gaps.mean()) if gaps.size else None,
        "expected_interval": middle(gaps[picks].mean(1)) if gaps.size else None,
        "rounds": int(gaps.size),
        "mean_distance": float(np.mean(watch.row_distances)) if watch.row_distances else None,
        "worst_distance": max(watch.row_distances, default=None),
        "rows": len(watch.row_distances),
        "hidden_error": float(np.mean(watch.layer_errors)) if watch.layer_errors else None,
        "reordered": float(np.mean(watch.layer_reorders)) if watch.layer_reorders else None,
        "layers": len(watch.layer_errors),
    }


def render(record: dict[str, Any]) -> str:
    """The page."""
    origin = record["provenance"]
    tree = record["tree"]
    lines = [
        "# What approximate arithmetic costs",
        "",
        "Generated by `scripts/precision_study.py`; raw: [precision.json](precision.json).",
        f"Built-in pair, {record['prompts']} held-out prompts of about 512 tokens x"
        f" {record['tokens']} tokens, batch {record['batch']}, trees of top_k {tree['top_k']},"
        f" depth {tree['depth']}, {tree['nodes']} rows. {origin['device']}, torch"
        f" {origin['torch']}, {origin['date']}, commit {origin['commit'][:10]}; kind: measured.",
        "Acceptance length is 1 + accepted / drafts; intervals are the middle 95 % of"
        f" {record['resamples']} bootstrap samples of prompts, the same samples for both sides of a"
        " difference.",
        "",
    ]
    settings = dict.fromkeys(entry["setting"] for entry in record["rows"])
    for setting in settings:
        entries = [e for e in record["rows"] if e["setting"] == setting]
        step = entries[0]["acceptance"] / (record["prompts"] * record["tokens"])
        lines += _table(setting, entries)
        lines += [f"One accepted token more or less in the whole run is {step:.4f}.", ""]
    return "\n".join(lines + _READING)


def _table(setting: str, entries: list[dict[str, Any]]) -> list[str]:
    columns = COLUMNS | (SOFTMAX_COLUMNS if setting.startswith("coins") else LAYER_COLUMNS)
    return [f"## {setting}", "", *formatted(columns, map(_cells, entries)), ""]


def _cells(entry: Mapping[str, Any]) -> dict[str, str]:
    """What the columns show; empty where an approximation is not at work."""
    shown = {
        "acceptance": f"{entry['acceptance']:.3f} {_between(entry['interval'], '.2f')}",
        **dict.fromkeys(("difference", "same", "expected", "distance", "hidden", "reordered"), ""),
    }
    if entry["name"] != "exact":
        between = _between(entry["difference_interval"], "+.3f")
        shown["difference"] = f"{entry['difference']:+.3f} {between}"
        shown["same"] = f"{entry['same_texts']} of {entry['texts']}"
    if entry["mean_distance"] is not None:
        between = _between(entry["expected_interval"], "+.5f")
        shown["expected"] = f"{entry['expected_difference']:+.5f} {between}"
        shown["distance"] = f"{entry['mean_distance']:.1e} / {entry['worst_distance']:.1e}"
    if entry["hidden_error"] is not None:
        shown["hidden"] = f"{entry['hidden_error']:.1e}"
        shown["reordered"] = f"{100 * entry['reordered']:.2f} %"
    return {"name": entry["name"], "meaning": entry["meaning"], **shown}


def _between(interval: Sequence[float], digits: str) -> str:
    low, high = interval
    return f"({low:{digits}} to {high:{digits}})"


COLUMNS = {
    "arithmetic": "{name}",
    "what": "{meaning}",
    "acceptance (95 %)": "{acceptance}",
    "difference (95 %)": "{difference}",
    "same texts": "{same}",
}
SOFTMAX_COLUMNS = {
    "accepted a round, same rows (95 %)": "{expected}",
    "distance, mean / worst": "{distance}",
}
LAYER_COLUMNS = {"hidden rows off by": "{hidden}", "layers reordered": "{reordered}"}
_READING = [
    "## How to read it",
    "",
    "- **match**: the target's own token decides, so drafts change the speed and never the text."
    " `hidden rows off by` is the rms error of K1's rows relative to their own rms; `layers"
    " reordered` counts calls of K1 whose sorted order is not the exact one. Both say that the"
    " approximation was at work where acceptance does not move: 12 verified rows hold the same"
    " likely nodes.",
    "- **coins**: an approximate K5 changes what is sampled. `distance` is the total variation"
    " between the approximate and the exact distribution of a row: the chance that one token is"
    " drawn differently. `accepted a round, same rows` is what K5's two results make of the very"
    " same trees: the difference in draft tokens accepted on average, intervals over rounds."
    " Measured acceptance is that of another text once a token differs; `other-coins`, exact"
    " arithmetic with other coins, shows how much that alone moves it, and no difference in that"
    " column is evidence by itself.",
    "- At T = 0 K5 takes no exp; the coarsest tables give the same tokens.",
    "- None of this is parity: a backend that ships one of these needs the tolerance in the card"
    " and this page as its price.",
    "",
]


if __name__ == "__main__":
    main()
