"""The head's stage: text the target wrote, training, files, then acceptance bucket by bucket."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from aerie.models.eagle3.blueprint import TargetSizes
from aerie.train.acceleration import fastest_attention
from aerie.train.batches import Batches
from aerie.train.checkpoints import load_target, write_json
from aerie.train.corpus import Corpus, manifest
from aerie.train.evaluate import LOOP_RULE, PromptResult, evaluate, summaries, write_table
from aerie.train.features import RunnerFeatures
from aerie.train.head_files import load_head_model, save_head
from aerie.train.head_model import PLAIN_HEAD, HeadModel, HeadRunner, head_shape
from aerie.train.heldout import encode_prompt, make_prompts
from aerie.train.loop import LoopState
from aerie.train.pair import MANIFEST_FILE, Folders, device_name, plain_values
from aerie.train.progress import Progress
from aerie.train.remarks import evaluation_remarks, ratios_to_short
from aerie.train.self_text import SelfTextPlan, write_self_text
from aerie.train.target_model import Pieces, TargetRunner, TurnTable
from aerie.train.train_head import HeadPlan, train_head
from aerie.train.train_target import activation_dtype, heldout_loss

HEAD_RECORD = "head_record.json"
EVALUATION = "evaluation.json"
TABLE = "acceptance.csv"

# The deepest state knows the next token best; the two others lie a third and two thirds down.
TAPS = (3, 6, 8)
WINDOW = 512
MLP_WIDTH = 2048

# Prompts tried per bucket. Three in four loop and are excluded; 64 must remain.
COUNTS = {512: 320, 32_768: 304, 16_384: 304, 4096: 272}
PROMPTS_AT_ONCE = 160  # 160 contexts of 32K keep 22 GB of keys and values


@dataclass(frozen=True)
class HeadStage:
    """What the stage is made of; the defaults are the shipped head's."""

    head: HeadPlan
    self_text: SelfTextPlan
    counts: Mapping[int, int] = field(default_factory=lambda: COUNTS)
    evaluation_wall: float = 0.0  # seconds of the run after which no further bucket begins
    begin_from: Path | None = None  # a trained head to go on from
    provenance: Mapping[str, object] = field(default_factory=dict)  # device, commit, versions


def open_target(directory: Path, device: str, progress: Progress) -> TargetRunner:
    """The shipped target, frozen, in the dtype the device computes in."""
    dtype = activation_dtype(device)
    model = load_target(directory, device, dtype).requires_grad_(False)
    runner = TargetRunner(model, TurnTable(model.shape, device), Pieces(), dtype)
    if torch.device(device).type != "cuda":
        return runner
    attend = fastest_attention(runner, [(68, 1024), (2, 34_816)], progress)
    return TargetRunner(model, runner.turns, Pieces(attend=attend), dtype)


def default_plan(target: TargetRunner, seconds: float, device: str) -> HeadPlan:
    """The shipped head's plan for this target."""
    shape = head_shape(target.model.shape, TAPS, MLP_WIDTH, WINDOW)
    return HeadPlan(seconds=seconds, shape=shape, device=device)


def make_head(
    corpus: Corpus, target: TargetRunner, stage: HeadStage, folders: Folders, progress: Progress
) -> dict[str, object]:
    """Train the head, save it, measure it; every part is on disk before the next begins."""
    plan = stage.head
    model = _first_weights(target, stage, progress)
    state = None
    if plan.seconds or plan.steps:
        state = _train(corpus, target, stage, model, progress)
    save_head(model, folders.head, target.model.shape.max_positions)
    progress.say(f"head: saved to {folders.head.name}/")
    if state is not None:
        write_json(folders.out / HEAD_RECORD, _record(stage, state, progress))
    with progress.phase("evaluation"):
        result = measure(corpus, target, _rounded_runner(model, target), stage, folders, progress)
    if state is not None:
        write_json(folders.out / HEAD_RECORD, _record(stage, state, progress))
    return result


def _first_weights(target: TargetRunner, stage: HeadStage, progress: Progress) -> HeadModel:
    """Fresh weights, or those of a trained head of the same shape."""
    plan = stage.head
    torch.manual_seed(plan.seed)
    if stage.begin_from is None:
        model = HeadModel(plan.shape).to(plan.device)
        model.begin_from(target.model.norm, target.model.lm_head)
        return model
    shape = target.model.shape
    sizes = TargetSizes(shape.n_layers, shape.hidden, shape.vocab_size)
    progress.say("head: going on from the trained one")
    return load_head_model(stage.begin_from, sizes).to(plan.device)


def _train(
    corpus: Corpus, target: TargetRunner, stage: HeadStage, model: HeadModel, progress: Progress
) -> LoopState:
    plan = stage.head
    with progress.phase("self-written text"):
        text = write_self_text(target, corpus.train.tokens, stage.self_text, progress)
    own, real = (
        Batches(tokens, plan.n_rows, plan.stages, plan.seed + i, plan.device)
        for i, tokens in enumerate((text, corpus.train.tokens))
    )
    with progress.phase("head"):
        # Two batches of the target's own text for one of the corpus.
        return train_head(RunnerFeatures(target), (own, own, real), model, plan, progress)


def _rounded_runner(model: HeadModel, target: TargetRunner) -> HeadRunner:
    """The head as shipped: weights rounded to bf16, arithmetic in float32."""
    rounded = copy.deepcopy(model).to(torch.bfloat16).float().requires_grad_(False)
    return HeadRunner(rounded, target.model.embed_tokens.float(), torch.float32, PLAIN_HEAD)


def measure(
    corpus: Corpus,
    target: TargetRunner,
    head: HeadRunner,
    stage: HeadStage,
    folders: Folders,
    progress: Progress,
) -> dict[str, object]:
    """Acceptance per bucket, written after each one; a bucket that fails is reported as such."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what training reserved, evaluation needs for its caches
    loss = heldout_loss(target, corpus.heldout.tokens, 1024, 1 << 62)
    progress.say(f"target: held-out loss {loss:.4f}")
    results: list[PromptResult] = []
    written_as = str(target.dtype).removeprefix("torch.")
    provenance = {**stage.provenance, "texts_written_in": written_as}
    tokenizer = Tokenizer.from_str(corpus.tokenizer_json)
    for bucket, count in stage.counts.items():
        if stage.evaluation_wall and progress.elapsed() > stage.evaluation_wall:
            progress.say(f"acceptance at {bucket}: no time left, not measured")
            continue
        prompts = make_prompts(corpus, bucket, count)
        with ThreadPoolExecutor() as pool:
            encoded = pool.map(partial(encode_prompt, tokenizer), [p.text for p in prompts])
            named = list(zip([p.name for p in prompts], encoded, strict=True))
        if not named:
            progress.say(f"acceptance at {bucket}: the held-out text is too short")
            continue
        try:
            found = [
                result
                for first in range(0, len(named), PROMPTS_AT_ONCE)
                for result in evaluate(target, head, named[first : first + PROMPTS_AT_ONCE], bucket)
            ]
        except RuntimeError as error:
            progress.say(f"acceptance at {bucket} failed: {error!r:.300}")
            continue
        results += found
        progress.say(f"acceptance at {bucket}: {summaries(found)[bucket]}")
        write_table(results, folders.out / TABLE)
        write_json(folders.out / EVALUATION, evaluation(loss, results, head, provenance))
    return evaluation(loss, results, head, provenance)


def evaluation(
    loss: float, results: Sequence[PromptResult], head: HeadRunner, provenance: Mapping[str, object]
) -> dict[str, object]:
    """The record of an evaluation; `acceptance` has the flat names that gates read."""
    flat = {}
    by_bucket = summaries(results)
    for bucket, summary in by_bucket.items():
        suffix = "" if bucket <= 512 else f"_{bucket // 1024}k"
        for name, value in summary.items():
            if isinstance(value, dict):
                flat[f"{name}{suffix}"] = value["mean"]
    return {
        "heldout_loss": round(loss, 5),
        "acceptance": flat,
        "of_short": ratios_to_short(results),
        "buckets": {str(bucket): summary for bucket, summary in by_bucket.items()},
        "loop_rule": LOOP_RULE,
        "taps": list(head.model.shape.taps),
        "window": head.model.shape.window,
        "provenance": dict(provenance),
        "remarks": evaluation_remarks(results, provenance),
    }


def check_corpus(corpus: Corpus, folder: Path, progress: Progress) -> bool:
    """Whether corpus and held-out files are those of the target's training; says so, too."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        progress.say(f"{MANIFEST_FILE} of the target's training is not there to compare with")
        return False
    stored = json.loads(path.read_text(encoding="utf-8"))
    own = manifest(corpus)
    names = ("heldout_files_sha256", "train_files_sha256", "tokenizer_sha256")
    for name in names:
        verdict = "the same as" if stored[name] == own[name] else "DIFFERENT from that"
        progress.say(f"corpus: {name} is {verdict} in the target's training")
    return all(stored[name] == own[name] for name in names)


def _record(stage: HeadStage, state: LoopState, progress: Progress) -> dict[str, object]:
    return {
        "plan": plain_values(stage.head),
        "self_text": plain_values(stage.self_text),
        "went_on_from": _earlier(stage),
        "steps": state.step,
        "tokens": state.tokens,
        "seconds": round(state.seconds, 1),
        "losses": state.losses,
        "phases": progress.phases,
        "torch": torch.__version__,
        "device": device_name(stage.head.device),
        "provenance": dict(stage.provenance),
    }


def _earlier(stage: HeadStage) -> object:
    """The record of the run that made the head this one went on from."""
    path = stage.begin_from.parent / HEAD_RECORD if stage.begin_from is not None else None
    if path is None or not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))
