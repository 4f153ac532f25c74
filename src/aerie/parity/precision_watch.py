"""Watches an approximation at work: exact and approximate results of the same calls, side by side.

Acceptance of two runs differs by chance as soon as their texts part. What is compared here is
paired: the same rows, the same trees, two arithmetics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.parity.precision import LAYER, SOFTMAX, Variant

WALK = "draft_tree_reject_sample"


@dataclass
class Watch:
    """What was seen so far. Each list has one entry per row, round or layer, as its name says."""

    row_distances: list[float] = field(default_factory=list)  # total variation
    round_acceptances: list[tuple[float, float]] = field(default_factory=list)  # exact, approximate
    layer_errors: list[float] = field(default_factory=list)  # of hidden rows, relative rms
    layer_reorders: list[bool] = field(default_factory=list)  # did the order of scores change

    def tap(self, variant: Variant) -> Callable[[Kernels], Kernels]:
        """The variant's tap, with the exact kernel run beside it."""
        watched = {SOFTMAX: self._softmax, LAYER: self._layer}[variant.kernel]

        def tap(kernels: Kernels) -> Kernels:
            table: dict[str, Any] = dict(variant.tap(kernels))
            table |= watched(kernels[variant.kernel], table[variant.kernel], kernels[WALK])
            return Kernels(kernels.backend, kernels.device, kernels.data_errors, table)

        return tap

    def _softmax(self, exact: Any, approximate: Any, walk: Any) -> dict[str, Any]:
        probas: list[Tensor] = []  # exact ones of the call whose rows are walked next

        def convert(**inputs: Any) -> Any:
            result = approximate(**inputs)
            probas[:] = [exact(**inputs).target_probas]
            apart = (result.target_probas - probas[0]).abs().sum(-1) / 2
            self.row_distances += apart.tolist()
            return result

        def walked(**inputs: Any) -> Any:
            if inputs.get("target_probas") is not None:
                pair = (
                    expected_accepted(inputs, probas[0]),
                    expected_accepted(inputs, inputs["target_probas"]),
                )
                self.round_acceptances += zip(*pair, strict=True)
            return walk(**inputs)

        return {SOFTMAX: convert, WALK: walked}

    def _layer(self, exact: Any, approximate: Any, walk: Any) -> dict[str, Any]:
        def run(**inputs: Any) -> Any:
            result, expected = approximate(**inputs), exact(**inputs)
            if result.status.numel():
                apart = result.output_hidden - expected.output_hidden
                size = expected.output_hidden.square().mean().sqrt().clamp(min=1e-30)
                self.layer_errors.append(float(apart.square().mean().sqrt() / size))
                same = (result.sort_layer_indices == expected.sort_layer_indices).all()
                self.layer_reorders.append(not bool(same))
            return result

        return {LAYER: run}


def expected_accepted(inputs: dict[str, Any], probas: Tensor) -> list[float]:
    """Draft tokens each request of K6's rule coins accepts on average, with these probabilities.

    A child is taken with its own probability whatever its siblings: coins fall into disjoint
    intervals. So a node is reached with the product of the probabilities along its path.
    """
    starts = inputs["qo_indptr"].tolist()
    tokens, children, siblings = (
        inputs[name].tolist() for name in ("draft_tokens", "first_child_row", "next_sibling_row")
    )
    found = []
    for first, last in pairwise(starts):
        reached = [0.0] * (last - first)
        reached[:1] = [1.0][: last - first]
        for row in range(last - first):
            child = children[first + row]
            while child >= 0:
                chance = float(probas[first + row, tokens[first + child]])
                reached[child] = reached[row] * chance
                child = siblings[first + child]
        found.append(sum(reached[1:]))
    return found
