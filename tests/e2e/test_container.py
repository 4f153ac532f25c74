"""The container file: what it copies is there, and its own commands install a server."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.e2e.server_process import served
from tests.e2e.test_wheel import run
from tests.laws.tree import ROOT, repository_files

FILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
STEPS = [
    (words[0], words[1])
    for line in FILE.replace("\\\n", " ").splitlines()
    if line and not line.startswith("#") and (words := line.split(maxsplit=1))
]
COPIED = [name for kind, rest in STEPS if kind == "COPY" for name in rest.split()[:-1]]
VENV = "/opt/venv"
KEY = "a-key-of-the-container"


def commands() -> list[str]:
    """What it runs to install; users are the image's own business."""
    return [rest for kind, rest in STEPS if kind == "RUN" and "useradd" not in rest]


def test_it_installs_as_the_makefile_does() -> None:
    tracked = repository_files()
    if tracked is None:
        pytest.skip("not a git checkout, so which files are tracked is unknown")
    for name in COPIED:
        assert any(path == name or path.startswith(f"{name}/") for path in tracked), name
    torch, own = commands()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    choice = "sed -n '/^torch==/p' constraints.txt"
    assert choice in torch and choice in makefile
    assert '-c constraints.txt ".[serve]"' in own and "-c constraints.txt -e ." in makefile
    # Nothing that a key does not guard.
    (entry,) = (json.loads(rest) for kind, rest in STEPS if kind == "ENTRYPOINT")
    assert entry == [f"{VENV}/bin/aerie", "serve", "--host", "0.0.0.0"]
    assert [rest for kind, rest in STEPS if kind == "USER"] == ["aerie"]


@pytest.mark.slow
def test_its_commands_install_a_server_that_answers() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, scratch / name)
        for command in commands():
            # From where this machine has its packages: tests open no connection by themselves.
            own = command.replace('--extra-index-url "${TORCH_INDEX}"', "")
            run("sh", "-ec", own.replace(VENV, str(scratch / "venv")), cwd=scratch)
        program = str(scratch / "venv/bin/python")
        with served("--api-key", KEY, program=program, PYTHONPATH="") as server:
            asked = {"prompt": "def f(x):\n", "max_tokens": 8}
            assert server.call("POST", "/v1/completions", asked).status == 401
            bearer = {"authorization": f"Bearer {KEY}"}
            answer = server.call("POST", "/v1/completions", asked, bearer)
            assert answer.status == 200 and answer.body["usage"]["completion_tokens"] == 8
