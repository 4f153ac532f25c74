"""Runs of head training from the command line: for the built-in target, and for any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aerie.train.corpus import CorpusSettings, build_corpus
from aerie.train.loop import STATE_FILE
from aerie.train.pair import ASSETS, Folders, make_prompt_files, within_wall
from aerie.train.pair_head import HeadStage, check_corpus, default_plan, make_head, open_target
from aerie.train.progress import Progress
from aerie.train.self_text import SelfTextPlan

BUILT_IN = ASSETS / "pair"
CHECKPOINT = "head-checkpoint"

# Seconds behind head training: compiling the head's pieces, saving, four buckets of evaluation.
AFTER_SECONDS = 165.0
SELF_TEXT_SECONDS = 45.0


def train_for_built_in(
    out: Path, device: str, seconds: float, wall: float, is_resumed: bool
) -> dict[str, object]:
    """Head of the shipped target, on the corpus of this machine and on the target's own text."""
    progress = Progress()
    folders = Folders(out)
    out.mkdir(parents=True, exist_ok=True)
    target = open_target(BUILT_IN / "target", device, progress)
    tokenizer = (BUILT_IN / "target" / "tokenizer.json").read_text(encoding="utf-8")
    with progress.phase("corpus"):
        corpus = build_corpus(CorpusSettings(tokenizer_json=tokenizer), progress)
    check_corpus(corpus, BUILT_IN, progress)
    # Again, so that the shipped prompts are always the first of those measured here.
    make_prompt_files(corpus, folders, progress)
    if seconds:
        seconds = within_wall(seconds, wall, AFTER_SECONDS + SELF_TEXT_SECONDS, progress)
    plan = default_plan(target, seconds, device)
    text = SelfTextPlan(SELF_TEXT_SECONDS)
    trained = trained_head(out, is_resumed)
    if trained is not None:
        # Other text and other batches than the first time, from half the rate.
        text, seed = replace(text, seed=text.seed + 100), plan.seed + 100
        slower = replace(plan.optimizer, matrix_rate=0.01, other_rate=1e-3)
        plan = replace(plan, seed=seed, optimizer=slower)
    plan = replace(plan, checkpoints=out / CHECKPOINT, is_resumed=is_resumed)
    stage = HeadStage(plan, text, evaluation_wall=max(0.0, wall - 15), begin_from=trained)
    return make_head(corpus, target, stage, folders, progress)


def trained_head(out: Path, is_resumed: bool) -> Path | None:
    """The shipped head, if a run is to go on and has no checkpoint of its own."""
    shipped = BUILT_IN / "head"
    if not is_resumed or (out / CHECKPOINT / STATE_FILE).is_file() or not shipped.is_dir():
        return None
    return shipped
