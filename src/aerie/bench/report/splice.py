"""Pages of which a part is generated, between two comments that name it."""

from __future__ import annotations


def spliced(page: str, name: str, made: str) -> str:
    """A page whose part of that name is made anew; the rest is written by hand."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{made}{end}{rest.partition(end)[2]}"
