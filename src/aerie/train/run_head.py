"""Runs of head training from the command line: for the built-in target, and for any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aerie.errors import UsageError
from aerie.train.batches import Stage
from aerie.train.corpus import CorpusSettings, build_corpus
from aerie.train.loop import STATE_FILE
from aerie.train.pair import ASSETS, Folders, make_corpus_files, within_wall
from aerie.train.pair_head import HeadStage, check_corpus, default_plan, make_head, open_target
from aerie.train.progress import Progress
from aerie.train.self_text import SelfTextPlan
from aerie.train.train_head import HeadPlan
from aerie.train.train_target import LONG, LONGEST, MIDDLE, SHORT

BUILT_IN = ASSETS / "pair"
CHECKPOINT = "head-checkpoint"

# Seconds behind head training: compiling the head's pieces (31), saving, four buckets of evaluation
# (three of them took 140 on a machine with a slow CPU: with 165 in reserve the fourth was not
# reached).
AFTER_SECONDS = 205.0
SELF_TEXT_SECONDS = 45.0

# A head that goes on leans to long contexts: after the first run, chains at 32K were accepted
# 0.92 times as far as at 512, the lowest share of all lengths.
LATER_STAGES = (Stage(0.0, {SHORT: 0.3, MIDDLE: 0.15, LONG: 0.2, LONGEST: 0.35}),)


def train_for_built_in(
    out: Path,
    device: str,
    seconds: float,
    wall: float,
    is_resumed: bool,
    provenance: Mapping[str, object],
) -> dict[str, object]:
    """Head of the shipped target, on the corpus of this machine and on the target's own text.

    `seconds` of training, 0 only measures; `wall` seconds of the whole run, 0 is no limit.
    """
    progress, folders = Progress(), Folders(out)
    progress.say(f"provenance: {dict(provenance)}")
    out.mkdir(parents=True, exist_ok=True)
    target = open_target(BUILT_IN / "target", device, progress)
    tokenizer = (BUILT_IN / "target" / "tokenizer.json").read_text(encoding="utf-8")
    with progress.phase("corpus"):
        corpus = build_corpus(CorpusSettings(tokenizer_json=tokenizer), progress)
    trained = _trained_head(out, is_resumed)
    is_same = check_corpus(corpus, BUILT_IN, progress)
    if trained is not None and not is_same:
        raise UsageError(
            "the corpus of this machine is not the one the shipped pair was trained on, so its "
            "held-out files may not be new to the pair; train a head afresh without --resume"
        )
    # Again, so that the shipped prompts are always the first of those measured here.
    make_corpus_files(corpus, folders, progress)
    if seconds:
        seconds = within_wall(seconds, wall, AFTER_SECONDS + SELF_TEXT_SECONDS, progress)
    plan = default_plan(target, seconds, device)
    text = SelfTextPlan(SELF_TEXT_SECONDS)
    if trained is not None:
        text, plan = replace(text, seed=text.seed + 100), _later_plan(plan)
    plan = replace(plan, checkpoints=out / CHECKPOINT, is_resumed=is_resumed)
    stage = HeadStage(
        plan, text, evaluation_wall=max(0.0, wall - 15), begin_from=trained, provenance=provenance
    )
    return make_head(corpus, target, stage, folders, progress)


def _later_plan(plan: HeadPlan) -> HeadPlan:
    """Other batches than the first time, longer ones, from half the rate."""
    slower = replace(plan.optimizer, matrix_rate=0.01, other_rate=1e-3)
    return replace(plan, seed=plan.seed + 100, optimizer=slower, stages=LATER_STAGES)


def _trained_head(out: Path, is_resumed: bool) -> Path | None:
    """The shipped head, if a run is to go on and has no checkpoint of its own."""
    shipped = BUILT_IN / "head"
    if not is_resumed or (out / CHECKPOINT / STATE_FILE).is_file() or not shipped.is_dir():
        return None
    return shipped
