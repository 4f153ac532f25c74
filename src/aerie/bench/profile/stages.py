"""`aerie profile`: its stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aerie.bench.profile.ablation import run_ablation
from aerie.bench.profile.kernels import run_kernels
from aerie.bench.profile.serving import run_serving
from aerie.bench.profile.session import Session, release
from aerie.bench.profile.tuning import check_tuning
from aerie.bench.record import write_json


def run_stage(session: Session, stage: str) -> dict[str, Any]:
    """One stage; its files are written before the next begins."""
    release()
    found = STAGES[stage](session)
    record = {"stage": stage, **found, **session.origin(stage).record()}
    write_json(session.out / f"profile_{stage}.json", record)
    return record


STAGES: dict[str, Callable[[Session], dict[str, Any]]] = {
    "kernels": run_kernels,
    "tuning": lambda session: check_tuning(session.setup.device),
    "ablation": run_ablation,
    "serving": run_serving,
}
