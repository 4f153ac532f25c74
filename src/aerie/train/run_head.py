"""Runs of head training from the command line: for the built-in target, and for any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aerie.train.corpus import CorpusSettings, build_corpus
from aerie.train.pair import ASSETS, MANIFEST_FILE, Folders, within_wall
from aerie.train.pair_head import HeadStage, check_corpus, default_plan, make_head, open_target
from aerie.train.progress import Progress
from aerie.train.self_text import SelfTextPlan

BUILT_IN = ASSETS / "pair"

# Seconds behind head training: compiling the head's pieces, saving, four buckets of evaluation.
AFTER_SECONDS = 115.0
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
    check_corpus(corpus, (BUILT_IN / MANIFEST_FILE).parent, progress)
    budget = within_wall(seconds, wall, AFTER_SECONDS + SELF_TEXT_SECONDS, progress)
    plan = replace(
        default_plan(target, budget, device),
        checkpoints=out / "head-checkpoint",
        is_resumed=is_resumed,
    )
    stage = HeadStage(plan, SelfTextPlan(SELF_TEXT_SECONDS), evaluation_wall=max(0.0, wall - 15))
    return make_head(corpus, target, stage, folders, progress)
