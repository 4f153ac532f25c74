"""The clients of `make interop`: which there are, what counts as a pass, and what is on record."""

import pytest

from scripts import ROOT
from scripts.interop.clients import SGLANG_BACKENDS, Client, clients
from scripts.interop.run import REPORTS, Outcome, Row, cleaned
from scripts.interop.scripted import MANNERS

CLIENTS = {client.name: client for client in clients()}
TABLE = (REPORTS / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
GOOD = "Successful requests:      8   \nFailed requests:    0  \nAcceptance length:   2.25  \n"


def outcome(name: str, output: str, status: int = 0) -> Outcome:
    return Outcome(CLIENTS[name], "command", {"vllm": "1"}, status, 1.0, output)


def test_every_client_is_there() -> None:
    assert len(SGLANG_BACKENDS) == 8
    assert set(CLIENTS) == {
        "openai",
        "langchain",
        "known-fields",
        *(f"sglang-bench-{backend}" for backend in SGLANG_BACKENDS),
        *(f"guidellm-{form}" for form in ("completions", "chat")),
        *(f"vllm-bench-{form}" for form in ("openai", "openai-chat")),
        *(f"aiperf-{form}" for form in ("completions", "chat")),
        *(f"{name}-tools-{dialect}" for name in ("openai", "langchain") for dialect in MANNERS),
    }


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_a_passed_run_is_on_record(client: Client) -> None:
    said = (REPORTS / f"{client.name}.txt").read_text(encoding="utf-8")
    head, _, output = said.partition("output:\n")
    assert "verdict: passed" in head and "exit status: 0," in head
    assert "/tmp/" not in said
    (command,) = (line for line in head.splitlines() if line.startswith("command: "))
    fixed = [word for word in client.arguments.split() if "{" not in word]
    assert not [word for word in fixed if word not in command]
    assert not outcome(client.name, output).missing
    version = head.partition("versions: ")[2].partition(",")[0]
    assert f"| [{client.name}]({client.name}.txt) | {version} | passed |" in TABLE
    assert f"| {version} |" in PAGE
    assert all(f"`{backend}`" in PAGE for backend in SGLANG_BACKENDS)


def test_a_client_that_ends_well_with_failed_requests_has_failed() -> None:
    name = "vllm-bench-openai"
    assert outcome(name, GOOD).has_passed and Row(CLIENTS[name], GOOD).acceptance == "2.25"
    assert not outcome(name, GOOD, status=1).has_passed
    assert not outcome(name, GOOD.replace("8 ", "7 ")).has_passed
    assert not outcome(name, GOOD.replace(" 0 ", " 1 ")).has_passed
    made = {"aerie": "0", "commit": "0123abc", "date": "now", "device": "here"}
    failed = outcome(name, "nothing").transcript(made)
    assert "verdict: FAILED" in failed and "expected and not found: Successful" in failed


def test_transcripts_hold_no_machine() -> None:
    shown = cleaned(f"\x1b[1ma\x1b[0m\r b {REPORTS} https" + "://example.com/x s/f\n\n\n\nc", "s/f")
    assert shown == " b reports/interop (address) SCRATCH\n\nc\n"
    assert cleaned("x" * 1000, "s/f") == "x" * 300 + " … of 1000 characters\n"
    assert cleaned("  │ a     │\n├──────┤\n", "s/f") == "  │ a  │\n├───┤\n"
