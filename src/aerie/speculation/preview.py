"""A preview as a value: passes over a part of the KV that come before a draft."""

from __future__ import annotations

from dataclasses import dataclass

PASSES = (1, 2, 4)  # of a preview: few, for each has a graph


@dataclass(frozen=True)
class Preview:
    """Passes over a part of the KV before a draft, each behind a draft of its own."""

    n_passes: int
    widths: tuple[int, ...]  # nodes that each level of those drafts feeds
    rows: int  # verified in each pass, of one request


@dataclass(frozen=True)
class PreviewRule:
    """When previews are considered, and what they may be."""

    threshold: int  # mean context from which on
    n_near: int  # positions a preview looks at
    longest_run: int  # tokens it may leave
    most_passes: int

    def fitting(self, n_passes: int, widths: tuple[int, ...], rows: int) -> Preview | None:
        """A preview of at most so many passes whose longest run fits; None: not even one does."""
        most = min(n_passes, self.most_passes, self.longest_run // (len(widths) + 2))
        return Preview(most, widths, rows) if most else None
