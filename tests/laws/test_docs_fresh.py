"""Law: a generated page is what its generator writes today."""

import importlib
from dataclasses import dataclass
from functools import cache

import pytest

from aerie.bench.report.pages import without_ages
from aerie.bench.report.write import Judges
from aerie.cli.report import judges
from tests.laws.tree import ROOT


@dataclass(frozen=True)
class Page:
    """`module.function()` returns the text of `path`; `command` writes it."""

    path: str
    module: str
    function: str
    command: str = ""  # python -m module if empty


PAGES = (
    Page("docs/kernels.md", "aerie.kernels.document", "render_markdown"),
    Page("docs/kernel_abi.json", "aerie.kernels.document", "render_abi"),
    Page("docs/cli.md", "aerie.cli.document", "render"),
    Page("docs/images/round.svg", "aerie.cli.picture", "render"),
    Page("docs/models.md", "aerie.models.document", "render"),
)


def stale(page: Page, written: str | None, rendered: str) -> list[str]:
    """The first line in which the page differs from what its generator writes."""
    remedy = f"run {page.command or f'python -m {page.module}'}"
    if written is None:
        return [f"{page.path}:1: does not exist; {remedy}"]
    if written == rendered:
        return []
    old, new = written.splitlines(), rendered.splitlines()
    shared = min(len(old), len(new))
    differing = (i for i in range(shared) if old[i] != new[i])
    return [f"{page.path}:{next(differing, shared) + 1}: is out of date; {remedy}"]


# `module.function()` returns many files by path: what the cards generate for C++.
SETS = (("aerie.kernels.hls.generate", "pages"),)


# The laws import nothing; this one must, because only the generator knows what it writes.
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_page_is_fresh(page: Page) -> None:
    rendered = getattr(importlib.import_module(page.module), page.function)()
    path = ROOT / page.path
    violations = stale(page, path.read_text("utf-8") if path.exists() else None, rendered)
    assert not violations, violations[0]


@pytest.mark.parametrize("path", ["README.md", "docs/measured.md"])
def test_measured_page_is_fresh(path: str) -> None:
    """Every figure is what the raw rows give. That sources have changed since is no fault."""
    page = Page(path, "aerie.cli.report", "judges", "aerie report")
    table = next(one for one in _judges().tables if one.path == path)
    written, rendered = (ROOT / path).read_text("utf-8"), table.render(ROOT)
    violations = stale(page, without_ages(written), without_ages(rendered))
    assert not violations, violations[0]


@cache
def _judges() -> Judges:
    return judges(ROOT)


@pytest.mark.parametrize(("module", "function"), SETS)
def test_set_is_fresh(module: str, function: str) -> None:
    rendered = getattr(importlib.import_module(module), function)()
    violations = []
    for name, text in rendered.items():
        path = ROOT / name
        written = path.read_text("utf-8") if path.exists() else None
        violations += stale(Page(name, module, function), written, text)
    assert not violations, violations[0]


@pytest.mark.parametrize(
    ("written", "line"), [(None, 1), ("", 1), ("a\nb\n", 3), ("a\nX\nc\n", 2), ("a\nb\nc\nd\n", 4)]
)
def test_law_bites(written: str | None, line: int) -> None:
    page = Page("docs/page.md", "aerie.generator", "render")
    assert stale(page, written, "a\nb\nc\n")[0].startswith(f"docs/page.md:{line}:")
    assert "python -m aerie.generator" in stale(page, written, "a\nb\nc\n")[0]


def test_fresh_page_is_legal() -> None:
    assert stale(PAGES[0], "a\nb\n", "a\nb\n") == []
