"""Requests made up from the server's own schema: none may be answered by a failure."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import TREE, served

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


@pytest.mark.slow
def test_nothing_made_up_from_the_schema_breaks_the_server(tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert program is not None, "schemathesis is part of the development tools"
    with served(*TREE) as server:
        root = f"http://127.0.0.1:{server.port}"
        command = [program, "run", f"{root}/openapi.json", "--url", root, "--seed", "7"]
        command += ["--max-examples", "20", "--checks", ",".join(CHECKS)]
        run = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
        )
        assert run.returncode == 0, run.stdout[-4000:]
        assert server.call("GET", "/health").status == 200
