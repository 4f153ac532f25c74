"""Law: a link on a page leads to a file that is there, and to a heading that the file has."""

import re
from pathlib import Path

import pytest

from tests.laws.tree import ROOT

PAGES = ("*.md", "docs/**/*.md", "scripts/**/*.md", "reports/*.md")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.S | re.M)
_HEADING = re.compile(r"^#+ (.*)$", re.M)


def anchors(page: str) -> set[str]:
    """What headings are linked by: lower case, blanks as dashes, other signs left out."""
    found = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(page))
    return {title.strip().replace(" ", "-") for title in found}


def broken(path: Path, page: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target, heading in _LINK.findall(_CODE.sub("", page)):
        other = (path.parent / target).resolve() if target else path
        if not other.exists() and other != path:
            found.append(f"{path}: {target} does not exist")
        elif heading and heading not in anchors(page if other == path else other.read_text()):
            found.append(f"{path}: {target} has no heading #{heading}")
    return found


def test_every_link_leads_somewhere() -> None:
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern)]
    violations = [line for path in pages for line in broken(path, path.read_text("utf-8"))]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("link", ["nowhere.md", "README.md#no-such-heading", "#nor-here"])
def test_law_bites(link: str) -> None:
    assert broken(ROOT / "page.md", f"# A\n[text]({link})\n")


def test_a_link_in_code_is_none() -> None:
    assert not broken(ROOT / "page.md", "`[x](nowhere.md)`\n[a](#a-b)\n[b](README.md)\n# A b\n")
