"""Cards as data: formulas evaluate, names are those of the contract, limits can be printed."""

import ast
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

from aerie.errors import UnknownNameError
from aerie.kernels import catalogue, load, numpy_cpu, pytorch, reference
from aerie.kernels.binding import bind
from aerie.kernels.call import takes_call
from aerie.kernels.card import Call, Card
from aerie.kernels.cards.dtypes import F32
from aerie.kernels.cards.fields import may_read, reads, returns, scalar
from aerie.kernels.cases import cases_for
from aerie.kernels.formula import Dim, Formula

CARDS = tuple(catalogue().values())
TABLES = {"reference": reference.KERNELS, "numpy": numpy_cpu.KERNELS, "pytorch": pytorch.KERNELS}


def test_numbers_have_no_gap() -> None:
    for family in "KR":
        numbers = (card.number for card in CARDS if card.number.startswith(family))
        digits = {int("".join(filter(str.isdigit, number))) for number in numbers}
        assert digits == set(range(1, max(digits) + 1))


@pytest.mark.parametrize("backend", TABLES)
def test_backends_take_the_call_of_the_card(backend: str) -> None:
    """Its fields are checked where they are read: a card that renames one is renamed everywhere."""
    for name, entry in TABLES[backend].items():
        for function in filter(None, (entry.run, entry.check)):
            assert get_type_hints(function)["call"] is catalogue()[name].call, (name, function)


@pytest.mark.parametrize("backend", TABLES)
def test_backends_read_nothing_but_what_a_call_holds(backend: str) -> None:
    """An output is a field of the card, and nothing in a call; `status` is what a check said."""
    for name, entry in TABLES[backend].items():
        card = catalogue()[name]
        for function, more in ((entry.run, {"status"}), (entry.check, set())):
            read = fields_read(function) if function else set()
            assert read <= card.arguments | more, (name, function)


def fields_read(function: Callable[..., object]) -> set[str]:
    """Attributes of `call` in the source of an entry point."""
    tree = ast.parse(inspect.getsource(inspect.unwrap(function)))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {a.attr for a in attributes if isinstance(a.value, ast.Name) and a.value.id == "call"}


class Pair(Call):
    weight = reads(F32, ("N",), "of each")
    bias = may_read(F32, ("N",), "added")
    count = scalar("int", 0, 9, "how many")
    twice = scalar("bool", 0, 1, "whether both", default=False)


class Triple(Pair):
    total = returns(F32, ("N",), "sums")


def test_a_call_lists_its_fields_with_those_of_its_base_first() -> None:
    assert [port.name for port in Triple.ports] == ["weight", "bias", "total"]
    assert [entry.name for entry in Triple.scalars] == ["count", "twice"]
    assert [port.name for port in Pair.ports] == ["weight", "bias"]


def test_a_call_holds_what_was_given_and_the_rest_by_default() -> None:
    @takes_call
    def run(call: Triple) -> dict[str, object]:
        return {"seen": (call.weight, call.bias, call.count, call.twice)}

    assert run(weight=1, count=2)["seen"] == (1, None, 2, False)
    assert run(weight=1, count=2, bias=3, twice=True)["seen"] == (1, 3, 2, True)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_cost_and_refusal_limits_evaluate_for_every_legal_case(card: Card) -> None:
    for case in cases_for(card.name):
        if case.expects:
            continue
        sizes = bind(card, case.build())
        for formula in (card.cost.bytes_read, card.cost.bytes_written, card.cost.operations):
            assert formula(sizes) >= 0, f"{case.name}: {formula.text}"
        for refusal in card.refusals:
            if refusal.limit.isidentifier() and refusal.limit not in sizes:
                assert refusal.limit in {port.shape[0] for port in card.inputs if port.optional}
            else:
                assert Formula(refusal.limit)(sizes) >= 0


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_results_carry_the_names_of_the_card(card: Card) -> None:
    case = next(case for case in cases_for(card.name) if case.expects is None)
    result = load("reference")[card.name](**case.build())
    assert list(result._fields) == [port.name for port in card.outputs]


def test_abi_file_lists_every_port_in_order() -> None:
    abi = json.loads(Path("docs/kernel_abi.json").read_text(encoding="utf-8"))
    for card in CARDS:
        assert [port[1] for port in abi[card.name]["ports"]] == [port.name for port in card.ports]


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean calculate_work_deltas"):
        catalogue()["calculate_work_delta"]
    with pytest.raises(UnknownNameError, match="did you mean pytorch"):
        load("pytorh")
    with pytest.raises(UnknownNameError, match="did you mean work_scores"):
        load("reference")["calculate_work_deltas"](work_score=1, node_top_k=1, verify_num=1)


@pytest.mark.parametrize("text", ["a.b", "__import__('os')", "[1]", "a if b else c", "lambda: 1"])
def test_a_formula_is_arithmetic_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="uses"):
        Formula(text)


@pytest.mark.parametrize(
    ("text", "size", "known", "value"),
    [
        ("W*K", 12, {"W": 3}, 4),
        ("W*K", 13, {"W": 3}, None),
        ("B+1", 1, {}, 0),
        ("B+1", 0, {}, None),
        ("B*W", 0, {"B": 0}, None),
        ("4", 4, {}, 1),
    ],
)
def test_a_dimension_solves_for_its_unknown(
    text: str, size: int, known: dict[str, int], value: int | None
) -> None:
    assert Dim(text).solve(size, known) == value
