"""`aerie audit` as people run it: servers over HTTP, and mistakes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerie.models.hub import find_pair
from tests.e2e.server_process import TREE, Served, served
from tests.e2e.test_commands import aerie, last_line

SMALL = ("--texts", "2", "--context", "32", "--new-tokens", "10", "--draws", "12")
STEPS = ["alone", "together", "twice", "off", "off, together"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--numerics", "exact", *TREE) as found:
        yield found


def address(server: Served) -> str:
    return server.url.removesuffix("/v1")


def test_a_server_gives_the_same_texts_however_it_is_asked(server: Served, tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    run = aerie("audit", "--url", address(server), *SMALL, "--out", str(out), "--json")
    found = last_line(run)
    assert json.loads(out.read_text()) == found
    assert (found["ok"], found["differing"], found["compared"]) == (True, 0, 2 * 2 * 4)
    assert found["takes_speculative_false"] is True
    assert [step["step"] for step in found["steps"]] == 2 * STEPS
    steps = {(step["sampling"], step["step"]): step for step in found["steps"]}
    assert steps["greedy", "alone"]["prefix_hits"] == 0 < steps["greedy", "twice"]["prefix_hits"]
    lengths = {name: step["acceptance_length"] for (_, name), step in steps.items()}
    assert lengths["alone"] >= 1 and lengths["off"] is None and lengths["off, together"] is None
    assert found["chi_square"]["draws"] == [12, 12] and found["chi_square"]["p_value"] >= 1e-3
    assert set(found["repeated_8_grams"]) == {"greedy", "sampled"}
    assert "0 of 16 texts differ from those alone" in run.stdout


def test_a_second_server_that_differs_is_told(server: Served, tmp_path: Path) -> None:
    """The same weights under another rotary base: exit status 1, and where texts part."""
    target = find_pair(None, None)[0]
    for path in target.iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = json.loads((target / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 100.0}))
    with served("--model", str(tmp_path), "--method", "none") as other:
        run = aerie("audit", "--url", address(server), "--url", address(other), *SMALL, "--json")
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    differing = {step["step"]: step["differing"] for step in found["steps"] if "differing" in step}
    assert all((n == 0) == ("second" not in name) for name, n in differing.items())
    parted = [step["first_difference"] for step in found["steps"] if step.get("differing")]
    assert all(first["alone"] != first["here"] for first in parted)
    assert any(first["logprob_gap"] is not None for first in parted)
    assert "parts at character" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:9", "--record", "x"), "--record cannot be used with --url"),
        (("--url", "http://127.0.0.1:9", "--dtype", "float16"), "does not use --dtype"),
        (("--url", "http://127.0.0.1:9"), "does not answer"),
        (("--draws", "3"), "--draws cannot be used without --url"),
        (("--rule", "coins"), "nothing to compare"),
        (("--max-batch", "3"), "does not use --max-num-seqs"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    run = aerie("audit", *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr and len(run.stderr.splitlines()) == 1
