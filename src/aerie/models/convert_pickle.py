"""Converts pickled weights to safetensors, the only file that touches a pickle.

    python -m aerie.models.convert_pickle IN OUT

Each pickle is read in a process of its own with `weights_only`, so it can name tensors and
nothing else; the process has no environment, an empty working folder, a limit on its memory,
its time and the size of what it writes. The result is checked here before it gets its name.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.errors import AerieError, WeightFileError
from aerie.models.weights import INDEX, PICKLED, SINGLE, read_header, read_weight_map, save_tensors

PICKLED_INDEX = "pytorch_model.bin.index.json"
# Beside the weights: config, tokenizer, chat template. Never code.
COMPANIONS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
MAX_COMPANION_BYTES = 64 * 1024 * 1024
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What one pickle may cost. The margins hold the interpreter and one copy of the tensors."""

    seconds: float = 1800.0
    memory_factor: float = 3.0  # of the file's size
    memory_margin: int = 2 * GIB  # above what the process maps before it opens the file


def convert(directory: Path, out: Path, limits: Limits | None = None) -> list[Path]:
    """Write `out` with safetensors and the companions of `directory`; returns the weight files.

    Raises WeightFileError; `out` then does not exist.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WeightFileError(f"{out} already exists; name a new folder")
    shards = _find_shards(directory)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".converting-") as scratch:
        result = Path(scratch) / "result"
        result.mkdir()
        _copy_companions(directory, result)
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            name = SINGLE
            if len(shards) > 1:
                name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            _convert_one(shard, result / name, Path(scratch), limits or Limits())
            for tensor in read_header(result / name):
                if tensor in weight_map:
                    raise WeightFileError(f"{tensor} is in {weight_map[tensor]} and in {name}")
                weight_map[tensor] = name
        if len(shards) > 1:
            index = {"metadata": {}, "weight_map": weight_map}
            (result / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
        if out.exists():
            out.rmdir()
        result.rename(out)
    return sorted(out.glob("*.safetensors"))


def _find_shards(directory: Path) -> list[Path]:
    """The pickles of a directory, in the order of their names."""
    index = directory / PICKLED_INDEX
    if index.is_file():
        names = sorted(set(read_weight_map(index, "").values()))
        return [_inside(directory, directory / name) for name in names]
    single = directory / "pytorch_model.bin"
    found = sorted(path for pattern in PICKLED for path in directory.glob(pattern))
    if single.is_file():
        found = [single]
    if len(found) != 1:
        listed = ", ".join(path.name for path in found) or "none"
        raise WeightFileError(
            f"{directory} must hold pytorch_model.bin, {PICKLED_INDEX}, or one pickled file; "
            f"found {listed}"
        )
    return [_inside(directory, found[0])]


def _inside(directory: Path, path: Path) -> Path:
    """The real file, which must belong to the directory or to the same model in a hub cache."""
    real, allowed = path.resolve(), [directory.resolve()]
    if directory.resolve().parent.name == "snapshots":
        # A hub cache keeps files in `blobs` and links to them from each snapshot.
        allowed.append(directory.resolve().parent.parent / "blobs")
    if not any(real.is_relative_to(folder) for folder in allowed):
        raise WeightFileError(f"{path} is a link to {real}, outside {directory}")
    if not real.is_file():
        raise WeightFileError(f"{path.name}: not found; download the model again, complete")
    return real


def _copy_companions(directory: Path, result: Path) -> None:
    for path in sorted(p for pattern in COMPANIONS for p in directory.glob(pattern)):
        is_wanted = path.is_file() and not path.name.endswith(".index.json")
        if is_wanted and path.stat().st_size <= MAX_COMPANION_BYTES:
            shutil.copyfile(_inside(directory, path), result / path.name)


def _convert_one(source: Path, destination: Path, scratch: Path, limits: Limits) -> None:
    """Run the worker below on one file, in a process with nothing to steal and little to spend."""
    package_root = str(Path(__file__).resolve().parents[2])
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from aerie.models.convert_pickle import work; work(sys.argv[2:])"
    )
    memory = int(limits.memory_factor * source.stat().st_size) + limits.memory_margin
    budget = [str(memory), str(int(limits.seconds) + 1)]
    work_folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        # -I: no user site, no environment of Python's own, no current folder on the path.
        done = subprocess.run(
            [sys.executable, "-I", "-c", program, package_root]
            + [str(source), str(destination.resolve()), *budget],
            cwd=work_folder,
            env={"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limits.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WeightFileError(
            f"{source.name}: not converted after {limits.seconds:g} seconds"
        ) from error
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise WeightFileError(f"{source.name}: cannot be converted: {tail[0][:500]}")


def work(arguments: list[str]) -> None:
    """The sandboxed half: source, destination, bytes of memory, seconds of processor time."""
    source, destination = Path(arguments[0]), Path(arguments[1])
    _limit(int(arguments[2]), int(arguments[3]))
    # Old files are not archives and cannot be mapped.
    loaded = torch.load(
        source, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(source)
    )
    save_tensors(destination, _separate(_tensors_of(loaded)), {"format": "pt"})


def _limit(memory: int, seconds: int) -> None:
    """Limits count from here: torch itself maps gigabytes of libraries."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, mapped + memory),
        (resource.RLIMIT_FSIZE, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


def _tensors_of(loaded: object) -> dict[str, Tensor]:
    """The state dict in what a file held."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded:
        raise TypeError(f"holds a {type(loaded).__name__}, not a dictionary of tensors")
    wrong = [key for key, value in loaded.items() if not isinstance(value, Tensor)]
    if wrong:
        raise TypeError(f"these entries are not tensors: {', '.join(map(str, wrong[:5]))}")
    return {str(key): value for key, value in loaded.items()}


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """No two tensors in one storage: the format has no shared memory."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return out


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m aerie.models.convert_pickle",
        description="Convert pytorch_model.bin to safetensors in a sandboxed process.",
    )
    parser.add_argument("directory", type=Path, help="a model directory with pickled weights")
    parser.add_argument("out", type=Path, help="the directory to write")
    arguments = parser.parse_args()
    try:
        written = convert(arguments.directory, arguments.out)
    except (AerieError, OSError) as error:  # what the disk refuses needs no traceback
        print(f"convert_pickle: {error}", file=sys.stderr)
        sys.exit(2)
    for path in written:
        print(f"{path}: {len(read_header(path))} tensors")


if __name__ == "__main__":
    main()
