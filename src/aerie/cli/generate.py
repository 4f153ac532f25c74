"""`aerie generate`: complete a prompt, draw its trees, or compare with plain decoding."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.output import console, finish, progress_console

if TYPE_CHECKING:
    from aerie.api import Engine
    from aerie.config import SpeculationConfig
    from aerie.engine.params import SamplingParams

PROMPT = '''def read_lines(path):
    """Read a text file and return its lines."""
'''

Text = Annotated[str | None, typer.Argument(help="Prompt; - reads standard input.")]
Model = Annotated[str | None, typer.Option(help="Directory or hub id; built-in pair if absent.")]
Draft = Annotated[str | None, typer.Option(help="EAGLE-3 head for --model.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 is greedy.")]
TopK = Annotated[int, typer.Option(min=0, help="Sample among the k best; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Sample within this probability mass.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")]
Method = Annotated[str, typer.Option(help="eagle3, ngram, eagle3+ngram or none.")]
PolicyName = Annotated[
    str, typer.Option(help="planner, fixed or cast; auto: fixed if a shape is given.")
]
Steps = Annotated[int | None, typer.Option("--speculative-num-steps", help="Draft levels.")]
DraftTopK = Annotated[
    int | None, typer.Option("--speculative-eagle-topk", help="Children per node.")
]
Nodes = Annotated[
    int | None, typer.Option("--speculative-num-draft-tokens", help="Rows verified, root included.")
]
VllmConfig = Annotated[
    str | None, typer.Option("--speculative-config", help="The same as vLLM's JSON.")
]
Backend = Annotated[str, typer.Option(help="Kernel backend.")]
Numerics = Annotated[str, typer.Option(help="fast, or exact: bitwise equal in any batch.")]
ShowTree = Annotated[bool, typer.Option("--show-tree", help="Draw each round's tree.")]
Rounds = Annotated[int, typer.Option(min=0, help="Rounds --show-tree draws; 0: all.")]
Compare = Annotated[bool, typer.Option("--compare", help="Also decode plainly, interleaved.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0: 1 for the built-in pair.")]
Repeats = Annotated[int, typer.Option(min=1, help="Interleaved pairs of --compare.")]
Json = Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")]


def generate(
    prompt: Text = None,
    model: Model = None,
    draft: Draft = None,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    method: Method = "eagle3",
    policy: PolicyName = "auto",
    num_steps: Steps = None,
    eagle_topk: DraftTopK = None,
    num_draft_tokens: Nodes = None,
    speculative_config: VllmConfig = None,
    backend: Backend = "auto",
    numerics: Numerics = "fast",
    threads: Threads = 0,
    show_tree: ShowTree = False,
    rounds: Rounds = 0,
    compare: Compare = False,
    repeats: Repeats = 3,
    as_json: Json = False,
) -> None:
    """Complete a prompt with speculation; the text streams to standard output."""
    from aerie.engine.params import SamplingParams

    shape = (eagle_topk, num_steps, num_draft_tokens)
    speculation, named = chosen_speculation(speculative_config, method, policy, shape)
    draft = draft or named
    params = SamplingParams(
        max_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=0 if seed is None and compare else seed,
        stop=tuple(stop or ()),
    )
    given = PROMPT if prompt is None else prompt
    text = sys.stdin.read() if given == "-" else given
    settings: dict[str, Any] = {"backend": backend, "numerics": numerics}
    set_threads(threads, model)
    engine = _load(model, draft, settings | {"speculation": asdict(speculation)})
    payload = _stream(engine, text, params, (rounds or sys.maxsize) if show_tree else 0)
    if compare:
        plain = _load(model, None, settings | {"speculation": {"method": "none"}})
        payload = _compare(plain, engine, text, params, repeats)
    finish(payload, as_json)


def chosen_speculation(
    vllm: str | None, method: str, policy: str, shape: tuple[int | None, int | None, int | None]
) -> tuple[SpeculationConfig, str | None]:
    """The configuration, and the draft head that vLLM's JSON names; its JSON goes first."""
    from aerie.config import SpeculationConfig

    if vllm:
        return SpeculationConfig.from_vllm(vllm)
    return SpeculationConfig(method, policy, *shape), None


def set_threads(asked: int, model: str | None) -> None:
    """The built-in pair's products are too small to share.

    Measured on two cores, plain decoding: 129 tokens/s with one thread, 105 with two, and 16 with
    two when another process wants a core (2026-11-15).
    """
    import torch

    if asked or model is None:
        torch.set_num_threads(asked or 1)


def _load(model: str | None, draft: str | None, settings: dict[str, Any]) -> Engine:
    from aerie.api import Engine

    with progress_console().status("loading"):
        return Engine.load(model, draft, **settings)


def _stream(engine: Engine, text: str, params: SamplingParams, most_drawn: int) -> dict[str, Any]:
    """Print the text as it is decided, or draw each round's tree and print the text at the end."""
    from aerie.cli.tree_view import draw_round
    from aerie.engine.round_tree import round_tree

    out = console()
    request_id = engine.submit(text, params)
    if not most_drawn:
        print(text, end="", flush=True)
    number = 0
    while engine.core.request(request_id).ended is None:
        updates = engine.step()
        outcome = engine.core.last_outcome
        if most_drawn and outcome is not None and outcome.layout.qo_indptr.shape[0] > 1:
            number += 1
            if number <= most_drawn:
                out.print(draw_round(round_tree(outcome, 0), number, engine.tokenizer))
            elif number == most_drawn + 1:
                out.print("[dim]later rounds are not drawn (--rounds 0 draws all)[/]")
        elif not most_drawn:
            print("".join(update.text for update in updates), end="", flush=True)
    completion = engine.collect(request_id)
    print(f"\n{text}{completion.text}" if most_drawn else "")
    if completion.error:
        print(f"aerie: {completion.error}", file=sys.stderr)
    statistics = completion.statistics
    return {
        "ok": completion.error is None,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "mean_acceptance_length": round(statistics.mean_acceptance_length, 4),
        "target_passes": statistics.target_passes,
        "num_drafts": statistics.num_drafts,
        "num_draft_tokens": statistics.num_draft_tokens,
        "num_accepted_tokens": statistics.num_accepted_tokens,
    }


def _compare(
    plain: Engine, engine: Engine, text: str, params: SamplingParams, repeats: int
) -> dict[str, Any]:
    from rich.progress import Progress
    from rich.table import Table

    from aerie.bench.comparison import compare_decoding

    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task("comparing", total=2 * repeats + 2)
        result = compare_decoding(
            plain, engine, text, params, repeats, lambda: progress.advance(task)
        )
    payload = result.payload()
    table = Table("", "plain", "speculative", box=None)
    speeds, passes = payload["tokens_per_second"], payload["target_passes"]
    table.add_row("tokens/s", f"{speeds['plain']:.1f}", f"{speeds['speculative']:.1f}")
    table.add_row("target passes", str(passes["plain"]), str(passes["speculative"]))
    out = console()
    out.print(table)
    out.print(
        f"{payload['ratio']:.2f}x plain decoding, median of {repeats} interleaved pairs;"
        f" acceptance length {payload['mean_acceptance_length']:.2f},"
        f" round tax {payload['round_tax']:.2f}"
    )
    difference = payload["first_difference"]
    if difference is None:
        out.print(f"[green]identical[/]: all {payload['tokens']} tokens")
    else:
        out.print(
            f"[red]differs[/] at token {difference['index']}, logit gap"
            f" {difference['logit_gap']:.2e}; --numerics exact removes such near ties"
        )
    return payload
