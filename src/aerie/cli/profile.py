"""`aerie profile`: where time, bytes and energy go, what each lever is worth, how it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.bench import round_setup
from aerie.cli.checks import count, out_folder
from aerie.cli.output import finish, integers


def profile(
    stage: Annotated[
        str, typer.Option(help="kernels, tuning, ablation, serving; comma separated.")
    ] = "kernels",
    context: Annotated[str, typer.Option(help="Prompt tokens of each point.")] = "32768,16384",
    batch: Annotated[str, typer.Option(help="Requests of each point.")] = "1,4",
    policy: Annotated[str, typer.Option(help="plain, chain3, chain5, tree3 or tree5.")] = "tree3",
    out: Annotated[Path, out_folder(help="Folder of the reports.")] = Path("reports"),
    geometry: Annotated[str, typer.Option(help="Inflate to this; none: as shipped.")] = (
        "llama-3.1-8b"
    ),
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda, or cpu for a rehearsal.")] = "cuda",
    backend: Annotated[str, typer.Option(help="Kernel backend.")] = "triton",
    rounds: Annotated[int, count(2, "Timed rounds of a point.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Say where a round's time and bytes go, what each lever is worth, and how it serves.

    Kernels: times by the profiler, modelled bytes per token, ranked hotspots, busy share, energy.
    Ablation: one lever off at a time. Serving: first tokens, arrivals while others decode. Tuning:
    shipped choices against their sweeps. On a CPU everything shrinks: a rehearsal of the same
    code.
    """
    from aerie.bench.profile.session import POLICIES, Point, Session, Sizes
    from aerie.bench.profile.stages import STAGES, run_stage
    from aerie.errors import UnknownNameError

    stages = stage.split(",")
    for name in stages:
        if name not in STAGES:
            raise UnknownNameError("stage", name, STAGES)
    if policy not in POLICIES:
        raise UnknownNameError("policy", policy, POLICIES)
    lengths, sizes = integers(context, "--context"), integers(batch, "--batch")
    if len(lengths) != len(sizes):
        raise typer.BadParameter(f"--context has {len(lengths)} points, --batch {len(sizes)}")
    setup = round_setup(device, dtype, geometry, backend)
    is_rehearsal = not setup.device.startswith("cuda")
    session = Session(
        setup,
        out,
        tuple(Point(*pair) for pair in zip(lengths, sizes, strict=True)),
        policy,
        Sizes(rounds, 4, 0.05) if is_rehearsal else Sizes(rounds),
        is_rehearsal,
    )
    records = {name: run_stage(session, name) for name in stages}
    finish({"ok": all(r["ok"] for r in records.values()), **records}, as_json=True)
