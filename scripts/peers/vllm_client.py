"""The loads of a peer contract by vLLM's own client, `vllm bench serve`, into the same rows.

    python3 scripts/peers/vllm_client.py --url URL --tokenizer DIR --out ROWS --work DIR
        [--contract FILE] [--name LANE] [--run RUN] [--turn N]

The options are those of `aerie bench peer`; prompts are the same texts. This client does not count
the tokens of a chunk, so its rows have no gap by tokens. DIR receives its logs and its own results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.provenance import peer_provenance
from aerie.bench.record import append_row
from aerie.bench.serve.peer import (
    Load,
    PeerContract,
    Server,
    find_server,
    read_peer_contract,
    write_prompts,
)

LOAD_SECONDS = 300  # a load that takes longer is given up


def run_load(
    asked: argparse.Namespace, server: Server, contract: PeerContract, load: Load, name: str
) -> dict[str, Any]:
    """One load; the texts it reads lie beside its results."""
    work, result = asked.work, f"{name}.json"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions"),
        *("--model", str(server.model), "--tokenizer", asked.tokenizer),
        *("--dataset-name", "custom", "--dataset-path", str(work / f"{name}.texts.jsonl")),
        *("--custom-output-len", str(contract.new_tokens), "--skip-chat-template"),
        # No request of its own before: the first after "ready" is to be the first.
        *("--num-warmups", "0", "--ready-check-timeout-sec", "0"),
        *("--disable-shuffle", "--ignore-eos", "--disable-tqdm"),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.clients)),
        *("--temperature", str(load.temperature), "--top-p", str(load.top_p)),
        *("--save-result", "--result-dir", str(work), "--result-filename", result),
    ]
    with (work / f"{name}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=LOAD_SECONDS)
    return row_of(load, json.loads((work / result).read_text(encoding="utf-8")))


def row_of(load: Load, found: dict[str, Any]) -> dict[str, Any]:
    """The client's own figures under the names of the rows."""
    waits = {"ttft_ms": "ttft", "gap_ms": "itl"}
    return {
        "point": load.point,
        "load": {"clients": load.clients, "requests": load.requests},
        "sampling": {"temperature": load.temperature, "top_p": load.top_p},
        "seconds": found["duration"],
        "tokens": found["total_output_tokens"],
        "tokens_per_second": found["output_throughput"],
        **{
            own: {"p50": found[f"median_{theirs}_ms"], "p99": found[f"p99_{theirs}_ms"]}
            for own, theirs in waits.items()
        },
        "gap_per_token_ms": None,
        "prompt_tokens": found["total_input_tokens"],
        "errors": found["failed"],
        "acceptance_length": found.get("spec_decode_acceptance_length"),
    }


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """The format of its custom data set."""
    lines = (json.dumps({"prompt": text}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    """Every load of one turn, one after the other; one that fails does not end the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--tokenizer", required=True, help="folder")
    parser.add_argument("--out", required=True, type=Path, help="JSON lines are appended")
    parser.add_argument("--work", required=True, type=Path, help="folder")
    parser.add_argument(
        "--contract", type=Path, default=Path("evidence/contracts/peers/serve.toml")
    )
    parser.add_argument("--name", default="aerie planner")
    parser.add_argument("--run", default="")
    parser.add_argument("--turn", type=int, default=0)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    contract, made = read_peer_contract(asked.contract), peer_provenance()
    server, loads = find_server(asked.url), contract.of_turn(asked.turn)
    common = {"kind": "served", "lane": asked.name, "run": asked.run or made["date"]}
    common |= {"contract": contract.name, "client": "vllm bench serve", "group": asked.turn}
    texts = write_prompts(contract.prompts, sum(load.requests for load in loads), asked.turn)
    is_whole = True
    for load in loads:
        name = f"{asked.name}.{load.point}.{asked.turn}".replace(" ", "-")
        own, texts = texts[: load.requests], texts[load.requests :]
        write_texts(asked.work / f"{name}.texts.jsonl", own)
        try:
            row = run_load(asked, server, contract, load, name)
        except subprocess.SubprocessError as error:
            kind = type(error).__name__
            print(f"{name} failed ({kind}): see its log in {asked.work}", flush=True)
            is_whole = False
            continue
        append_row(asked.out, {**common, **row, "server": server.version, "made": made})
        print(f"{asked.name}: {load.point}, {row['tokens_per_second']:.0f} tokens/s", flush=True)
    return int(not is_whole)


if __name__ == "__main__":
    sys.exit(main())
