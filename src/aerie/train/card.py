"""Model cards of the pair, written from the records of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aerie.train.heldout import BUCKETS
from aerie.train.pair import MANIFEST_FILE, TARGET_RECORD, Folders
from aerie.train.pair_head import EVALUATION, HEAD_RECORD, TABLE


def write_cards(folders: Folders) -> None:
    """README.md beside the weights; whatever record is missing is left out."""
    records = {
        name: _read(folders.out / name)
        for name in (MANIFEST_FILE, TARGET_RECORD, HEAD_RECORD, EVALUATION)
    }
    if folders.target.is_dir():
        text = _target_card(records[MANIFEST_FILE], records[TARGET_RECORD])
        (folders.target / "README.md").write_text(text, encoding="utf-8")
    if folders.head.is_dir():
        text = _head_card(records[HEAD_RECORD], records[EVALUATION])
        (folders.head / "README.md").write_text(text, encoding="utf-8")


def _target_card(manifest: dict[str, Any], record: dict[str, Any]) -> str:
    """Data, recipe and held-out loss of the target."""
    shape = record["plan"]["shape"]
    counts = manifest["counts"]
    by_length = record.get("heldout_loss_by_length", {})
    lines = [
        "# The built-in target",
        "",
        "A small Llama-style decoder for Python source code, trained by `aerie train target` so "
        "that everything in this repository can be run without a download. It tells the truth "
        "about acceptance; it is no assistant.",
        "",
        f"- {shape['n_layers']} layers, hidden {shape['hidden']}, {shape['n_heads']}/"
        f"{shape['n_kv_heads']} heads of {shape['head_dim']}, feed-forward {shape['mlp_width']}, "
        f"vocabulary {shape['vocab_size']}, untied head, rotary base {shape['rope_theta']:g}, "
        f"sequences up to {shape['max_positions']}; bf16 safetensors.",
        f"- Held-out loss: **{record['heldout_loss']:.4f}** nats a token in windows of 1,024"
        + "".join(f", {value:.4f} in {length}" for length, value in by_length.items())
        + ".",
        f"- Recipe: {record['steps']} steps of {record['plan']['n_rows']} tokens "
        f"({record['tokens'] / 1e6:.0f} M) in {record['seconds']:.0f} s on one "
        f"{record['device']}, torch {record['torch']}; Muon for matrices, AdamW for the rest, "
        "linear decay; windows of 1,024 first, then mixed with 4,096, 17,408 and 34,816. "
        "Numbers are in `../target_record.json`.",
        "",
        "## Data",
        "",
        f"Python files of the standard library and of installed packages under permissive "
        f"licences: {counts['train files']} files, {counts['train tokens'] / 1e6:.1f} M tokens. "
        f"Held out by whole files: {counts['heldout files']} files, "
        f"{counts['heldout tokens'] / 1e6:.2f} M tokens; "
        f"{counts['training files dropped for a shared window']} training files were dropped "
        "because they shared a window of 50 tokens with one of them. Licence headers, copies, "
        "near copies, generated files and tables were left out.",
        "",
        f"File lists (SHA-256): training `{manifest['train_files_sha256']}`, held out "
        f"`{manifest['heldout_files_sha256']}`; held-out files are listed in `../corpus.json`.",
        "",
        "| package | version | licence | files | held out |",
        "|---|---|---|---|---|",
    ]
    lines += [
        # A `v` in front: four numbers with dots would read as a network address.
        f"| {p['name']} | v{p['version']} | {p['licence']} | {p['files']} | {p['heldout_files']} |"
        for p in manifest["packages"]
    ]
    refused = ", ".join(name for name, _, _ in manifest["refused"])
    lines += ["", f"Refused for their licence: {refused or 'none'}.", *_remarks(manifest), ""]
    return "\n".join(lines)


def _head_card(record: dict[str, Any], measured: dict[str, Any]) -> str:
    """Recipe and acceptance of the head."""
    shape, unroll = record["plan"]["shape"], record["plan"]["unroll"]
    earlier = record.get("went_on_from")
    before = f"{earlier['steps']} and then " if earlier else ""
    lines = [
        "# The built-in EAGLE-3 head",
        "",
        "Drafts for the built-in target; trained by `aerie train head`.",
        "",
        f"- One layer, hidden {shape['hidden']}, {shape['n_heads']}/{shape['n_kv_heads']} heads "
        f"of {shape['head_dim']}, feed-forward {shape['mlp_width']}, draft vocabulary "
        f"{shape['draft_vocab_size']}; reads the target's boundaries {shape['taps']} "
        f"(layer outputs {[b - 1 for b in shape['taps']]}); sliding window {shape['window']}; "
        "embedding shared with the target.",
        f"- Recipe: {before}{record['steps']} steps, {record['tokens'] / 1e6:.0f} M feature "
        f"tokens in {record['seconds']:.0f} s on one {record['device']}; drafting unrolled over "
        f"{unroll['n_steps']} steps at every position, labels {unroll['hard_share']:.0%} the "
        "target's best token and the rest its distribution; two batches of three hold text the "
        "target wrote itself; contexts of 1K to 34K. Numbers are in `../head_record.json`.",
        "",
        "## Acceptance",
        "",
        "Mean acceptance length, bonus token included, on the target's greedy continuations (256 "
        "tokens) of held-out prompts; 95 % bootstrap interval over prompts. "
        f"{measured['loop_rule'].capitalize()}. `tree3` is a static tree of eleven nodes, three "
        f"levels deep. One row per prompt in `../{TABLE}`.",
        "",
        "| context | prompts | used | repeated 8-grams | chain 3 | chain 5 | chain 7 | tree 3 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    # Every bucket has a row: one that was not reached says so.
    for bucket in sorted({*BUCKETS, *map(int, measured["buckets"])}):
        row = [str(bucket), *_bucket_cells(measured["buckets"].get(str(bucket), {}))]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", *_ratios(measured.get("of_short", {}))]
    lines += [f"Target's held-out loss: {measured['heldout_loss']:.4f} nats a token."]
    lines += _origin(measured.get("provenance", {}))
    return "\n".join([*lines, *_remarks(measured), ""])


def _bucket_cells(summary: dict[str, Any]) -> list[str]:
    """Counts, repeated share and acceptance of one bucket."""
    counts = [str(summary.get(name, 0)) for name in ("prompts", "used")]
    share = f"{summary['repeated_8gram_share']:.1%}" if summary.get("used") else "not measured"
    cells = [_cell(summary.get(name)) for name in ("chain3", "chain5", "chain7", "tree3")]
    return [*counts, share, *cells]


def _ratios(of_short: dict[str, dict[str, float]]) -> list[str]:
    """Chains of long contexts over the short figure; no line if there is none."""
    cells = [
        f"{name.replace('_', ' at ')} {value['ratio']:.3f} ({value['low']:.3f} to "
        f"{value['high']:.3f})"
        for name, value in of_short.items()
        if name.startswith(("chain3", "chain5"))
    ]
    return [f"Of the short figure: {', '.join(cells)}.", ""] if cells else []


def _origin(provenance: dict[str, Any]) -> list[str]:
    """One sentence; a run that was not told its commit has none."""
    if "commit" not in provenance:
        return []
    return [
        "",
        f"Every row was measured in one run on one {provenance['device']}, commit "
        f"`{provenance['commit']}`, torch {provenance['torch']}, {provenance['date']}.",
    ]


def _remarks(record: dict[str, Any]) -> list[str]:
    """What a run's record remarks, a paragraph each."""
    return [line for remark in record.get("remarks", ()) for line in ("", remark)]


def _cell(value: dict[str, float] | None) -> str:
    if value is None:
        return "not measured"
    return f"{value['mean']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return loaded
