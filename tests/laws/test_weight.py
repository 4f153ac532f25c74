"""Law: the tracked tree stays light enough to clone for a look."""

from collections.abc import Mapping

import pytest

from tests.laws.tree import ROOT, repository_files

MOST = 49_400_000  # bytes of all tracked files; the built-in pair is two thirds of it
SHOWN = 8


def overweight(sizes: Mapping[str, int]) -> list[str]:
    """Nothing, or what the tree weighs and its heaviest files."""
    total = sum(sizes.values())
    if total <= MOST:
        return []
    heaviest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
    summary = f"{total:,} bytes are tracked, limit {MOST:,}; the heaviest files:"
    return [summary, *(f"{name}: {sizes[name]:,}" for name in heaviest)]


def test_repository_obeys() -> None:
    names = repository_files()
    if names is None:
        pytest.skip("not a git checkout, so which files are tracked is unknown")
    paths = [ROOT / name for name in names]
    sizes = {p.relative_to(ROOT).as_posix(): p.stat().st_size for p in paths if p.is_file()}
    violations = overweight(sizes)
    assert not violations, "\n".join(violations)


def test_law_bites() -> None:
    heavy = {"a.bin": MOST - 10, "b.md": 11}
    assert overweight(heavy)[:2] == ["49,400,001 bytes are tracked, limit 49,400,000; the heaviest"
                                     " files:", "a.bin: 49,399,990"]  # fmt: skip
    assert overweight({**heavy, "b.md": 10}) == []
