"""Hashes of sources see what a machine would see, and so does the table of earlier commits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aerie.bench.gates.data import HISTORY, WHOLE, Ages, Measured
from aerie.bench.provenance import source_hash
from aerie.bench.report.origin import hashes_of, learn, render_history
from aerie.parity.matrix import sources_hash
from aerie.sources import code_of, hash_parts, part_of, read_package
from tests.laws.tree import ROOT

PYTHON = 'def f(x):\n    """What."""\n    return x + 1\n'
CPP = (
    'int f(int x) {\n  // why\n  return x + 1; /* and\n how */ }\nconst char* s = "// no remark";\n'
)


@pytest.mark.parametrize(
    ("suffix", "text", "alike"),
    [
        (".py", PYTHON, "# Why.\ndef f(x):\n    # How.\n\n    return (x + 1)  # sum\n"),
        (".py", "s = 'a'\n", 's = "a"\n'),
        (".py", "class A:\n    '''What.'''\n    x = 1\n", "class A:\n    x = 1\n"),
        (".cpp", CPP, 'int f(int x)\n{ return x+1; }\nconst char *s = "// no remark";'),
        (".json", '{"a": 1, "b": [2]}', '{\n "b": [2],\n "a": 1\n}\n'),
    ],
)
def test_layout_and_remarks_do_not_count(suffix: str, text: str, alike: str) -> None:
    assert code_of(suffix, text.encode()) == code_of(suffix, alike.encode())


@pytest.mark.parametrize(
    ("suffix", "text", "other"),
    [
        (".py", PYTHON, PYTHON.replace("+ 1", "+ 2")),
        (".py", PYTHON, PYTHON.replace("+ 1", "+ 1.0")),
        (".py", PYTHON, PYTHON.replace("f(x)", "f(x=0)")),
        (".py", "x = True\n", "x = 1\n"),
        (".py", "f(a, b)\n", "f(a)(b)\n"),
        (".py", "x = '''a'''\n", "'''a'''\n"),
        (".cpp", CPP, CPP.replace("x + 1", "x - 1")),
        (".cpp", CPP, CPP.replace("// no remark", "// remark")),
        (".cpp", "unsigned x;", "un signed x;"),
        (".json", '{"a": 1}', '{"a": 2}'),
    ],
)
def test_what_is_computed_counts(suffix: str, text: str, other: str) -> None:
    assert code_of(suffix, text.encode()) != code_of(suffix, other.encode())


def test_every_source_of_a_figure_belongs_to_one_part() -> None:
    assert part_of("kernels/triton_gpu/walk.py") == "kernels/triton_gpu"
    assert part_of("kernels/cards/tree.py") == "kernels"
    assert part_of("attention/triton/tiles.json") == "attention tables"
    assert part_of("server/app.py") is part_of("engine/notes.txt") is None
    before = hash_parts(read_package(ROOT / "src/aerie"))
    files = dict(read_package(ROOT / "src/aerie"))
    files["attention/rows.py"] += b"\nMORE = 1\n"
    after = hash_parts(files.items())
    assert {part for part in before if before[part] != after[part]} == {"attention"}


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, str]:
    """A checkout of one commit whose report names it."""
    for path, text in {
        "src/aerie/engine/step.py": PYTHON,
        "src/aerie/attention/tiles.json": "{}",
        "src/aerie/kernels/pytorch/a.py": "x = 1\n",
        "src/aerie/cli/main.py": "x = 1\n",
        "evidence/scorecard/artifacts.toml": '[[artifact]]\npath = "reports/*"\ncommand = "x"\n'
        'kind = "measured"\nsources = "cpu engine"\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "reports").mkdir()
    record = {"provenance": {"commit": commit[:8]}}
    (tmp_path / "reports/a.json").write_text(json.dumps(record), encoding="utf-8")
    return tmp_path, commit


def test_git_tells_earlier_sources_once(history: tuple[Path, str]) -> None:
    root, commit = history
    now = hash_parts(read_package(root / "src/aerie"))
    found = learn(root)
    assert list(found) == [commit]
    assert {part: found[commit][part] for part in now} == now
    (root / HISTORY).write_text(render_history(root), encoding="utf-8")
    (root / ".git").rename(root / "gone")  # a plain checkout
    assert learn(root) == found
    (root / HISTORY).unlink()
    assert learn(root) == {}
    unknown = Ages(now, {}).changed([Measured(commit)], "cpu engine")
    assert unknown == (f"sources of {commit[:10]} unknown",)


def test_what_changed_since_is_named(history: tuple[Path, str]) -> None:
    root, commit = history
    then, measured = learn(root), Measured(commit[:8])
    same = root / "src/aerie/engine/step.py"
    same.write_text("# Why.\n" + PYTHON, encoding="utf-8")
    now = hash_parts(read_package(root / "src/aerie"))
    assert Ages(now, then).changed([measured], "cpu engine") == ()
    same.write_text(PYTHON.replace("1", "2"), encoding="utf-8")
    (root / "src/aerie/attention/tiles.json").write_text("[1]", encoding="utf-8")
    now = hash_parts(read_package(root / "src/aerie"))
    assert Ages(now, then).changed([measured], "cpu engine") == ("engine",)
    assert Ages(now, then).changed([measured], "gpu attention") == ("attention tables",)
    dirty = Measured(commit[:8], "ab" * 32)
    assert Ages(now, then).changed([dirty], "hls") == (f"sources were not those of {commit[:8]}",)
    clean = Measured(commit[:8], then[commit][WHOLE])
    assert Ages(now, then).changed([clean], "cpu engine") == ("engine",)


def test_a_table_of_this_checkout_says_what_records_and_the_matrix_say() -> None:
    """The hash of all sources is the one records carry, that of a backend the matrix's."""
    package = ROOT / "src/aerie"
    paths = [path for path in package.rglob("*") if path.suffix in (".py", ".hpp", ".cpp", ".json")]
    here = hashes_of({p.relative_to(package).as_posix(): p.read_bytes() for p in paths})
    assert here[WHOLE] == source_hash()
    ages = Ages({}, {"0" * 40: here})
    for backend in ("reference", "triton", "hls"):
        assert ages.backend_at("0" * 10, backend) == sources_hash(backend)
