"""`aerie bench peer`: the same loads against any OpenAI-compatible server, ours included."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.cli.checks import amount, count, in_file, out_file
from aerie.cli.output import console, finish, progress_console


def peer(
    url: Annotated[str, typer.Option(help="A running server, without /v1.")],
    contract: Annotated[Path, in_file(help="TOML file: what it is asked for.")] = Path(
        "evidence/contracts/peers/serve.toml"
    ),
    name: Annotated[str, typer.Option(help="The server in the rows: vllm chain7, say.")] = "aerie",
    run: Annotated[str, typer.Option(help="Rows of one run are compared. Default: now.")] = "",
    turn: Annotated[int, count(0, "Of this run; other prompts each, the same for all.")] = 0,
    wait: Annotated[float, amount(0, "Seconds until it must be ready.")] = 0.0,
    out: Annotated[Path | None, out_file(help="JSON lines are appended.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Load a server as many clients do: tokens/s, time to first text, gaps, errors.

    Fresh prompts, streamed answers; every client waits for its answer before it asks again. Turn 0
    begins with the first requests after "ready", apart. `scripts/peers/README.md` says how servers
    take turns, and what the rows mean. The last line of output is JSON.
    """
    from aerie.bench.provenance import peer_provenance
    from aerie.bench.record import append_row
    from aerie.bench.serve.load import wait_until_ready
    from aerie.bench.serve.peer import find_server, read_peer_contract, run_turn, table_of

    asked = read_peer_contract(contract)
    wait_until_ready(url, wait, "start a server there, or give --wait SECONDS")
    server, made = find_server(url), peer_provenance()
    common = {"kind": "served", "lane": name, "run": run or made["date"], "contract": asked.name}
    rows: list[dict[str, Any]] = []
    screen = progress_console()

    def tell(row: dict[str, Any]) -> None:
        rows.append({**common, **row, "server": server.version, "made": made})
        screen.print(f"{name}: {row['point']}, {row['tokens_per_second']:.0f} tokens/s")
        if out is not None:
            append_row(out, rows[-1])

    run_turn(server, asked, turn, tell)
    if not as_json:
        console().print(table_of(rows))
    finish({"ok": not any(row["errors"] for row in rows), "rows": rows}, as_json=True)
