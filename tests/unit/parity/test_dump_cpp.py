"""The C++ reader: it reads what Python wrote, refuses what Python refuses, and never crashes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerie.errors import DumpError
from aerie.kernels.cases import all_cases, cases_for
from aerie.kernels.catalogue import catalogue
from aerie.parity.dump import from_bytes, to_bytes
from aerie.parity.dump_cases import dump_case
from aerie.parity.dump_file import decode
from tests.unit.parity.cpp_reader import build, run
from tests.unit.parity.test_dump import ORIGIN, REFERENCE

# Answers of the C++ reader about the meaning of a container that it found sound.
SOUND = {"ok", "metadata", "format", "scalars", "absent", "array_name"}
N_MUTANTS = 400
N_INPUTS, N_INPUTS_SLOW = 5_000, 100_000


def small_dumps() -> list[bytes]:
    """One small dump of every kernel."""
    return [to_bytes(dump_case(REFERENCE, cases_for(name)[0], ORIGIN)) for name in catalogue()]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("dump_check", tmp_path_factory.mktemp("reader"))


def answers(reader: Path, folder: Path, files: list[bytes]) -> list[str]:
    paths = [folder / f"{index:05d}" for index in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    done = run(reader, paths)
    assert not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(files)
    return [line.partition(": ")[2] for line in lines]


def test_it_reads_every_case(reader: Path, tmp_path: Path) -> None:
    dumps = [dump_case(REFERENCE, case, ORIGIN) for case in all_cases()]
    dumps = [dump for dump in dumps if dump.n_bytes < 20_000]
    found = answers(reader, tmp_path, [to_bytes(dump) for dump in dumps])
    for dump, said in zip(dumps, found, strict=True):
        card = dump.card
        n_arrays = len(dump.inputs) + len(dump.outputs)
        n_absent = len(card.inputs) - len(dump.inputs)
        assert said == (
            f"ok {card.number} {card.name} version {card.version} outcome {dump.outcome},"
            f" {n_arrays} arrays, {len(card.scalars)} scalars, {n_absent} absent"
        )
    assert len(found) > 700


def mutant(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A seed with a few bytes of its header changed, a digit mostly, or its length."""
    data = bytearray(rng.choice(seeds))
    header = int.from_bytes(data[:8], "little")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = 8 + rng.randrange(header)
        digits = [index for index in range(8, 8 + header) if chr(data[index]).isdigit()]
        kind = rng.randrange(5)
        if kind < 3:
            data[rng.choice(digits)] = ord(rng.choice("0123456789"))
        elif kind == 3:
            data[at] = rng.choice(b'{}[]",:\\ -.e0aZ\x00\x7f\x80')
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


def accepts(data: bytes) -> bool:
    try:
        decode(data, "mutant")
    except DumpError:
        return False
    return True


def is_dump(data: bytes) -> bool:
    try:
        from_bytes(data, "mutant")
    except DumpError:
        return False
    return True


def test_both_readers_agree_on_damaged_files(reader: Path, tmp_path: Path) -> None:
    rng, seeds = random.Random(5), small_dumps()
    mutants = [mutant(rng, seeds) for _ in range(N_MUTANTS)]
    found = answers(reader, tmp_path, mutants)
    judged = [accepts(data) for data in mutants]
    for index, (said, is_sound) in enumerate(zip(found, judged, strict=True)):
        assert (said.split()[0] in SOUND) == is_sound, (index, said, mutants[index][8:400])
        # The C++ reader knows no cards: it may take what Python refuses, never the reverse.
        assert said.startswith("ok ") or not is_dump(mutants[index])
    assert 20 < sum(judged) < N_MUTANTS - 20, "the mutants are all good, or all bad"


def fuzz(folder: Path, n_inputs: int) -> str:
    program = build("dump_fuzz", folder)
    seeds = [folder / f"{index}.safetensors" for index in range(len(catalogue()))]
    for path, data in zip(seeds, small_dumps(), strict=True):
        path.write_bytes(data)
    done = run(program, [n_inputs, 2026, *seeds])
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_log(log: str, n_inputs: int, n_answers: int) -> None:
    assert log.startswith(f"{n_inputs} inputs from {len(catalogue())} dumps")
    counts = {line.split()[0]: int(line.split()[1]) for line in log.splitlines()[1:-1]}
    assert sum(counts.values()) == n_inputs
    reached = {name for name, count in counts.items() if count}
    # "cannot be opened" is the one answer that no input gets. A mutation that has gone stale no
    # longer reaches some other.
    assert len(counts) == 18 and "file" not in reached and len(reached) >= n_answers, counts


def test_fuzzed_reader_survives(tmp_path: Path) -> None:
    check_log(fuzz(tmp_path, N_INPUTS), N_INPUTS, 15)


@pytest.mark.slow
def test_fuzzed_reader_survives_many_inputs(tmp_path: Path) -> None:
    check_log(fuzz(tmp_path, N_INPUTS_SLOW), N_INPUTS_SLOW, 17)
