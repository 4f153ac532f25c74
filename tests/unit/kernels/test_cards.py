"""Cards as data: formulas evaluate, names are those of the contract, limits can be printed."""

import inspect
import json
from pathlib import Path

import pytest

from aerie.errors import UnknownNameError
from aerie.kernels import catalogue, load, numpy_cpu, pytorch, reference
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.cases import cases_for
from aerie.kernels.formula import Dim, Formula

CARDS = tuple(catalogue().values())
TABLES = {"reference": reference.KERNELS, "numpy": numpy_cpu.KERNELS, "pytorch": pytorch.KERNELS}


def test_numbers_have_no_gap() -> None:
    digits = {int("".join(filter(str.isdigit, card.number))) for card in CARDS}
    assert digits == set(range(1, max(digits) + 1))


@pytest.mark.parametrize("backend", TABLES)
def test_backends_take_the_arguments_of_the_card(backend: str) -> None:
    """By name: an array that a card gains, loses or renames is one in every backend, or fails."""
    for name, entry in TABLES[backend].items():
        card = catalogue()[name]
        for function, more in (
            (entry.run, {"status"} if entry.check else set()),
            (entry.check, set()),
        ):
            if function is None:
                continue
            parameters = inspect.signature(function).parameters.values()
            named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
            expected = card.arguments | more
            assert named <= expected if takes_any else named == expected, (name, function)
            needed = {
                p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty
            }
            assert needed <= card.required | more, (name, function)


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
