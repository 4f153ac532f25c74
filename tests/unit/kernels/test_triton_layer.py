"""A whole layer in one launch is K1, K2 and K3 one after the other, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load
from aerie.kernels.cases import cases_for
from aerie.kernels.triton_gpu.growth_layer import (
    Frontier,
    LayerCounts,
    NodeStore,
    grow_layer,
    layer_scratch,
)
from tests.unit.kernels.triton_device import DEVICE, on_device

STORE = tuple(NodeStore.__dataclass_fields__)
# Cases of K2 that a fused layer can meet: it sorts for itself and has no compat constants.
NAMES = (
    "b1_k8_first_layer", "b4_w8_k8_second_layer", "b2_w5_k5_third_layer", "b3_k1_chain",
    "b2_widths_1_8_3", "b0_w3_k4", "b3_w2_k3_verify_1", "b4_w5_k7_ties", "b3_w3_k5_zero",
    "b3_w2_k3_nodes_exact", "duplicate_siblings", "frontier_node_twice", "frontier_not_stored",
)  # fmt: skip


def tensors(name: str) -> dict[str, Any]:
    case = next(c for c in cases_for("update_cumu_draft_state") if c.name == name)
    return {key: on_device(value) for key, value in case.build().items()}


def drawn(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Probabilities and parents' scores for the layer; hidden rows that tell slots apart."""
    generator = torch.Generator().manual_seed(7)
    batch, width = inputs["frontier_indexs"].shape
    probas = torch.rand(inputs["topk_tokens"].shape, generator=generator)
    probas = (probas * 8).round() / 8  # so that there are ties
    return {
        "topk_probas": probas.to(DEVICE),
        "last_layer_scores": torch.rand(batch, width, generator=generator).to(DEVICE),
        "input_hidden": torch.rand(batch * width, 600, generator=generator).half().to(DEVICE),
    }


@pytest.mark.parametrize("name", NAMES)
def test_one_launch_is_three_kernels(name: str) -> None:
    fused, apart = tensors(name), tensors(name)
    layer = drawn(fused)
    kernels = load("reference" if DEVICE == "cpu" else "pytorch", DEVICE, data_errors="status")
    k1 = kernels["draft_tree_layer_score_index_gen_op"](
        **{**layer, "input_hidden": layer["input_hidden"]},
        topk_tokens=apart["topk_tokens"],
        cumu_count=apart["cumu_count"],
    )
    apart |= {key: getattr(k1, key) for key in ("curr_layer_scores", "sort_layer_scores")}
    apart["sort_layer_indices"] = k1.sort_layer_indices
    k2 = kernels["update_cumu_draft_state"](**apart)
    top_k = k2.output_scores.shape[1]
    k3 = kernels["calculate_work_deltas"](
        work_scores=k2.work_scores, node_top_k=top_k, verify_num=apart["verify_num"]
    )

    store = NodeStore(**{key: fused[key] for key in STORE})
    names = ("topk_tokens", "frontier_indexs", "input_tree_mask")
    frontier = Frontier(**layer, **{key: fused[key] for key in names})
    counts = LayerCounts(fused["cumu_count"], fused["fed_count"], fused["verify_num"])
    scratch = layer_scratch(torch.device(DEVICE))
    made = grow_layer(store, frontier, counts, scratch)

    ok = torch.as_tensor(k2.status).cpu() == 0
    for key in STORE:
        assert torch.equal(fused[key].cpu(), torch.as_tensor(apart[key]).cpu()), key
    assert torch.equal(made.status.cpu(), torch.as_tensor(k2.status).cpu())
    for mine, theirs in (
        (made.scores, k2.output_scores),
        (made.tokens, k2.output_tokens),
        (made.mask, k2.output_tree_mask),
        (made.gains, k3.G),
    ):
        assert torch.equal(mine.cpu(), torch.as_tensor(theirs).cpu())
    assert torch.equal(made.ids.cpu()[ok], torch.as_tensor(k1.cache_topk_indices).cpu()[ok])
    assert torch.equal(made.hidden.cpu()[ok], torch.as_tensor(k1.output_hidden).cpu()[ok])
    assert int(scratch.arrived) == 0
