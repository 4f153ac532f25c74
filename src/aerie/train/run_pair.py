"""Runs of the whole recipe from the command line: the real pair, and the toy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aerie.train.card import write_cards
from aerie.train.corpus import CorpusSettings
from aerie.train.pair import Folders, make_corpus, make_target
from aerie.train.pair_head import HeadStage, default_plan, make_head, open_target
from aerie.train.progress import Progress
from aerie.train.run_head import SELF_TEXT_SECONDS
from aerie.train.self_text import SelfTextPlan
from aerie.train.target_model import TargetRunner
from aerie.train.toy import ToySteps, toy_corpus, toy_head, toy_target
from aerie.train.train_target import TargetPlan


def train_pair(
    out: Path, target_seconds: float, head_seconds: float, device: str, seed: int
) -> dict[str, object]:
    """Both models in one run, as they are shipped."""
    plan = TargetPlan(seconds=target_seconds, device=device, seed=seed)

    def head(target: TargetRunner) -> HeadStage:
        return HeadStage(
            default_plan(target, head_seconds, device), SelfTextPlan(SELF_TEXT_SECONDS)
        )

    return _train(out, CorpusSettings(), plan, head)


def train_toy_pair(out: Path, steps: ToySteps, seed: int) -> dict[str, object]:
    """The same recipe at toy sizes, on one CPU core."""
    plan = toy_target(steps.target, seed)
    return _train(out, toy_corpus(), plan, lambda target: toy_head(target, steps.head, seed + 1))


def _train(
    out: Path, text: CorpusSettings, plan: TargetPlan, head: Callable[[TargetRunner], HeadStage]
) -> dict[str, object]:
    progress, folders = Progress(), Folders(out)
    corpus = make_corpus(text, folders, progress)
    make_target(corpus, plan, folders, progress)
    target = open_target(folders.target, plan.device, progress)
    result = make_head(corpus, target, head(target), folders, progress)
    write_cards(folders)
    return result
