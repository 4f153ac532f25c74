"""Junk at every option of every command: one line and exit status 1 or 2, never a traceback."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from aerie.cli import main

HERE = Path(__file__)
BELOW_A_FILE = str(HERE / "x")  # not writable, for root neither
FOLDER = str(HERE.parent)
NOWHERE = "/no/such/place"
HUGE = "9" * 20
PATIENCE = 30  # seconds until a command that was not refused is ended
INTEGERS = ("x", "1.5", "-7", HUGE)
FLOATS = ("x", "-7.5", "nan")
LISTS = ("x", "1,,2", "-1", "0", HUGE)

# By option name, the same in every command that has it.
TEXTS: dict[str, tuple[str, ...]] = {
    "--model": (NOWHERE, str(HERE), "", "no/such-model"),
    "--draft": (NOWHERE, str(HERE)),
    "--taps": ("x", "2,,3", "-1"),
    "--device": ("tpu", "cuda:x", "", "cuda", "cuda:7"),
    "--dtype": ("float8", ""),
    "--engine": ("fast",),
    "--backend": ("pytorh",),
    "--numerics": ("exactly",),
    "--warm": ("hot", ""),
    "--method": ("eagel3",),
    "--policy": ("plan",),
    "--rule": ("toss",),
    "--draft-products": ("fp4", ""),
    "--speculative-config": ("{", "[]", '{"num_speculative_tokens": "x"}', "", '{"model": 5}'),
    "--costs": (NOWHERE, FOLDER, str(HERE)),
    "--hot-counts": (NOWHERE, FOLDER, str(HERE)),
    "--specpv": ("yes", ""),
    "--out": (BELOW_A_FILE,),
    "--geometry": ("llama-9", str(HERE), FOLDER),
    "--batch": LISTS,
    "--batches": LISTS,
    "--chunks": LISTS,
    "--texts": LISTS,
    "--policies": ("chian", ""),
    "--samplings": ("greed",),
    "--scenes": ("together,,prefix", "arrival"),
    "--record": (BELOW_A_FILE, FOLDER, str(HERE)),
    "--context": LISTS,
    "--verify": LISTS,
    "--clients": LISTS,
    "--sizes": LISTS,
    "--rows": LISTS,
    "--stage": ("speeed", ""),
    "--what": ("micr",),
    "--points": ("4x", "chat"),
    "--contract": (NOWHERE, FOLDER, str(HERE)),
    "--then": (NOWHERE, FOLDER),
    "--gates": (NOWHERE,),
    "--reports": (NOWHERE, str(HERE)),
    "--shapes": (NOWHERE, FOLDER, str(HERE)),
    "--url": ("nonsense", "http://127.0.0.1:1"),
    "--kernel": ("calculate_work_delta",),
    "--when": ("frist",),
    "--case": ("calculate_work_deltas/none",),
    "--dumps": (NOWHERE, str(HERE)),
    "--merge": (NOWHERE, FOLDER, str(HERE)),
    "--against": (NOWHERE, FOLDER, str(HERE)),
    "--dump": (BELOW_A_FILE,),
    "--dialect": ("vllm",),
    "--counts": (NOWHERE, FOLDER, str(HERE)),
    "--text": (NOWHERE, FOLDER),
    "--host": ("0.0.0.0", "no such host"),
    "--api-key": ("short",),
    "--chat-template": (NOWHERE, FOLDER),
    "--metrics-compat": ("grafana",),
    "--log-level": ("loud",),
    "--log-format": ("xml",),
    "--save-rounds": (BELOW_A_FILE, FOLDER),
    "--tool-parser": ("xml",),
    "--scope": ("x", "t,,d"),
    "--only": ("no-such-block", "layer,,"),
    "--work": (BELOW_A_FILE,),
    "--weights": (NOWHERE, FOLDER, str(HERE)),
    "--cuda": (NOWHERE, FOLDER, str(HERE)),
    "--plot": (BELOW_A_FILE, FOLDER),
    "suite": ("macro",),
    "pair_folder": (NOWHERE, str(HERE)),
}
# What may be any text at all.
FREE = (
    *("prompt", "prompts", "named", "--stop", "--name", "--run"),
    *("--served-name", "--served-model-name", "--allowed-host"),
)
# What a command needs beside the option that is tried, so that this one is what is wrong.
PAIR = Path(main.__file__).parents[1] / "assets" / "pair"
MODELS = ("--model", str(PAIR / "target"), "--draft", str(PAIR / "head"))
BESIDE: dict[str, tuple[str, ...]] = {
    "convert": (*MODELS, "--dialect", "specforge", "--out", "OUT"),
    "inflate": (*MODELS, "--out", "OUT", "--device", "cpu"),
    "compare": MODELS,
    "draft-vocab build": (*MODELS[:2], "--text", str(HERE), "--out", "OUT"),
    "draft-vocab apply": (*MODELS, "--counts", str(HERE), "--out", "OUT"),
    "draft-vocab report": (*MODELS, "--counts", str(HERE), "--text", str(HERE)),
    "parity run": ("--dumps", "tests/data/dumps"),
    "gates run": ("micro",),
    "bench gpu": ("--contract", "evidence/contracts/h200.toml"),
    "bench round": ("--device", "cpu", "--dtype", "float32", "--backend", "numpy"),
    "profile": ("--device", "cpu", "--dtype", "float32", "--backend", "numpy"),
    "train target": ("--device", "cpu", "--out", "OUT"),
    "train head": ("--device", "cpu", "--out", "OUT"),
    "train pair": ("--device", "cpu", "--out", "OUT"),
    "fpga pack": ("--out", "OUT"),
    "bench serve": ("--url", "http://127.0.0.1:1"),
    "bench peer": ("--url", "http://127.0.0.1:1"),
}


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield path, command
    for name in below:
        yield from commands(below[name], f"{path} {name}".strip())


def junk_of(option: Any) -> tuple[str, ...]:
    kind = option.type_descriptor.annotation
    if option.opts[0] in TEXTS:
        return TEXTS[option.opts[0]]
    if kind is int:
        return tuple(text for text in INTEGERS if text != "-7" or (option.min or 0) > -7)
    return FLOATS if kind is float else ()


ROOT: Any = typer.main.get_command(main.app)  # made once: the app would make it for every call
COMMANDS = dict(commands(ROOT))


def run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    def too_long(*_: Any) -> None:
        raise AssertionError(f"aerie {' '.join(arguments)}: not refused at once")

    monkeypatch.setattr(sys, "argv", ["aerie", *arguments])
    monkeypatch.setattr(main, "app", ROOT)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        signal.alarm(0)
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("path", COMMANDS)
def test_junk_gets_one_line(
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    beside = [str(tmp_path / "out") if part == "OUT" else part for part in BESIDE.get(path, ())]
    for option in COMMANDS[path].params:
        name = option.opts[0]
        if name in FREE or getattr(option, "is_flag", False):
            continue
        junk = junk_of(option)
        assert junk, f"{path} {name}: no junk in the table"
        for value in junk:
            own = [name, value] if name.startswith("-") else ["--", value]
            status, said = run([*path.split(), *beside, *own], monkeypatch, capsys)
            assert status in (1, 2), f"{own} is taken: status {status}\n{said}"
            assert said.startswith("aerie: ") and said.count("\n") <= 2, f"{own}\n{said}"
    assert not list(tmp_path.iterdir()), "something was written before the refusal"
