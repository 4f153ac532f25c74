"""The audit of servers as text, and the test whether two samples come from one distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aerie.bench.audit.certificate import red
from aerie.bench.record import shown

if TYPE_CHECKING:
    from rich.table import Table

LEAST_EXPECTED = 5.0  # Cochran's rule: below it the statistic is not chi-square
LEAST_P = 1e-3  # one audit in a thousand of a faultless server is rejected


@dataclass(frozen=True)
class Homogeneity:
    """Outcome of one test; without a second cell there is nothing to tell apart."""

    draws: tuple[int, int]
    statistic: float
    freedom: int
    p_value: float


def compare_samples(one: Counter[str], other: Counter[str]) -> Homogeneity:
    """Test two samples of the same kind of outcome; rare ones are joined until enough is expected.

    Outcomes are joined by how often both samples together have them, so that neither decides.
    """
    draws = one.total(), other.total()
    whole = sum(draws)
    share = min(draws) / whole
    cells: list[tuple[int, int]] = []
    pool = (0, 0)
    for outcome, n_both in sorted((one + other).items(), key=lambda item: (item[1], item[0])):
        pool = (pool[0] + one[outcome], pool[1] + n_both)
        if pool[1] * share >= LEAST_EXPECTED:
            cells.append(pool)
            pool = (0, 0)
    if pool[1] and cells:
        last = cells.pop()
        cells.append((last[0] + pool[0], last[1] + pool[1]))
    statistic = 0.0
    for n_one, n_both in cells:
        for n, size in ((n_one, draws[0]), (n_both - n_one, draws[1])):
            expected = n_both * size / whole
            statistic += (n - expected) ** 2 / expected
    freedom = max(len(cells) - 1, 0)
    if not freedom:
        return Homogeneity(draws, statistic, freedom, 1.0)
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    tail = float(torch.special.gammaincc(halves[0], halves[1]))  # P(chi-square > statistic)
    return Homogeneity(draws, statistic, freedom, tail)


def table_of(found: Mapping[str, Any]) -> Table:
    """A line for each step."""
    rows = []
    for step in found["steps"]:
        length = step["acceptance_length"]
        told = {
            "differ": red(step["differing"]) if "differing" in step else "-",
            "accepted": "-" if length is None else f"{length:.2f}",
            "prefix hits": _percent(step["prefix_hits"]),
        }
        rows.append({**step, **told})
    names = ("sampling", "step", "texts", "differ", "accepted", "prefix hits")
    return shown({**{name: f"{{{name}}}" for name in names}, "seconds": "{seconds:.1f}"}, rows)


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
