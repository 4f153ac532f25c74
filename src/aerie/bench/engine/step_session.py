"""`aerie bench step`: plain decoding, a chain of five and transformers take turns, by phase."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aerie.bench.engine.contract import choose_prompts
from aerie.bench.engine.step import METHODS, Series, open_engine, run_steps
from aerie.bench.engine.transformers_rival import load_rival, seconds_of
from aerie.bench.provenance import provenance

Note = Callable[[str], None]
WARM_STEPS = 3
RIVAL_TOKENS = 33


@dataclass(frozen=True)
class StepPlan:
    """What is timed."""

    batches: tuple[int, ...]
    context: int
    steps: int  # of every turn
    repeats: int  # turns
    with_rival: bool


@dataclass
class StepSession:
    """The series of all methods and batch sizes, and the rival's milliseconds a token."""

    series: list[Series] = field(default_factory=list)
    rival: list[float] = field(default_factory=list)

    def payload(self) -> dict[str, Any]:
        """The machine-readable result."""
        rival = None
        if self.rival:
            middle = statistics.median(self.rival)
            rival = {"least": round(min(self.rival), 4), "median": round(middle, 4)}
        return {
            "ok": bool(self.series),
            "transformers_token_ms": rival,
            "points": [series.payload() for series in self.series],
            "provenance": provenance("cpu"),
        }


def run_session(plan: StepPlan, note: Note) -> StepSession:
    """All methods take turns on the same prompts; the order flips so that drift hits all alike."""
    session = StepSession()
    for batch in plan.batches:
        note(f"batch {batch}: loading")
        engines = {method: open_engine(method, batch) for method in METHODS}
        encode = next(iter(engines.values())).tokenizer.encode
        prompts_of = choose_prompts(plan.context, encode)
        kept = {method: Series(method, batch) for method in METHODS}
        rival = load_rival() if plan.with_rival and batch == 1 else None
        for engine in engines.values():
            run_steps(engine.core, prompts_of(batch, 0), WARM_STEPS)
        for repeat in range(plan.repeats):
            note(f"batch {batch}: turn {repeat + 1} of {plan.repeats}")
            prompts = prompts_of(batch, repeat)
            order = list(engines.items())
            for method, engine in order if repeat % 2 == 0 else reversed(order):
                found = run_steps(engine.core, prompts, plan.steps)
                kept[method].steps += found.steps
                kept[method].tokens += found.tokens
            if rival is not None:
                session.rival.append(_rival_ms(rival, prompts[0]))
        session.series += kept.values()
    return session


def _rival_ms(generate: Callable[[list[int], int], None], prompt: list[int]) -> float:
    """Milliseconds a token of decoding alone: reading the prompt is in both runs."""
    one = seconds_of(lambda: generate(prompt, 1))
    many = seconds_of(lambda: generate(prompt, RIVAL_TOKENS))
    return (many - one) * 1e3 / (RIVAL_TOKENS - 1)
