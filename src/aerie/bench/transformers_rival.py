"""Plain decoding beside transformers' generate: the rival every engine is asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aerie.api import Engine, find_pair
from aerie.bench.record import Interval, interval
from aerie.bench.turns import in_turns, timed
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
    given = {name: iter(prompts) for name in ("ours", "theirs")}
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: timed(lambda: plain.generate([next(given["ours"])], params))(),
        "theirs": lambda: timed(lambda: generate(next(given["theirs"]), n_new))(),
    }
    note(f"transformers, {len(prompts)} prompts")
    seconds = in_turns(ways, len(prompts), 0)
    found = interval([b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)])
    note(f"plain decoding / transformers: {found.median:.3f}")
    return found
