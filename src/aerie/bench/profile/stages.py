"""`aerie profile`: its stages, what each writes, and whether it is as it must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from aerie.bench.profile.ablation import run_ablation
from aerie.bench.profile.kernels import Profiled, profile_point
from aerie.bench.profile.report import COVERED, hotspots, write_profile
from aerie.bench.profile.serving import run_serving
from aerie.bench.profile.session import Session, release
from aerie.bench.profile.tuning import check_tuning
from aerie.bench.record import write_json

BUSY_FLOOR = 0.95


def run_stage(session: Session, stage: str) -> dict[str, Any]:
    """One stage; its files are written before the next begins."""
    release()
    found = STAGES[stage](session)
    record = {"stage": stage, **found, **session.origin(stage).record()}
    write_json(session.out / f"profile_{stage}.json", record)
    return record


def run_kernels(session: Session) -> dict[str, Any]:
    """Kernel times, bytes, hotspots, busy share and energy of every point."""
    ceilings, found = session.ceilings, list[Profiled]()
    for point in session.points:
        for policy in dict.fromkeys(("plain", session.policy)):
            found.append(profile_point(session, point, policy))
            print(found[-1].summary(ceilings.copy_gbps), flush=True)
            release()
        write_profile(session.out, found, session.origin("kernels"), ceilings.copy_gbps)
    covered = [hotspots(entry)[1] for entry in found]
    busy = min(entry.busy_share for entry in found)
    return {
        "ceilings": asdict(ceilings),
        "points": [entry.summary(ceilings.copy_gbps) for entry in found],
        "hotspots_cover": [round(share, 4) for share in covered],
        "least_busy_share": round(busy, 4),
        "floors": {"hotspots": COVERED, "busy": BUSY_FLOOR},
        # Launch by launch, a CPU says nothing about a device that waits for its host.
        "ok": min(covered) >= COVERED and (session.is_rehearsal or busy >= BUSY_FLOOR),
    }


STAGES: dict[str, Callable[[Session], dict[str, Any]]] = {
    "kernels": run_kernels,
    "tuning": lambda session: check_tuning(session.setup.device),
    "ablation": run_ablation,
    "serving": run_serving,
}
