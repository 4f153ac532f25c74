"""Small arithmetic formulas over axis names: shapes, limits, bytes and operations of a card."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType

_FUNCTIONS = {"min": min, "max": max, "ceil8": lambda bits: (bits + 7) // 8}
_ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.USub,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Pow,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    return isinstance(node, _ALLOWED)


@dataclass(frozen=True)
class Formula:
    """Integer arithmetic over names, e.g. `4*B*W*K + E*B*K*H`.

    The text is what documentation and the HLS generator print; calling the formula evaluates it.
    Only `+ - * // **`, `min`, `max` and `ceil8` (bits to bytes) exist, so a card stays data.
    """

    text: str
    names: frozenset[str] = field(init=False, compare=False)
    _code: CodeType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tree = ast.parse(self.text, mode="eval")
        for node in ast.walk(tree):
            if not _is_arithmetic(node):
                raise ValueError(f"formula {self.text!r} uses {ast.unparse(node)!r}")
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        object.__setattr__(self, "names", frozenset(names - _FUNCTIONS.keys()))
        object.__setattr__(self, "_code", compile(tree, "<formula>", "eval"))

    def __call__(self, values: Mapping[str, int]) -> int:
        """The value with `values` bound; an unbound name is a KeyError."""
        scope = {name: values[name] for name in self.names}
        # The syntax tree was checked above and no builtins are in reach.
        return int(eval(self._code, {"__builtins__": {}}, {**_FUNCTIONS, **scope}))


@dataclass(frozen=True)
class Dim:
    """One array dimension: a product of names plus a constant, solvable for one unknown name."""

    text: str
    factors: tuple[str, ...] = field(init=False, compare=False)
    offset: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        product, _, offset = self.text.partition("+")
        parts = [part.strip() for part in product.split("*")]
        if len(parts) == 1 and parts[0].isdigit():
            object.__setattr__(self, "factors", ())
            object.__setattr__(self, "offset", int(parts[0]) - 1)
            return
        object.__setattr__(self, "factors", tuple(parts))
        object.__setattr__(self, "offset", int(offset) if offset else 0)

    def unknowns(self, known: Mapping[str, int]) -> tuple[str, ...]:
        """Names of this dimension that are not bound yet."""
        return tuple(name for name in self.factors if name not in known)

    def solve(self, size: int, known: Mapping[str, int]) -> int | None:
        """Value of the one unbound factor for which the dimension is `size`; None if there is none.

        A zero among the known factors leaves the unknown undetermined; that counts as none.
        """
        product = 1
        for name in self.factors:
            product *= known.get(name, 1)
        rest = size - self.offset
        if product == 0 or rest < 0 or rest % product:
            return None
        return rest // product

    def size(self, known: Mapping[str, int]) -> int:
        """The dimension's size when every factor is bound."""
        product = 1
        for name in self.factors:
            product *= known[name]
        return product + self.offset
