"""The audit of a server as text: a line for each step, then what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def table_of(found: Mapping[str, Any]) -> Table:
    """A line for each step."""
    from rich.table import Table

    table = Table("sampling", "step", "texts", "differ", "accepted", "prefix hits", "seconds")
    for step in found["steps"]:
        differing = step.get("differing")
        shown = "-" if differing is None else f"[red]{differing}[/]" if differing else "0"
        length, hits = step["acceptance_length"], step["prefix_hits"]
        table.add_row(
            step["sampling"],
            step["step"],
            str(step["texts"]),
            shown,
            "-" if length is None else f"{length:.2f}",
            _percent(hits),
            f"{step['seconds']:.1f}",
        )
    return table


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """Which servers were asked, where texts part, the distribution, loops, and the sum of it."""
    lines = [
        f"{server['url']}, model {server['model']}, version {server['version']}"
        for server in found["servers"]
    ]
    is_taken = found["takes_speculative_false"]
    lines.append(f"the first server {'takes' if is_taken else 'does not take'} speculative: false")
    for step in found["steps"]:
        first = step.get("first_difference")
        if first is not None:
            gap = first["logprob_gap"]
            close = "" if gap is None else f", gap of the two likeliest tokens {gap:.2e}"
            lines.append(
                f"{step['sampling']}, {step['step']}: prompt {first['prompt']} parts at character"
                f" {first['character']}: {first['alone']!r} alone, {first['here']!r} here{close}"
            )
    lines.append(_distribution(found["chi_square"]))
    shares = (f"{name} {_percent(share)}" for name, share in found["repeated_8_grams"].items())
    lines.append(f"8-grams that stood in their text before: {', '.join(shares)}")
    return [*lines, f"{found['differing']} of {found['compared']} texts differ from those alone"]


def _distribution(tested: Mapping[str, Any] | None) -> str:
    if tested is None:
        return "the distribution was not tested: nothing here is without speculation"
    one, other = tested["draws"]
    verdict = "kept" if tested["p_value"] >= tested["least_p"] else "REJECTED"
    return (
        f"one distribution for {one} draws with speculation and {other} without: {verdict}"
        f" (chi-square {tested['statistic']:.1f} on {tested['freedom']} degrees of freedom,"
        f" {tested['outcomes']} outcomes, p {tested['p_value']:.3f})"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
