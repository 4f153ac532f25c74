"""Checks an inflated pair against its small one, and times it against a random one of its size.

Three questions, in the order in which they cost memory: does it write the same greedy tokens in
fp32, does it choose the same tokens and drafts in bf16 up to near ties, and does a model whose
every weight is random take the same time?
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.contract import PrepareAttention
from aerie.attention.rows import Bounds, causal_rows
from aerie.bench.turns import in_turns, recorded, timed
from aerie.models.decoder import Decoder
from aerie.models.inflate.embed import InflateOptions, LargePair, inflate_to_device, random_model
from aerie.models.inflate.geometry import ProductionGeometry
from aerie.models.inflate.pair import SmallPair
from aerie.models.load import LoadOptions
from aerie.models.probe_text import whole_texts
from aerie.models.written_text import Writing, continue_texts

NEAR_TIE = 4 * 2.0**-8  # of a logit: four steps of bf16
TIMED_ROWS = (1, 16)  # a decode, and a small tree
TIMED_PREFIX = 512
N_TIMED, N_WARM = 40, 5


@dataclass(frozen=True)
class CheckSettings:
    """Where and how much."""

    device: str = "cuda"
    n_new: int = 256
    exact_dtype: torch.dtype = torch.float32
    fast_dtype: torch.dtype = torch.bfloat16
    prefix: int = TIMED_PREFIX


@dataclass(frozen=True, eq=False)
class InflationCheck:
    """A pair, the geometry it goes into, and the small models of it by dtype."""

    pair: SmallPair
    geometry: ProductionGeometry
    load_small: Callable[[torch.dtype], LargePair]
    prepare: PrepareAttention
    settings: CheckSettings

    def run(self, prompts: Sequence[Tensor]) -> dict[str, Any]:
        """All three answers as JSON values; `ok` if each is as it must be."""
        exact = self.same_text(prompts)
        fast = self.same_choices(prompts)
        control = self.control()
        is_right = exact["equal_texts"] == exact["texts"]
        is_right &= fast["worst_token_lead"] <= NEAR_TIE and fast["worst_draft_lead"] <= NEAR_TIE
        is_timed = all(abs(row["ratio"] - 1) <= 0.02 for row in control)
        return {"ok": is_right and is_timed, "exact": exact, "fast": fast, "control": control}

    def inflate(self, dtype: torch.dtype) -> LargePair:
        """The large pair on the device."""
        return inflate_to_device(self.pair, self.geometry, self.prepare, self._options(dtype))

    def same_text(self, prompts: Sequence[Tensor]) -> dict[str, Any]:
        """Greedy text of both targets, written freely."""
        dtype, writing = self.settings.exact_dtype, Writing(self.settings.n_new)
        own = continue_texts(self.load_small(dtype).target, prompts, writing)
        made: list[LargePair] = []
        seconds = timed(lambda: made.append(self.inflate(dtype)), self.settings.device)()
        other = continue_texts(made[0].target, prompts, writing)
        equal = [torch.equal(a, b) for a, b in zip(own, other, strict=True)]
        return {
            "dtype": str(dtype),
            "texts": len(equal),
            "equal_texts": sum(equal),
            "tokens": self.settings.n_new * len(equal),
            "build_seconds": round(seconds, 2),
        }

    def same_choices(self, prompts: Sequence[Tensor]) -> dict[str, Any]:
        """First choices of targets and heads along the small target's text."""
        dtype = self.settings.fast_dtype
        small, large = self.load_small(dtype), self.inflate(dtype)
        tokens: list[float] = []
        drafts: list[float] = []
        n_choices = 0
        for text in continue_texts(small.target, prompts, Writing(self.settings.n_new)):
            own, other = _choices(small, text), _choices(large, text)
            tokens += overturned(own[0], other[0])
            drafts += overturned(own[1], other[1])
            n_choices += text.shape[0]
        return {
            "dtype": str(dtype),
            "choices": n_choices,
            "other_tokens": len(tokens),
            "worst_token_lead": max(tokens, default=0.0),
            "other_drafts": len(drafts),
            "worst_draft_lead": max(drafts, default=0.0),
        }

    def control(self) -> list[dict[str, Any]]:
        """Time of a pass of the inflated target over that of a random one, interleaved."""
        dtype, device = self.settings.fast_dtype, self.settings.device
        targets = {
            "inflated": self.inflate(dtype).target,
            "random": random_model(self.geometry, self.prepare, self._options(dtype)).target,
        }
        found = []
        for n_rows in TIMED_ROWS:
            ways = {
                name: timed(_pass(target, n_rows, self.settings), device)
                for name, target in targets.items()
            }
            spans = in_turns(ways, N_TIMED, N_WARM)
            ms = {f"{name}_ms": 1e3 * statistics.median(own) for name, own in spans.items()}
            ratio = ms["inflated_ms"] / ms["random_ms"]
            rounded = {name: round(own, 4) for name, own in ms.items()}
            found.append({"rows": n_rows, **rounded, "ratio": round(ratio, 4)})
        return found

    def _options(self, dtype: torch.dtype) -> InflateOptions:
        return InflateOptions(LoadOptions(dtype=dtype, device=self.settings.device))


def _choices(pair: LargePair, text: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the target and of the head along a text; live draft ids are those of the small."""
    rows = whole_texts((text,))
    every = torch.arange(rows.n_rows, device=text.device)
    pool = pair.target.allocate_pool(rows.n_rows + 1)
    out = pair.target.forward(rows, pool, every, pair.head.taps)
    pairs = whole_texts((text[1:],))
    drafts = pair.head.extend(pairs, out.taps[:-1], pair.head.allocate_pool(rows.n_rows + 1))
    return out.logits, drafts.logits.float()


def overturned(own: Tensor, other: Tensor) -> list[float]:
    """Leads, in units of the first logit, of first choices that the other logits do not share."""
    first, second = own.topk(2, dim=-1).values.unbind(-1)
    lead = (first - second) / first.abs()
    found: list[float] = lead[own.argmax(-1) != other.argmax(-1)].tolist()
    return found


def _pass(target: Decoder, n_rows: int, settings: CheckSettings) -> Callable[[], None]:
    """One forward over a prefix, as a captured graph on a GPU: launches are not what is asked."""
    device = torch.device(settings.device)
    n_columns = settings.prefix + n_rows
    slots = torch.arange(1, n_columns + 1, dtype=torch.int32, device=device)
    qo, kv = (torch.tensor([0, n], dtype=torch.int32, device=device) for n in (n_rows, n_columns))
    tokens = torch.arange(n_rows, device=device)
    rows = causal_rows(tokens, qo, kv, slots, Bounds(n_rows, n_columns))
    pool = target.allocate_pool(n_columns + 1)
    every = torch.arange(n_rows, device=device)

    def forward() -> None:
        target.forward(rows, pool, every)

    return recorded(forward).replay if device.type == "cuda" else forward
