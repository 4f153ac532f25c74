"""Runs of the whole recipe from the command line: the real pair, and the toy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.train.card import write_cards
from aerie.train.corpus import CorpusSettings
from aerie.train.pair import Folders, make_corpus, make_target
from aerie.train.pair_head import HeadStage, default_plan, make_head, open_target
from aerie.train.progress import Progress
from aerie.train.run_head import SELF_TEXT_SECONDS
from aerie.train.self_text import SelfTextPlan
from aerie.train.toy import ToySteps, toy_corpus, toy_head, toy_target
from aerie.train.train_target import TargetPlan


@dataclass(frozen=True)
class PairBudget:
    """Seconds of training."""

    target: float
    head: float


def train_pair(out: Path, budget: PairBudget, device: str, seed: int) -> dict[str, object]:
    """Both models in one run, as they are shipped."""
    progress, folders = Progress(), Folders(out)
    corpus = make_corpus(CorpusSettings(), folders, progress)
    plan = TargetPlan(seconds=budget.target, device=device, seed=seed)
    make_target(corpus, plan, folders, progress)
    target = open_target(folders.target, device, progress)
    head = default_plan(target, budget.head, device)
    stage = HeadStage(head, SelfTextPlan(SELF_TEXT_SECONDS))
    result = make_head(corpus, target, stage, folders, progress)
    write_cards(folders)
    return result


def train_toy_pair(out: Path, steps: ToySteps, seed: int) -> dict[str, object]:
    """The same recipe at toy sizes, on one CPU core."""
    progress, folders = Progress(), Folders(out)
    corpus = make_corpus(toy_corpus(), folders, progress)
    make_target(corpus, toy_target(steps.target, seed), folders, progress)
    target = open_target(folders.target, "cpu", progress)
    stage = toy_head(target, steps.head, seed + 1)
    result = make_head(corpus, target, stage, folders, progress)
    write_cards(folders)
    return result
