"""Tree visibility by walking up, and FlashInfer's mask packing written out bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

Bits = list[bool]
Matrix = list[list[bool]]


def ancestors(parents: Sequence[int], row: int) -> list[int]:
    """The row and everything above it, root first."""
    found = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found[::-1]


def visibility(parents: Sequence[int], prefix: int) -> Matrix:
    """[rows][prefix + rows]: the whole prefix, and of the tree each row's own chain."""
    matrix = []
    for row in range(len(parents)):
        chain = ancestors(parents, row)
        matrix.append([True] * prefix + [column in chain for column in range(len(parents))])
    return matrix


def ancestor_words(parents: Sequence[int], row: int) -> list[int]:
    """The chain as four 32-bit words: row j is bit j mod 32 of word j div 32."""
    words = [0, 0, 0, 0]
    for column in ancestors(parents, row):
        words[column // 32] += 2 ** (column % 32)
    return words


def pack(matrix: Matrix) -> list[int]:
    """Rows end to end, bit i of the stream is bit i mod 8 of byte i div 8; the pad is 0."""
    stream = [bit for row in matrix for bit in row]
    packed = [0] * ((len(stream) + 7) // 8)
    for index, bit in enumerate(stream):
        if bit:
            packed[index // 8] += 1 << (index % 8)
    return packed


def unpack(packed: Sequence[int], rows: int, columns: int) -> Matrix:
    """The matrix back; raises if a pad bit is set."""
    stream = [bool(byte >> bit & 1) for byte in packed for bit in range(8)]
    assert not any(stream[rows * columns :]), "a pad bit is set"
    return [stream[row * columns : (row + 1) * columns] for row in range(rows)]


def pack_batch(matrices: Sequence[Matrix]) -> tuple[list[int], list[int]]:
    """Bytes of all requests, each on a fresh byte, and where each begins."""
    starts, packed = [0], list[int]()
    for matrix in matrices:
        packed += pack(matrix)
        starts.append(len(packed))
    return starts, packed
