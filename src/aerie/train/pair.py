"""The stages of making the pair: corpus, target, head; each leaves its files before the next."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from aerie.train.checkpoints import save_target, write_json
from aerie.train.corpus import Corpus, CorpusSettings, build_corpus, manifest
from aerie.train.heldout import SHIPPED, make_prompts, save_prompts
from aerie.train.progress import Progress
from aerie.train.remarks import corpus_remarks, quotes_vendored
from aerie.train.target_model import plain_runner
from aerie.train.tokenizer import save_tokenizer
from aerie.train.train_target import LONGEST, TargetPlan, heldout_loss, rounded, train_target

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ASSETS = Path(__file__).parents[1] / "assets"

SETUP_SECONDS = 75.0  # compilation before training, saving and measuring after it

MANIFEST_FILE = "corpus.json"
TARGET_RECORD = "target_record.json"


@dataclass(frozen=True)
class Folders:
    """Where the files of a run go."""

    out: Path

    @property
    def target(self) -> Path:
        """The target's model directory."""
        return self.out / "target"

    @property
    def head(self) -> Path:
        """The head's model directory."""
        return self.out / "head"

    @property
    def heldout(self) -> Path:
        """The held-out prompts."""
        return self.out / "heldout"


def make_corpus(settings: CorpusSettings, folders: Folders, progress: Progress) -> Corpus:
    """Collect the corpus and write its record, the tokenizer and the held-out prompts."""
    with progress.phase("corpus"):
        corpus = build_corpus(settings, progress)
    folders.out.mkdir(parents=True, exist_ok=True)
    make_corpus_files(corpus, folders, progress)
    return corpus


def make_corpus_files(corpus: Corpus, folders: Folders, progress: Progress) -> None:
    """Write the corpus record and the held-out prompts that are shipped."""
    record = manifest(corpus) | {"remarks": corpus_remarks(corpus)}
    write_json(folders.out / MANIFEST_FILE, record)
    with progress.phase("held-out prompts"):
        spread = (make_prompts(corpus, *sizes) for sizes in SHIPPED.items())
        prompts = [prompt for some in spread for prompt in some if not quotes_vendored(prompt)]
        save_prompts(corpus, prompts, folders.heldout)
        progress.say(f"held-out prompts: {len(prompts)}")


def within_wall(seconds: float, wall: float, reserve: float, progress: Progress) -> float:
    """Shorten a budget so that the run ends within `wall` seconds of its start.

    `reserve` is what the rest of the run takes; a wall of 0 is none.
    """
    left = wall - progress.elapsed() - reserve
    if not wall or left >= seconds:
        return seconds
    progress.say(f"budget cut from {seconds:.0f} to {left:.0f} s to end within {wall:.0f} s")
    return max(30.0, left)


def make_target(
    corpus: Corpus, plan: TargetPlan, folders: Folders, progress: Progress
) -> dict[str, object]:
    """Train the target, save it, then measure its held-out loss as shipped."""
    with progress.phase("target"):
        model, state = train_target(corpus, plan, progress)
    save_target(model, folders.target)
    save_tokenizer(corpus.tokenizer_json, folders.target, plan.shape.max_positions)
    progress.say(f"target: saved to {folders.target.name}/")
    record: dict[str, object] = {
        "plan": plain_values(plan),
        "steps": state.step,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "losses": state.losses,
        "torch": torch.__version__,
        "device": device_name(plan.device),
    }
    write_json(folders.out / TARGET_RECORD, record)
    runner = plain_runner(rounded(model, plan.device))
    with progress.phase("held-out loss"):
        record["heldout_loss"] = heldout_loss(runner, corpus.heldout.tokens, 1024, 1 << 62)
        progress.say(f"target: held-out loss {record['heldout_loss']:.4f} nats a token")
        write_json(folders.out / TARGET_RECORD, record)
        longest = max(length for stage in plan.stages for length in stage.weights)
        if longest == LONGEST:
            by_length = {
                str(n): heldout_loss(runner, corpus.heldout.tokens, n, 1_000_000)
                for n in (512, 4096, 17_408, LONGEST)
            }
            record["heldout_loss_by_length"] = by_length
            progress.say(f"target: held-out loss by window length {by_length}")
    record["phases"] = progress.phases
    write_json(folders.out / TARGET_RECORD, record)
    return record


def device_name(device: str) -> str:
    """The GPU's name, or `cpu`."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "cpu"


def plain_values(plan: DataclassInstance) -> object:
    """A plan as JSON values; without the places of checkpoints."""
    values = asdict(plan)
    values.pop("checkpoints", None)
    return json.loads(json.dumps(values, default=str))
