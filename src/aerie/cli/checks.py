"""Options that can be judged at once: devices, and files and folders that are to be written."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.config import ModelConfig
from aerie.errors import UsageError

MOST = 1 << 31


def found_device(device: str) -> str:
    """The device to run on, auto resolved; raises where it is unknown or not here."""
    ModelConfig(device=device)  # an unknown name is said without torch
    if device == "cpu":
        return device
    from aerie.assemble.device import choose_device

    return choose_device(device).value


def require_checkout(command: str, *folders: Path) -> None:
    """Raise where a command has nothing to read: its folders come with the sources, not by pip."""
    for folder in folders:
        if not any(folder.glob("*.toml")):
            raise UsageError(
                f"{command} reads the files of a checkout, and {folder.absolute()} holds none:"
                " run it in the root of a clone of aerie's repository"
            )


def _writable_file(path: Path | None) -> Path | None:
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"{path} is a folder, and a file is to be written")
        _try_to_write(path.parent, path)
    return path


def _writable_folder(path: Path | None) -> Path | None:
    """It may be made later: then the folder it will be made in must be there."""
    nearest = path
    while nearest is not None and not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if path is not None and nearest is not None:
        _try_to_write(nearest, path)
    return path


def _try_to_write(folder: Path, asked: Path) -> None:
    """A file without a name, gone at once: rights alone do not tell, and root has all of them."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise typer.BadParameter(f"{asked} cannot be written: {folder}: {said}") from None


def count(least: int, help: str, *names: str) -> Any:
    """An option: a whole number, within what a machine can count or hold."""
    return typer.Option(*names, min=least, help=help, callback=_countable)


def _countable(number: int | None) -> int | None:
    if number is not None and number > MOST:
        raise typer.BadParameter(f"{number} is beyond {MOST}")
    return number


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number")
    return number


def amount(least: float, help: str) -> Any:
    """An option: a finite number."""
    return typer.Option(min=least, help=help, callback=_finite)


def out_file(*names: str, help: str) -> Any:
    """An option: a file to write, refused before anything is measured if that cannot be."""
    return typer.Option(*names, help=help, callback=_writable_file)


def out_folder(*names: str, help: str) -> Any:
    """An option: a folder to write to, likewise."""
    return typer.Option(*names, help=help, callback=_writable_folder)


def in_file(*names: str, help: str) -> Any:
    """An option: a file that must be there."""
    return typer.Option(*names, help=help, exists=True, dir_okay=False, readable=True)


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")]
