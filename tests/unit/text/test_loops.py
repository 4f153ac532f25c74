"""Whether a generated text loops: repeated 8-grams, counted up to the end token."""

from __future__ import annotations

import pytest

from aerie.text.loops import MOST_REPEATED, does_not_loop, repeated_share

END = 0


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([], 0.0),
        ([5] * 7, 0.0),  # no 8-gram at all
        ([5] * 8, 0.0),  # one, for the first time
        ([5] * 9, 0.5),
        ([5] * 107, 0.99),
        (list(range(1, 200)), 0.0),
        ([*range(1, 9), *range(1, 9)], 1 / 9),
        # What stands behind the end token is not text.
        ([*range(1, 50), END, *[5] * 100], 0.0),
        ([5] * 9 + [END, *range(10, 200)], 0.5),
    ],
)
def test_share_of_repeated_grams(tokens: list[int], share: float) -> None:
    assert repeated_share(tokens, (END,)) == pytest.approx(share)
    assert does_not_loop(tokens, (END,)) == (share <= MOST_REPEATED)


def test_the_limit_itself_does_not_loop() -> None:
    assert does_not_loop([*range(1, 81), *range(1, 28)], ())  # 20 grams of 100 stood before
    assert not does_not_loop([*range(1, 81), *range(1, 29)], ())  # 21 of 101
