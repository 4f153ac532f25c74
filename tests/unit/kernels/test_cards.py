"""Cards as data: formulas evaluate, names are those of the contract, limits can be printed."""

import json
from pathlib import Path

import pytest

from aerie.errors import UnknownNameError
from aerie.kernels import catalogue, load
from aerie.kernels.binding import bind
from aerie.kernels.card import Card
from aerie.kernels.cases import cases_for
from aerie.kernels.formula import Dim, Formula

CARDS = tuple(catalogue().values())
NAMES = {
    "K1": ["draft_tree_layer_score_index_gen_op"],
    "K2": ["update_cumu_draft_state"],
    "K3": ["calculate_work_deltas"],
    "K4": ["fused_tree_mask_operator"],
    "K5": ["convert_logits_to_probas"],
    "K6": ["draft_tree_reject_sample", "sample_target_tokens"],
    "K7": ["update_verify_result"],
    "K8": ["compute_kv_indices"],
    "K9": ["calculate_verify_kv_qo_ms"],
    "K10a": ["assign_draft_cache_locs_operator"],
    "K10b": ["assign_req_to_token_pool_operator"],
    "K10c": ["update_node_data"],
    "K11": ["draft_replay_input_operator"],
    "K12": ["extend_replay_input_operator"],
    "K13": ["build_active_slots"],
    "R1": ["place_verify_rows"],
    "R2": ["place_prompt_rows"],
    "R3": ["place_draft_rows"],
    "R4": ["place_draft_levels"],
    "R5": ["mark_draft_paths"],
    "R6": ["best_draft_children"],
    "R7": ["grow_draft_layer"],
    "R8": ["choose_best_nodes"],
    "R9": ["choose_planned_nodes"],
    "R10": ["note_chosen_nodes"],
    "R11": ["move_kv_slots"],
    "R12": ["hand_over_verdict"],
    "R13": ["find_text_path"],
    "R14": ["merge_text_path"],
    "R15": ["toss_coins"],
    "R16": ["score_target_tokens"],
}


def test_names_and_numbers_are_those_of_the_contract() -> None:
    found: dict[str, list[str]] = {}
    for card in CARDS:
        found.setdefault(card.number, []).append(card.name)
    assert found == NAMES
    assert list(found) == list(NAMES), "K before R, each in order"


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
