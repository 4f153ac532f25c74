"""A round in words: tokens that are part of a character bring their bytes along."""

from typing import cast

from aerie.engine.round_tree import RoundNode, RoundTree
from aerie.server.rounds import describe_round
from aerie.text.tokenizer import Tokenizer

PIECES = [b"(", "ä".encode()[:1], "ä".encode()[1:]]


class Pieces:
    def token_bytes(self, token_id: int) -> bytes:
        return PIECES[token_id]


def test_part_of_a_character_has_its_bytes() -> None:
    nodes = (RoundNode(0, -1, 1.0, True), RoundNode(1, 0, 0.51239, True))
    told = describe_round(RoundTree(nodes, 1, 2), cast(Tokenizer, Pieces()))
    root, half = told["nodes"]
    assert root == {"text": "(", "parent": -1, "score": 1.0, "is_accepted": True}
    assert (half["text"], half["bytes"], half["score"]) == ("\ufffd", [0xC3], 0.5124)
    assert told["bonus"] == {"text": "\ufffd", "bytes": [0xA4]}
    assert told["n_accepted"] == 1
