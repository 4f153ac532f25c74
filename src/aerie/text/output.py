"""Output: the text of one request as its tokens arrive, ended by the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerie.text.stops import StopStrings
from aerie.text.stream import TextStream
from aerie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextDelta:
    """What a group of tokens added to the text.

    `n_tokens` of the group belong to the output: all of it, or those up to the one that completed
    the stop string. The rest of the group never happened.
    """

    text: str
    n_tokens: int
    stop: str | None


class TextOutput:
    """Detokenising and stop strings in one.

    The joined text, the stop string and the number of tokens do not depend on how the tokens were
    grouped into pushes, so a run of accepted draft tokens ends where plain decoding ends.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops)

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Take the next ids; nothing may be pushed after a stop."""
        if not self._has_stops:
            return TextDelta(self._stream.push(ids), len(ids), None)
        texts = []
        for n_tokens, token_id in enumerate(ids, 1):
            result = self._stops.push(self._stream.push([token_id]))
            texts.append(result.emit)
            if result.matched is not None:
                return TextDelta("".join(texts), n_tokens, result.matched)
        return TextDelta("".join(texts), len(ids), None)

    def finish(self) -> TextDelta:
        """What still waited, when the tokens end for another reason than a stop string.

        A half character that ends the text may complete a stop string, as U+FFFD. After a stop
        nothing waits.
        """
        if self._stops.matched is not None:
            return TextDelta("", 0, self._stops.matched)
        result = self._stops.push(self._stream.finish())
        return TextDelta(result.emit + self._stops.finish(), 0, result.matched)
