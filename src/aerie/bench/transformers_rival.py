"""Plain decoding beside transformers' generate: the rival every engine is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aerie.api import Engine, find_pair
from aerie.bench.record import Interval, interval
from aerie.bench.turns import timed
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
        lengths = dict.fromkeys(("max_new_tokens", "min_new_tokens"), n_new)
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **lengths
            )

    return generate


def against_transformers(
    prompts: Sequence[list[int]], n_new: int, note: Callable[[str], None]
) -> Interval:
    """Plain decoding over transformers' generate: same pair, prompts and threads, interleaved."""
    generate = load_rival()
    plain = Engine.load(device="cpu", speculation={"method": "none"}, cache={"prefix_reuse": False})
    params = SamplingParams(max_tokens=n_new, temperature=0.0, ignore_eos=True)
    ratios = []
    for repeat, prompt in enumerate(prompts):
        note(f"transformers, repeat {repeat + 1}")
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(plain.generate, [prompt], params),
            "theirs": partial(generate, prompt, n_new),
        }
        order = list(calls) if repeat % 2 == 0 else list(reversed(calls))
        seconds = {name: timed(calls[name])() for name in order}
        ratios.append(seconds["theirs"] / seconds["ours"])
    found = interval(ratios)
    note(f"plain decoding / transformers: {found.median:.3f}")
    return found
