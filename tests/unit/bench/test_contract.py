"""A contract is read strictly, and its digest changes with everything that matters."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.contract import parse_contract, read_contract
from aerie.bench.experiment import Experiment
from aerie.bench.gpu import contract_page
from aerie.bench.rows import read_rows
from aerie.bench.summary import summarise
from aerie.errors import AerieError

CONTRACTS = sorted(Path("evidence/contracts").glob("*.toml"))
REHEARSAL = Path("evidence/contracts/rehearsal_cpu.toml")


def values() -> dict[str, Any]:
    return copy.deepcopy(tomllib.loads(REHEARSAL.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_every_shipped_contract_is_readable_and_has_points(path: Path) -> None:
    contract = read_contract(path)
    assert contract.name == path.stem
    assert contract.places()
    assert contract.digest in contract_page(contract, str(path))


@pytest.mark.parametrize(
    ("place", "key", "word"),
    [
        ((), "prompt", "prompt"),
        (("model",), "quantisation", "quantisation"),
        (("policies", "spec-3"), "node_topk", "node_top_k"),
        (("scenarios", 0), "batch", "batches"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(
    place: tuple[Any, ...], key: str, word: str
) -> None:
    given = values()
    table: Any = given
    for part in place:
        table = table[part]
    table[key] = 1
    with pytest.raises(AerieError, match=word):
        parse_contract(given)


def test_a_missing_key_and_an_unknown_policy_are_errors() -> None:
    given = values()
    del given["model"]["dtype"]
    with pytest.raises(AerieError, match="dtype"):
        parse_contract(given)
    given = values()
    given["scenarios"][0]["policies"] = ["plain", "spec-9"]
    with pytest.raises(AerieError, match="spec-9"):
        parse_contract(given)
    given = values()
    given["measure"]["least_share"] = 0.5
    with pytest.raises(AerieError, match="not ask less"):
        parse_contract(given)
    with pytest.raises(AerieError, match="no contract"):
        read_contract(Path("evidence/contracts/none.toml"))


def test_the_digest_is_of_the_terms_not_of_the_file() -> None:
    own = parse_contract(values())
    assert own.digest == parse_contract(values()).digest
    given = values()
    given["policies"]["spec-3"]["verify_num"] = 11
    assert parse_contract(given).digest != own.digest


def test_points_are_named_by_scenario_or_by_size() -> None:
    contract = parse_contract(values())
    assert [str(place) for place in contract.places(("single",))] == ["single 1x256"]
    assert [str(place) for place in contract.places(("2x256",))] == ["batch 2x256"]
    with pytest.raises(AerieError, match="9x9"):
        contract.places(("9x9",))


def small() -> dict[str, Any]:
    given = values()
    given["measure"]["turns"] = 2
    given["scenarios"] = [
        {
            "name": "single",
            "batches": [2],
            "contexts": [48],
            "policies": ["plain", "spec-3"],
            "new_tokens": 6,
        }
    ]
    return given


def test_a_rehearsal_writes_rows_and_skips_what_is_finished(tmp_path: Path) -> None:
    contract = parse_contract(small())
    notes: list[str] = []
    raw = tmp_path / "raw.csv"
    session = Experiment(contract, raw, "0" * 64, notes.append)
    assert notes[0].startswith("ceiling")
    session.run(contract.places())
    rows = read_rows(raw)
    assert {(row.policy, row.turn) for row in rows} == {
        (policy, turn) for policy in ("plain", "spec-3") for turn in (0, 1)
    }
    assert all(row.tokens >= 12 and row.active_least == 2 for row in rows)
    assert all(row.contract == contract.digest and row.ceiling_ms > 0 for row in rows)
    found = summarise(rows)
    plain, speculative = found["points"]
    assert plain["same_text_every_turn"] and speculative["same_text_every_turn"]
    assert speculative["mean_acceptance_length"] > 1.0 == plain["mean_acceptance_length"]
    session.run(contract.places())
    assert "skipped" in notes[-1]
    assert len(read_rows(raw)) == len(rows)
    changed = Experiment(parse_contract(small() | {"name": "other"}), raw, "0" * 64, notes.append)
    assert not changed.is_finished(contract.places()[0])
