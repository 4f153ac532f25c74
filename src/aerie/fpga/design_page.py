"""The page of the fused design: what is fused, what was counted, and which lever saves what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aerie.fpga.page import head_of

Row = Mapping[str, Any]

T_FLOOR, D_FLOOR, ACCEPTANCE_FLOOR = 2.0, 4.0, 0.97


def judged(found: Mapping[str, Any]) -> bool | None:
    """Whether every floor is reached; None while a scope has not been counted."""
    if "scope_t" not in found or "scope_d" not in found:
        return None
    draft = found["scope_d"]
    is_enough: bool = draft["final"] >= D_FLOOR and draft["acceptance"] >= ACCEPTANCE_FLOOR
    return is_enough and bool(found["fusion"] >= T_FLOOR)


def render(found: Mapping[str, Any]) -> str:
    """The page from its record."""
    text = head_of("fusion_design").rstrip() + "\n"
    text += _trees(found["scope_t"], "## Scope T, by the rule of coins: the gate (at least 2.0)")
    text += _trees(
        found["scope_t_match"], "## Beside it: the rule of matching tokens, which has no K5"
    )
    text += (
        "\nWithout probabilities nothing of the vocabulary's size is written, so fusion saves what"
        " the tree itself moves and the logits stay: read once on either side. The growing half"
        f" alone: {_growth(found['scope_t'])}.\n"
    )
    return text + _draft(found["scope_d"]) + _three(found) + _origin(found)


def _trees(cells: Sequence[Row], title: str) -> str:
    lines = [
        "",
        title,
        "",
        "| batch | verify | vocabulary | hidden | tokens | unfused a token | fused a token | factor"
        " | walked rows only |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in cells:
        lines.append(
            f"| {cell['batch']} | {cell['verify']} | {cell['vocab']} | {cell['hidden']}"
            f" | {cell['tokens']} | {cell['unfused_per_token']:,} | {cell['fused_per_token']:,}"
            f" | {cell['factor']:.2f} | {cell['walked_only']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _growth(cells: Sequence[Row]) -> str:
    factors = [cell["growth_factor"] for cell in cells]
    return f"{min(factors):.1f} to {max(factors):.1f}"


def _draft(found: Row) -> str:
    lines = [
        "\n## Scope D at batch 1: the eagle4 drafter, lever by lever",
        "",
        "A live round of the built-in pair at the sizes of eagle4. Unfused"
        f" {_mb(found['unfused_bytes'])} MB: {_parts(found['unfused'])};"
        f" K5 to K7 {_mb(found['verdict_bytes']['unfused'])}.",
        "",
        "| one lever more in each line | MB a round | this lever | factor | tokens a round"
        " | acceptance (90 %) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for line in found["lines"]:
        ratio, low, high = line["acceptance"]
        lines.append(
            f"| {line['name']} | {_mb(line['n_bytes'])} | {line['step']:.2f} | {line['factor']:.2f}"
            f" | {line['length']:.3f} | {ratio:.3f} ({low:.3f} to {high:.3f}) |"
        )
    cuts = ", ".join(
        f"{ratio:.3f} with {ids} ids" for ids, ratio in found["vocabulary_cuts"].items()
    )
    return (
        "\n".join(lines)
        + "\n\nAcceptance is of the built-in pair, drafts made by the fused region in"
        " C-simulation inside a live engine; the first line is the 16-bit head that the others are"
        " compared with; its attention and feed-forward are in 4 bits, as in its inventory."
        f" As trained, in float32, the head reaches {found['float32_length']:.3f}: the last line is"
        f" {found['lines'][-1]['length'] / found['float32_length']:.3f} of that."
        f" Fusion alone: **{found['fusion']:.2f}**, no floor. All together:"
        f" **{found['final']:.2f}**, floor 4.0."
        f" A smaller draft vocabulary is not among the levers: acceptance falls to {cuts}.\n"
    )


def _parts(unfused: Mapping[str, int]) -> str:
    largest = sorted(unfused.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"`{name}` {_mb(n_bytes)}" for name, n_bytes in largest)


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f}"


def _three(found: Mapping[str, Any]) -> str:
    draft = found["scope_d"]
    tokens = draft["lines"][-1]["length"]
    return (
        "\n## Three numbers\n\n"
        f"Fusion: {found['fusion']:.2f} in scope T (the least cell of the gate),"
        f" {draft['fusion']:.2f} in scope D. Speculation: {tokens:.2f} tokens a round. Product:"
        f" {found['fusion'] * tokens:.2f} in scope T; with all levers"
        f" {draft['final'] * tokens:.2f} in scope D. Only the first is what a gate here asks for.\n"
    )


def _origin(found: Mapping[str, Any]) -> str:
    origin = found["provenance"]
    draft = found["scope_d"]
    return (
        f"\nScope T: commit `{origin['commit']}`, {origin['date']}, {found['rounds']} a cell."
        f" Scope D: commit `{draft['provenance']['commit']}`, {draft['provenance']['date']},"
        f" {draft['prompts']} held-out prompts.\n"
    )
