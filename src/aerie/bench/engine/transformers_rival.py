"""Plain decoding beside transformers' generate: the rival every engine is asked about."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from aerie.api import Engine, find_pair
from aerie.bench.engine.contract import SHORT, choose_prompts
from aerie.bench.engine.place import Setting
from aerie.bench.record import Interval, interval
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams


def load_rival() -> Callable[[list[int], int], None]:
    """transformers' generate on the built-in target: greedy, so many new tokens, float32."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise UsageError("transformers is not installed: pip install transformers") from error
    directory, _ = find_pair(None, None)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def generate(prompt: list[int], n_new: int) -> None:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=n_new,
                min_new_tokens=n_new,
                pad_token_id=0,
            )

    return generate


def against_transformers(setting: Setting) -> Interval:
    """Plain decoding over transformers' generate: same pair, prompts and threads, interleaved."""
    generate = load_rival()
    plain = Engine.load(device="cpu", speculation={"method": "none"}, cache={"prefix_reuse": False})
    groups_of = choose_prompts(SHORT, setting.encode)
    contract, note = setting.contract, setting.note
    n_new, ratios = contract.tokens, []
    params = SamplingParams(max_tokens=n_new, temperature=0.0, ignore_eos=True)
    for repeat in range(contract.repeats):
        prompt = groups_of(1, repeat)[0]
        note(f"transformers, repeat {repeat + 1}")

        def ours(prompt: list[int] = prompt) -> None:
            plain.generate([prompt], params)

        def theirs(prompt: list[int] = prompt) -> None:
            generate(prompt, n_new)

        calls = (ours, theirs) if repeat % 2 == 0 else (theirs, ours)
        seconds = {call: seconds_of(call) for call in calls}
        ratios.append(seconds[theirs] / seconds[ours])
    note(f"plain decoding / transformers: {statistics.median(ratios):.3f}")
    return interval(ratios)


def seconds_of(call: Callable[[], None]) -> float:
    """Wall clock of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
