"""What a tree kernel is: a card that names its axes, arrays, limits, ties, tolerance and cost.

A card is data. The registry checks calls against it, parity compares by its tolerance, the bench
and the budget model read its cost, and the documentation and the C++ config are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from aerie.kernels.formula import Dim, Formula
from aerie.kernels.status import Status

REQUIRED = object()
"""Default of a scalar that has none."""


@dataclass(frozen=True)
class Axis:
    """A named size with the bounds every backend must support."""

    name: str
    low: int
    high: int
    meaning: str


@dataclass(frozen=True)
class Scalar:
    """A value that lives on the host: known before the launch, checked always.

    `kind` is `int`, `bool` or `ints` (an ascending tuple of positive integers: graph buckets).
    """

    name: str
    kind: str
    low: int
    high: int
    meaning: str
    default: object = REQUIRED


@dataclass(frozen=True)
class Port:
    """One array: `in`, `out`, or `inout` (written in place).

    `shape` holds one dimension text per axis. Dimensions of inputs are products of names plus a
    constant and bind the axes; those of outputs may be any formula of axes and scalars.
    `fill` is what entries beyond the ragged count, and entries of a refused request, hold.
    """

    name: str
    kind: str
    dtypes: tuple[str, ...]
    shape: tuple[str, ...]
    meaning: str
    optional: bool = False
    fill: int = 0

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of an input, parsed once."""
        return tuple(Dim(text) for text in self.shape)

    @cached_property
    def sizes(self) -> tuple[Formula, ...]:
        """The dimensions of an output, parsed once."""
        return tuple(Formula(text) for text in self.shape)


class Call:
    """Ports and scalars of a card as fields, in ABI order; those of base classes come first.

    A kernel's class says its number, name and family, and in its docstring what it does. An
    instance is one call: a field holds what was given. What was not is None, and a scalar its
    default. Where a kernel has a check, `status` holds the words that it returned. The rest of its
    contract is its `card`.
    """

    number: ClassVar[str]
    name: ClassVar[str]
    family: ClassVar[str]
    card: ClassVar[Card]
    ports: ClassVar[tuple[Port, ...]] = ()
    scalars: ClassVar[tuple[Scalar, ...]] = ()

    def __init_subclass__(cls, number: str = "", name: str = "", family: str = "round") -> None:
        cls.number, cls.name, cls.family = number, name, family
        bases = [base for base in cls.__bases__ if issubclass(base, Call)]
        ports = [port for base in bases for port in base.ports]
        scalars = [entry for base in bases for entry in base.scalars]
        for name, field in list(vars(cls).items()):
            if isinstance(field, Port):
                ports.append(replace(field, name=name))
                setattr(cls, name, None)
            elif isinstance(field, Scalar):
                scalars.append(replace(field, name=name))
                setattr(cls, name, None if field.default is REQUIRED else field.default)
        cls.ports, cls.scalars = tuple(ports), tuple(scalars)
        if "card" in vars(cls):
            cls.card = replace(cls.card, call=cls)


@dataclass(frozen=True)
class Limit:
    """A host-checked inequality between formulas: `value <= bound`."""

    value: Formula
    bound: Formula
    meaning: str


@dataclass(frozen=True)
class Refusal:
    """A data-dependent refusal: its status word and the limit an error message names."""

    status: Status
    limit: str
    meaning: str


@dataclass(frozen=True)
class Cost:
    """Fewest bytes through memory and the operations of one call, as formulas of the axes."""

    bytes_read: Formula
    bytes_written: Formula
    operations: Formula


@dataclass(frozen=True)
class Ulps:
    """Allowed distance of a float output from the reference, in units in the last place.

    Of sums that may cancel, `of_largest`: in those of the largest entry of the output.
    """

    cpu: int = 0
    gpu: int = 0
    of_largest: bool = False


EXACT = Ulps()


@dataclass(frozen=True)
class Card:
    """The contract of one kernel. Anything a caller, a backend or a report needs is here."""

    axes: tuple[Axis, ...]
    cost: Cost
    # The class that holds the card sets this, for ports and scalars are its fields.
    call: type[Call] = Call
    ties: str = "None: integers."
    version: int = 1
    limits: tuple[Limit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    # By output name; integers, booleans and whatever is not listed are exact in every dtype.
    tolerances: Mapping[str, Ulps] | None = None
    # Groups of optional inputs of which exactly one whole group must be given.
    alternatives: tuple[tuple[str, ...], ...] = ()
    # Optional inputs that only make sense together.
    companions: tuple[tuple[str, ...], ...] = ()
    defaults: Mapping[str, int] | None = None
    # What a caller promises about the data, where a kernel of the round trusts those before it:
    # a call that breaks it has no defined result. Kernels that assume nothing refuse instead.
    assumes: str = ""

    @property
    def number(self) -> str:
        """K1 to K13 are the contract of the tree, R1 onwards the rest of a round."""
        return self.call.number

    @property
    def name(self) -> str:
        """Of the kernel, in every backend."""
        return self.call.name

    @property
    def family(self) -> str:
        """Of kernels that are built together."""
        return self.call.family

    @cached_property
    def summary(self) -> str:
        """What the kernel does, as its call's docstring says."""
        return " ".join((self.call.__doc__ or "").split())

    @property
    def ports(self) -> tuple[Port, ...]:
        """Arrays that are read, written and returned, in ABI order."""
        return self.call.ports

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """Values that live on the host."""
        return self.call.scalars

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """Ports a caller passes, state included, in ABI order."""
        return tuple(port for port in self.ports if port.kind != "out")

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """Ports a call returns, in ABI order."""
        return tuple(port for port in self.ports if port.kind == "out")

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Names of the arrays written in place."""
        return tuple(port.name for port in self.ports if port.kind == "inout")

    @cached_property
    def arguments(self) -> frozenset[str]:
        """Every keyword a call may carry."""
        return frozenset([p.name for p in self.inputs] + [s.name for s in self.scalars])

    @cached_property
    def required(self) -> frozenset[str]:
        """Keywords a call must carry."""
        arrays = [port.name for port in self.inputs if not port.optional]
        return frozenset(arrays + [s.name for s in self.scalars if s.default is REQUIRED])

    def tolerance(self, output: str) -> Ulps:
        """Allowed distance of an output from the reference."""
        return (self.tolerances or {}).get(output, EXACT)
