"""The audit's own parts: cells, rows that are gone on with, the chi-square test, and a control."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from aerie.assemble.choices import configured
from aerie.bench.audit import run as audited
from aerie.bench.audit.cells import OFF, POLICIES, QUICK, SCENES, TOGETHER, Cell, Plan
from aerie.bench.audit.certificate import Rows
from aerie.bench.audit.run import Audit, Engines, load_models
from aerie.bench.audit.transcript import LEAST_P, compare_samples
from aerie.cli.main import app
from aerie.errors import UnknownNameError, UsageError
from aerie.kernels.registry import Kernels
from tests.laws.tree import ROOT
from tests.oracles.chi_square import survival

LARGE = Plan(
    batches=(1, 8, 32), texts=(64, 256, 320), chunks=(512, 2048), context=1024, new_tokens=256
)
SMALL = Plan(
    policies=(OFF, "chain"),
    batches=(2,),
    texts=(2,),
    chunks=(16,),
    samplings=("sampled",),
    scene_texts=2,
    context=32,
    new_tokens=20,
)
COMMAND = (
    *("audit", "--numerics", "exact", "--device", "cpu", "--policies", "off,chain"),
    *("--batches", "2", "--chunks", "16", "--samplings", "greedy", "--scenes", "together"),
    *("--context", "32", "--new-tokens", "12"),
)
WRONG = 7  # the token whose logit is raised


class Raised:
    """A kernel that samples, with one logit of one call made the largest."""

    def __init__(self, kernel: Any, call: int) -> None:
        self.card = kernel.card
        self._kernel, self._left = kernel, call

    def __call__(self, **inputs: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            logits = inputs["logits"].clone()
            logits[0, WRONG] = 1e4
            inputs = {**inputs, "logits": logits}
        return self._kernel(**inputs)


def corrupted(build_core: Callable[..., Any]) -> Callable[..., Any]:
    """The same engines; those that speculate have one wrong logit, in their third round."""

    def tap(kernels: Kernels) -> Kernels:
        wrong = Raised(kernels["sample_target_tokens"], 3)
        table: dict[str, Any] = {**dict(kernels), "sample_target_tokens": wrong}
        return Kernels(kernels.backend, kernels.device, kernels.data_errors, table)

    def build(config: Any, *parts: Any, **named: Any) -> Any:
        is_off = config.speculation.method == "none"
        return build_core(config, *parts, **named, **({} if is_off else {"tap": tap}))

    return build


def audit_of(plan: Plan, rows: Path | None = None, **settings: Any) -> Audit:
    config = configured(None, None, {"numerics": "exact", "device": "cpu", **settings})
    engines = Engines(config, load_models(config), POLICIES, plan.most_together)
    return Audit(plan, engines, Rows.open(engines.terms(), rows))


def test_the_large_plan_has_its_ten_thousand_texts() -> None:
    cells = LARGE.cells()
    grid = [cell for cell in cells if cell.scene == TOGETHER]
    assert len(grid) == 4 * 3 * 2 * 2 and sum(cell.texts for cell in grid) == 10_240
    assert {cell.scene for cell in cells} == set(SCENES)
    assert [cell.policy for cell in cells].index("chain") == sum(c.policy == OFF for c in cells)
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policies": ("off", "chian")}, "did you mean chain"),
        ({"scenes": ()}, "--scenes is empty"),
        ({"texts": (1, 2, 3)}, "--texts has 3 numbers, --batches 1"),
    ],
)
def test_plans_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, UnknownNameError), match=message):
        replace(SMALL, **wrong)


def test_every_scene_is_met_and_no_text_differs(tmp_path: Path) -> None:
    """Chains against plain decoding; a second run goes on where the first was broken off."""
    path, found = tmp_path / "rows.jsonl", list[Any]()
    first = audit_of(SMALL, path)
    n_cells = len(SMALL.cells())
    assert first.rows.left(SMALL) == SMALL.cells()
    with pytest.raises(KeyboardInterrupt):
        first.run(lambda row: found.append(row) or _stop(len(found) == 7))
    again = audit_of(SMALL, path)
    assert len(again.rows.left(SMALL)) == n_cells - 7
    again.run(found.append)
    assert not again.rows.left(SMALL) and not audit_of(SMALL, path).rows.left(SMALL)
    assert [Cell(**row["cell"]) for row in found] == SMALL.cells()
    assert not any(row["differing"] or row["is_void"] for row in found)
    met: Counter[str] = sum((Counter(row["met"]) for row in found), Counter())
    assert min(met[name] for name in ("arrivals", "cancels", "preemptions", "reused_tokens")) > 0
    drafted = [row for row in found if row["cell"]["policy"] == "chain"]
    assert all(row["compared"] == row["texts"] and row["acceptance_length"] > 1 for row in drafted)
    terms = {**again.rows.terms, "dtype": "bfloat16"}
    with pytest.raises(UsageError, match="rows of another dtype"):
        Rows.open(terms, path)
    alone = replace(SMALL, policies=("chain",))
    with pytest.raises(UsageError, match="run policy off with as many texts before it"):
        Audit(alone, again.engines, Rows.open(terms, None)).run(found.append)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "graphs"])
def test_every_policy_in_every_scene_with_either_launcher(engine: str) -> None:
    costs = {"costs": str(ROOT / "tests/data/costs_cheap.json"), "foreign_costs": True}
    audit, found = audit_of(QUICK, engine=engine, planner=costs), list[Any]()
    audit.run(found.append)
    assert len(found) == 64 and not any(row["differing"] for row in found)
    # What a planner plans, and so which request is preempted, follows from its costs.
    fixed = [row for row in found if row["cell"]["policy"] != "planner"]
    assert not [row["cell"] for row in fixed if row["is_void"]]


def _stop(is_time: bool) -> None:
    if is_time:
        raise KeyboardInterrupt


def test_one_wrong_logit_is_caught_with_its_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: exit status 1 and the place, where the same command exits 0 without it."""
    monkeypatch.setattr(audited, "build_core", corrupted(audited.build_core))
    assert app([*COMMAND, "--texts", "1"], standalone_mode=False) == 1
    said = capsys.readouterr().out
    assert "1 of 1 texts differ from plain decoding" in said
    (line,) = (line for line in said.splitlines() if line.startswith("chain, greedy, together"))
    assert "prompt 0 (seed 0) parts at token" in line and f"({WRONG}) here" in line
    assert float(line.split("logit gap ")[1]) > 0.1


def test_a_certificate_of_the_built_in_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, rows = tmp_path / "certificate.json", tmp_path / "rows.jsonl"
    command = [*COMMAND, "--texts", "2", "--record", str(rows), "--out", str(out), "--json"]
    assert not app(command, standalone_mode=False)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(out.read_text())
    assert (found["ok"], found["is_complete"], found["differing"]) == (True, True, 0)
    assert (found["texts"], found["compared"], len(found["cells"])) == (4, 2, 2)
    assert found["policies"]["chain"]["nodes"] == 8
    terms = found["terms"]
    assert (terms["numerics"], terms["dtype"], terms["seed"]) == ("exact", "float32", 0)
    assert {len(digest) for digest in terms["weights_sha256"].values()} == {64}
    assert terms["commit"] and terms["source_sha256"]
    assert not app([*command, "--no-run"], standalone_mode=False)
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1]) == found and not told.err


def test_two_samples_of_one_distribution() -> None:
    """Statistic and p-value against scipy's, and the tail against the finite sums."""
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(3)
    one, other = (Counter(draw.choices("abcde", (5, 4, 3, 2, 1), k=n)) for n in (300, 200))
    found = compare_samples(one, other)
    table = [[sample[letter] for letter in "abcde"] for sample in (one, other)]
    expected = stats.chi2_contingency(table, correction=False)
    assert found.statistic == pytest.approx(expected.statistic)
    assert (found.freedom, found.draws) == (4, (300, 200))
    assert found.p_value == pytest.approx(expected.pvalue) == survival(found.statistic, 4)
    assert found.p_value >= LEAST_P
    other = Counter(draw.choices("abcde", (1, 4, 3, 2, 5), k=200))
    assert compare_samples(one, other).p_value < LEAST_P


def test_rare_outcomes_are_joined() -> None:
    rare = Counter({str(n): 1 for n in range(50)})
    found = compare_samples(rare, Counter({str(n + 100): 1 for n in range(50)}))
    assert found.freedom < 20
    alone = compare_samples(Counter({"x": 9}), Counter({"x": 9}))
    assert (alone.freedom, alone.p_value) == (0, 1.0) and asdict(alone)["statistic"] == 0.0
