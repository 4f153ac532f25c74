"""The report of the shipped pair: committed tables, and some prompts computed again on a CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from aerie.errors import UsageError
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.train.acceptance import DRAFTS, bootstrap_interval, mean_length
from aerie.train.evaluate import N_NEW, PromptResult, ranks_along, read_table
from aerie.train.head_files import load_head_model
from aerie.train.head_model import PLAIN_HEAD, HeadRunner
from aerie.train.heldout import LONGEST, SHORT, Prompt, encode_prompt, load_prompts
from aerie.train.pair_head import EVALUATION, TABLE, evaluation, open_target
from aerie.train.progress import Progress
from aerie.train.target_model import TargetRunner
from aerie.train.tokenizer import load_tokenizer
from aerie.train.writing import Writer, WritingSize, repeated_share


@dataclass(frozen=True)
class Floor:
    """A number the shipped pair must reach; an absolute one, or a share of another."""

    name: str
    least: float
    of: str = ""


FLOORS = (
    Floor("chain3", 3.2),
    Floor("chain5", 4.2),
    Floor("chain3_16k", 0.92, of="chain3"),
    Floor("chain3_32k", 0.92, of="chain3"),
    Floor("chain5_16k", 0.92, of="chain5"),
    Floor("chain5_32k", 0.92, of="chain5"),
    Floor("tree3_16k", 3.0),
    Floor("tree3_32k", 3.0),
)
MOST_LOSS = 1.5


def report(assets: Path, n_short: int, n_long: int, progress: Progress) -> dict[str, object]:
    """Read the committed evaluation, check its floors, compute some prompts again."""
    pair = assets / "pair"
    for name in (EVALUATION, TABLE):
        if not (pair / name).is_file():
            raise UsageError(f"{pair / name} does not exist; `aerie train head` writes it")
    committed = json.loads((pair / EVALUATION).read_text(encoding="utf-8"))
    rows = read_table(pair / TABLE)
    head = open_head(pair)
    # From the table, not from the summary beside it: the table is what was measured.
    payload = evaluation(committed["heldout_loss"], rows, head, committed.get("provenance", {}))
    acceptance = payload["acceptance"]
    assert isinstance(acceptance, dict)
    payload["floors"] = _check_floors(acceptance, committed["heldout_loss"])
    again = {
        str(bucket): recompute(assets, head, rows, (bucket, count), progress)
        for bucket, count in ((SHORT, n_short), (LONGEST, n_long))
        if count
    }
    payload["recomputed"] = again
    floors = payload["floors"]
    assert isinstance(floors, list)
    payload["ok"] = all(floor["passed"] for floor in floors) and all(
        bool(entry["agrees"]) for entry in again.values()
    )
    return payload


def _check_floors(acceptance: dict[str, float], loss: float) -> list[dict[str, object]]:
    """Each floor with its value; a number that is not there does not pass."""
    out: list[dict[str, object]] = [
        {"name": "heldout_loss", "value": loss, "most": MOST_LOSS, "passed": loss <= MOST_LOSS}
    ]
    for floor in FLOORS:
        value = acceptance.get(floor.name, 0.0)
        least = floor.least * (acceptance.get(floor.of, 0.0) if floor.of else 1.0)
        out.append(
            {
                "name": floor.name,
                "value": value,
                "least": round(least, 4),
                "passed": value >= least > 0,
            }
        )
    return out


def open_head(pair: Path) -> HeadRunner:
    """The shipped head over the shipped embedding, in float32 on the CPU."""
    target = open_target(pair / "target", "cpu", Progress(write=lambda line: None))
    shape = target.model.shape
    sizes = TargetSizes(shape.n_layers, shape.hidden, shape.vocab_size)
    model = load_head_model(pair / "head", sizes).requires_grad_(False)
    return HeadRunner(model, target.model.embed_tokens, torch.float32, PLAIN_HEAD)


def recompute(
    assets: Path,
    head: HeadRunner,
    rows: Sequence[PromptResult],
    wanted: tuple[int, int],
    progress: Progress,
) -> dict[str, object]:
    """Decode shipped prompts of one bucket again and compare with their rows in the table.

    On another device near ties fall differently and the texts part there, so means are compared,
    of the same prompts, looping or not: a prompt may loop in one text and not in the other. They
    must differ by no more than the committed interval, widened to so few prompts and to a
    difference of two measurements.
    """
    bucket, count = wanted
    target = open_target(assets / "pair" / "target", "cpu", progress)
    tokenizer = load_tokenizer(assets / "pair" / "target")
    by_name = {row.name: row for row in rows if row.bucket == bucket}
    shipped = [p for p in load_prompts(assets / "heldout") if p.name in by_name][:count]
    begun = time.monotonic()
    fresh = []
    # Steps over a short context are too small to share: on a busy machine a second thread made
    # them 16 times slower. The pass over a long one gains from every core.
    with limited_threads(1 if bucket <= SHORT else torch.get_num_threads()):
        for prompt in shipped:
            tokens = encode_prompt(tokenizer, prompt.text)
            fresh.append(evaluate_one(target, head, prompt, tokens))
            progress.say(f"{prompt.name}: {len(tokens)} tokens, chain3 {fresh[-1].walks['chain3']}")
    out: dict[str, object] = {
        "prompts": len(fresh),
        "looping": sum(result.is_loop for result in fresh),
        "looping_in_table": sum(by_name[result.name].is_loop for result in fresh),
        "seconds": round(time.monotonic() - begun, 1),
    }
    agrees = len(fresh) == count
    for draft in DRAFTS if fresh else ():
        walks = [row.walks[draft.name] for row in by_name.values()]
        low, high = bootstrap_interval(walks)
        tolerance = (high - low) / 2 * (2 * len(walks) / len(fresh)) ** 0.5
        now = mean_length([result.walks[draft.name] for result in fresh])
        then = mean_length([by_name[result.name].walks[draft.name] for result in fresh])
        out[draft.name] = {
            "mean": round(now, 4),
            "committed_same_prompts": round(then, 4),
            "tolerance": round(tolerance, 4),
        }
        agrees = agrees and abs(now - then) <= tolerance
    out["agrees"] = agrees
    return out


@contextmanager
def limited_threads(n_threads: int) -> Iterator[None]:
    """Let torch use this many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def evaluate_one(
    target: TargetRunner, head: HeadRunner, prompt: Prompt, tokens: list[int]
) -> PromptResult:
    """One prompt with one pass over its context: the states are kept as the text is written."""
    n_prompt = len(tokens)
    size = WritingSize(1, n_prompt + N_NEW, N_NEW)
    writer = Writer(target, size, head.model.shape.taps)
    lengths = torch.tensor([n_prompt])
    written = writer.write(torch.tensor([tokens]), lengths, torch.zeros(1))
    text = torch.cat([torch.tensor([tokens]), written], dim=1)
    taps = torch.cat(writer.captured)[None]
    # The last token has been written but not read: its states are not asked for.
    padded = torch.nn.functional.pad(taps, (0, 0, 0, text.shape[1] - taps.shape[1]))
    ranks = ranks_along(head, text, lengths, padded)[0].numpy()
    return PromptResult.of(
        prompt.name, prompt.bucket, n_prompt, float(repeated_share(written)[0]), ranks
    )
