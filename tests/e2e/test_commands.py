"""The commands as people run them: exit status, clean output, the JSON line that scripts read."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.laws.tree import ROOT


def aerie(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "aerie", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=300,
    )


def last_line(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_help_answers_without_loading_torch() -> None:
    run = aerie("--help")
    assert run.returncode == 0
    assert "generate" in run.stdout
    probe = "import sys, aerie.cli.main; sys.exit('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", probe], cwd=ROOT / "src", check=False)
    assert loaded.returncode == 0


def test_doctor_says_what_it_chose_and_why() -> None:
    found = last_line(aerie("doctor", "--json"))
    assert found["ok"] is True
    assert found["backends"]["pytorch"].startswith("available")
    assert all(entry["reason"] for entry in found["defaults"])


def test_parity_of_one_kernel() -> None:
    run = aerie("parity", "--backend", "pytorch", "--kernel", "calculate_work_deltas", "--json")
    found = last_line(run)
    assert found["ok"] is True
    assert found["kernels"] == 1
    assert found["cases"] == len(found["results"]) >= 25


@pytest.mark.skipif(shutil.which("g++") is None, reason="hls: no g++")
def test_parity_of_all_kernels_in_c_simulation() -> None:
    found = last_line(aerie("parity", "--backend", "hls", "--json"))
    assert found["ok"] is True and found["failed"] == []
    assert found["kernels"] == 16  # operations of K1 to K13
    assert found["cases"] == len(found["results"]) >= 870


def test_kernel_bench_ends_in_json() -> None:
    run = aerie(
        *("bench", "kernels", "--backend", "pytorch", "--batch", "1"),
        *("--verify", "8", "--repeats", "3"),
    )
    found = last_line(run)
    assert len(found["points"]) == 16
    assert all(point["median_us"] > 0 and point["bytes_moved"] > 0 for point in found["points"])
    assert found["provenance"]["source_sha256"]


def test_generate_keeps_piped_output_clean() -> None:
    run = aerie("generate", "-", "--method", "ngram", "--max-new-tokens", "12", stdin="import os\n")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("import os\n")
    assert "\x1b" not in run.stdout


def test_generate_compare_is_identical() -> None:
    run = aerie(
        *("generate", "def add(a, b):\n", "--max-new-tokens", "24"),
        *("--compare", "--repeats", "1", "--json"),
    )
    found = last_line(run)
    assert found["identical"] is True
    assert found["target_passes"]["speculative"] < found["target_passes"]["plain"] == 24
    assert found["mean_acceptance_length"] > 1.5
    assert found["policy"]["name"] == "planner"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "x", "--method", "eagel3"), "did you mean eagle3"),
        (("generate", ""), "the prompt is empty"),
        (("generate", "x", "--model", "no/such-model"), "download"),
        (("generate", "x", "--backend", "pytorh"), "did you mean pytorch"),
        (("parity", "--kernel", "calculate_work_delta"), "did you mean calculate_work_deltas"),
        (("parity", "--backend", "triton", "--device", "cuda"), "device cuda: "),
        (("tune", "gemm"), "needs a GPU"),
    ],
)
def test_mistakes_get_one_clear_line(arguments: tuple[str, ...], said: str) -> None:
    run = aerie(*arguments)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr
