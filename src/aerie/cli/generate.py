"""`aerie generate`: complete a prompt, draw its trees, or compare with plain decoding."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.checks import Json, amount, count
from aerie.cli.engine_options import EngineOptions, takes_engine_options
from aerie.cli.output import console, finish, progress_console
from aerie.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from aerie.api import Completion, Engine
    from aerie.requests.params import SamplingParams
    from aerie.text.tokenizer import Tokenizer

PROMPT = '''def read_lines(path):
    """Read a text file and return its lines."""
'''

Text = Annotated[str | None, typer.Argument(help="Prompt; - reads standard input.")]
NewTokens = Annotated[int, count(1, "Most tokens to generate.")]
Temperature = Annotated[float, amount(0.0, "0 is greedy.")]
TopK = Annotated[int, count(0, "Sample among the k best; 0 is off.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample within this probability mass.")]
Seed = Annotated[
    int | None, typer.Option(min=-(1 << 63), max=(1 << 63) - 1, help="Same seed, same tokens.")
]
Stop = Annotated[list[str] | None, typer.Option(help="Stop string; may be given several times.")]
Logprobs = Annotated[
    int | None,
    typer.Option(
        min=0, max=20, help="Print each token's log-probability and so many alternatives."
    ),
]
ShowTree = Annotated[bool, typer.Option("--show-tree", help="Draw each round's tree.")]
Rounds = Annotated[int, count(0, "Rounds --show-tree draws; 0: all.")]
Compare = Annotated[bool, typer.Option("--compare", help="Also decode plainly, interleaved.")]
Repeats = Annotated[int, count(1, "Interleaved pairs of --compare.")]


@takes_engine_options
def generate(
    options: EngineOptions,
    prompt: Text = None,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    logprobs: Logprobs = None,
    show_tree: ShowTree = False,
    rounds: Rounds = 0,
    compare: Compare = False,
    repeats: Repeats = 3,
    as_json: Json = False,
) -> None:
    """Complete a prompt with speculation; the text streams to standard output."""
    from aerie.requests.params import SamplingParams

    params = SamplingParams(
        max_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=0 if seed is None and compare else seed,
        stop=tuple(stop or ()),
        logprobs=logprobs,
    )
    given = PROMPT if prompt is None else prompt
    text = _standard_input() if given == "-" else given
    # Memory for one text, so that --compare has room for a second engine.
    settings: dict[str, Any] = {"scheduler": {"max_batch": options.memory.max_batch or 1}}
    if options.memory.warm == "auto" and not compare:
        settings["graphs"] = {"warm": "off"}  # one text meets few of them
    engine = options.load(**settings)
    payload = _stream(engine, text, params, (rounds or sys.maxsize) if show_tree else 0)
    if compare:
        plain = options.load(**settings, speculation={"method": "none"}, planner={}, partial={})
        payload = _compare(plain, engine, text, params, repeats)
    finish(payload, as_json)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not text: {error}") from error


def _stream(engine: Engine, text: str, params: SamplingParams, most_drawn: int) -> dict[str, Any]:
    """Print the text as it is decided, or draw each round's tree and print the text at the end."""
    from aerie.cli.tree_view import draw_round, label

    out = console()
    request_id = engine.submit(text, params)
    if not most_drawn:
        print(text, end="", flush=True)
    number = 0
    while engine.core.request(request_id).ended is None:
        updates = engine.step()
        tree = engine.core.launcher.trees.get(request_id)
        if most_drawn and tree is not None:
            number += 1
            if number <= most_drawn:
                out.print(draw_round(tree, f"round {number}", partial(label, engine.tokenizer)))
            elif number == most_drawn + 1:
                out.print("[dim]later rounds are not drawn (--rounds 0 draws all)[/]")
        elif not most_drawn:
            print("".join(update.text for update in updates), end="", flush=True)
    completion = engine.collect(request_id)
    print(f"\n{text}{completion.text}" if most_drawn else "")
    if completion.error:
        print(f"aerie: {completion.error}", file=sys.stderr)
    if completion.logprobs is not None:
        out.print(_scores(engine.tokenizer, completion))
    return _payload(engine, completion)


def _scores(tokenizer: Tokenizer, completion: Completion) -> Table:
    """Every token on a line, with its log-probability and the best alternatives'."""
    from rich.table import Table

    from aerie.cli.tree_view import label

    table = Table("token", "log-probability", "best", box=None)
    for token_id, own in zip(completion.token_ids, completion.logprobs or (), strict=True):
        best = (f"{label(tokenizer, other)} [dim]{value:.4f}[/]" for other, value in own.top)
        table.add_row(label(tokenizer, token_id), f"{own.logprob:.4f}", "  ".join(best))
    return table


def _payload(engine: Engine, completion: Completion) -> dict[str, Any]:
    """What is said in JSON; that nothing was drafted is said at once, with the reason."""
    statistics = completion.statistics
    reason = engine.core.parts.policy.reason
    is_asked = engine.config.speculation.method != "none"
    if is_asked and statistics.target_passes and not statistics.num_drafts:
        progress_console().print(f"[dim]nothing was drafted: {reason}[/]", soft_wrap=True)
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
        "acceptance_by_context": statistics.by_context.lengths(),
        "near_ties": statistics.near_ties.rate,
        "policy_reason": reason,
        "logprobs": completion.logprobs and [asdict(own) for own in completion.logprobs],
    }


def _compare(
    plain: Engine, engine: Engine, text: str, params: SamplingParams, repeats: int
) -> dict[str, Any]:
    from rich.progress import Progress
    from rich.table import Table

    from aerie.bench.comparison import compare_decoding

    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task("comparing", total=2 * repeats + 2)
        payload = compare_decoding(
            plain, engine, text, params, repeats, lambda: progress.advance(task)
        )
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
