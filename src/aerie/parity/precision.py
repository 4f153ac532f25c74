"""Approximations an accelerator might make, as taps on the kernels: what each costs is measured.

A tap replaces one kernel of a loaded backend by an approximate version of it; the engine around it
is unchanged. `scripts/precision_study.py` decodes with each and reports what it does to acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.kernels.registry import Kernel, Kernels

SOFTMAX = "convert_logits_to_probas"
LAYER = "draft_tree_layer_score_index_gen_op"
GREEDY_TEMPERATURE = 1e-6  # as in K5's card

Round = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Variant:
    """One approximation: which kernel it changes, and how."""

    name: str
    kernel: str
    meaning: str
    change: Callable[[Kernel], Callable[..., Any]]

    def tap(self, kernels: Kernels) -> Kernels:
        """The kernels with this one approximated."""
        changed: dict[str, Any] = dict(kernels)
        changed[self.kernel] = self.change(kernels[self.kernel])
        return Kernels(kernels.backend, kernels.device, kernels.data_errors, changed)


# ------------------------------------------------------------------ roundings of values in [0, 1]


def _as_dtype(dtype: torch.dtype) -> Round:
    """Through a narrower float and back."""
    return lambda values: values.to(dtype).to(values.dtype)


def as_fixed(bits: int) -> Round:
    """Unsigned fixed point with so many fractional bits, rounded to nearest; for [0, 1]."""
    return lambda values: torch.round(values * float(1 << bits)) / float(1 << bits)


def as_int8_rows(rows: Tensor) -> Tensor:
    """Signed 8-bit integers with one float32 scale a row."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127.0
    return torch.round(rows / scale) * scale


# ----------------------------------------------------------------------- exp(d) for d <= 0, cheaply


def _split(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """exp(d) = 2^k * 2^f with 0 <= f < 1."""
    scaled = exponents * (1.0 / math.log(2.0))
    whole = torch.floor(scaled)
    return whole, scaled - whole


def table_exp(entries: int) -> Round:
    """2^f from a table of midpoints, no interpolation."""
    middles = torch.exp2((torch.arange(entries) + 0.5) / entries)

    def run(exponents: Tensor) -> Tensor:
        whole, fraction = _split(exponents.clamp(min=-1e4))
        index = (fraction * entries).long().clamp(max=entries - 1)
        return torch.ldexp(middles[index], whole.int())

    return run


def linear_exp(pieces: int) -> Round:
    """2^f by straight lines between the ends of equal pieces; one piece is shift and add."""
    ends = torch.exp2(torch.arange(pieces + 1) / pieces)

    def run(exponents: Tensor) -> Tensor:
        whole, fraction = _split(exponents.clamp(min=-1e4))
        place = fraction * pieces
        index = place.long().clamp(max=pieces - 1)
        value = ends[index] + (ends[index + 1] - ends[index]) * (place - index)
        return torch.ldexp(value, whole.int())

    return run


def _rounded_exp(rounding: Round) -> Round:
    """The exact exp, its result rounded."""
    return lambda exponents: rounding(torch.exp(exponents.clamp(min=-1e4)))


def approximate_softmax(exp: Round, rounding: Round | None = None) -> Callable[[Kernel], Any]:
    """K5 with another exp, and its result rounded. Greedy rows and refusals are the kernel's."""

    def change(kernel: Kernel) -> Callable[..., Any]:
        def run(*, logits: Tensor, temperature: Tensor, qo_indptr: Tensor) -> Any:
            exact = kernel(logits=logits, temperature=temperature, qo_indptr=qo_indptr)
            n_rows = qo_indptr.diff().long()
            heat = torch.repeat_interleave(temperature, n_rows)
            rows = torch.nonzero(heat >= GREEDY_TEMPERATURE)[:, 0]
            heated = logits[rows] / heat[rows, None]
            powers = exp(heated - heated.amax(-1, keepdim=True))
            probas = powers / powers.sum(-1, keepdim=True)
            made = exact.target_probas.clone()
            made[rows] = rounding(probas) if rounding else probas
            return exact._replace(target_probas=made)

        return run

    return change


# --------------------------------------------------------------------------------- the draft layer


def rounded_hidden(rounding: Round) -> Callable[[Kernel], Any]:
    """K1 whose hidden rows travel to the next level in fewer bits."""

    def change(kernel: Kernel) -> Callable[..., Any]:
        def run(**inputs: Any) -> Any:
            layer = kernel(**inputs)
            return layer._replace(output_hidden=rounding(layer.output_hidden))

        return run

    return change


def rounded_scores(rounding: Round) -> Callable[[Kernel], Any]:
    """K1 whose path scores are kept in fewer bits: rounded, then sorted, then carried on."""

    def change(kernel: Kernel) -> Callable[..., Any]:
        def run(**inputs: Any) -> Any:
            layer = kernel(**inputs)
            top_k, width = layer.cache_topk_indices.shape[1], inputs["last_layer_scores"].shape[1]
            scores = rounding(layer.curr_layer_scores)
            # Negated, so that NaN comes last, as in the card.
            ordered = torch.sort(-scores, dim=1, stable=True)
            best = ordered.indices[:, :top_k]
            parents = best // top_k
            batch = scores.shape[0]
            hidden = inputs["input_hidden"].reshape(batch, width, -1)
            chosen = torch.arange(batch)[:, None]
            return layer._replace(
                curr_layer_scores=scores,
                sort_layer_scores=-ordered.values,
                sort_layer_indices=ordered.indices,
                cache_topk_indices=best + inputs["cumu_count"],
                parent_indices_in_layer=parents,
                output_hidden=hidden[chosen, parents],
            )

        return run

    return change


VARIANTS: tuple[Variant, ...] = (
    *(
        Variant(f"exp-{name}", SOFTMAX, meaning, approximate_softmax(exp, rounding))
        for name, meaning, exp, rounding in (
            ("float32", "exp and its sum in float32", torch.exp, None),
            ("table-256", "2^f from 256 entries", table_exp(256), None),
            ("table-64", "2^f from 64 entries", table_exp(64), None),
            ("table-16", "2^f from 16 entries", table_exp(16), None),
            ("linear-16", "2^f by 16 lines", linear_exp(16), None),
            ("linear-4", "2^f by 4 lines", linear_exp(4), None),
            ("linear-1", "2^f by one line: shift and add", linear_exp(1), None),
            ("fixed-16", "exp in 16 fractional bits", _rounded_exp(as_fixed(16)), None),
            ("fixed-8", "exp in 8 fractional bits", _rounded_exp(as_fixed(8)), None),
            ("bf16-out", "probabilities sent in bf16", torch.exp, _as_dtype(torch.bfloat16)),
        )
    ),
    *(
        Variant(f"hidden-{name}", LAYER, meaning, rounded_hidden(rounding))
        for name, meaning, rounding in (
            ("fp16", "hidden rows sent in fp16", _as_dtype(torch.float16)),
            ("bf16", "hidden rows sent in bf16", _as_dtype(torch.bfloat16)),
            ("fp8", "hidden rows sent in fp8 (e4m3)", _as_dtype(torch.float8_e4m3fn)),
            ("int8", "hidden rows sent in int8, one scale a row", as_int8_rows),
        )
    ),
    *(
        Variant(f"scores-{name}", LAYER, meaning, rounded_scores(rounding))
        for name, meaning, rounding in (
            ("fp16", "path scores in fp16", _as_dtype(torch.float16)),
            ("bf16", "path scores in bf16", _as_dtype(torch.bfloat16)),
            ("fixed-16", "path scores in 16 fractional bits", as_fixed(16)),
            ("fixed-12", "path scores in 12 fractional bits", as_fixed(12)),
            ("fixed-8", "path scores in 8 fractional bits", as_fixed(8)),
            ("fixed-4", "path scores in 4 fractional bits", as_fixed(4)),
        )
    ),
)
