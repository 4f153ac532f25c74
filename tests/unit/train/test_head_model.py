"""Unrolled drafting of all positions at once against the straight-line oracle, one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aerie.train.head_model import PLAIN_HEAD, HeadModel, HeadRunner, HeadShape, visible
from tests.oracles import eagle3_straight_line as oracle

N_STEPS = 7
TOLERANCE = 2e-5  # the norms round to float32


def make_model(window: int, n_kv_heads: int) -> tuple[HeadModel, Tensor]:
    shape = HeadShape(
        hidden=16,
        target_hidden=16,
        n_heads=4,
        n_kv_heads=n_kv_heads,
        head_dim=8,
        mlp_width=24,
        vocab_size=50,
        draft_vocab_size=50,
        taps=(1, 2, 3),
        window=window,
        norm_eps=1e-5,
        rope_theta=5e5,
    )
    generator = torch.Generator().manual_seed(window)
    model = HeadModel(shape).double()
    with torch.no_grad():
        for param in model.parameters():
            noise = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            param.copy_(noise * 0.3 + float(param.ndim == 1))
    return model, torch.randn(50, 16, generator=generator, dtype=torch.float64)


def oracle_weights(model: HeadModel, embedding: Tensor) -> dict[str, Tensor]:
    layer = model.midlayer
    named = {
        "fc": model.fc,
        "norm": model.norm,
        "lm_head": model.lm_head,
        "embed": embedding,
        "0.embed_norm": layer.input_layernorm,
        "0.hidden_norm": layer.hidden_norm,
        "0.post_norm": layer.post_attention_layernorm,
    }
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    named |= {f"0.{name.removesuffix('_proj')}": getattr(layer, name) for name in projections}
    return {name: tensor.detach() for name, tensor in named.items()}


@pytest.mark.parametrize(("window", "n_kv_heads"), [(8, 1), (8, 2), (16, 4)])
def test_unrolled_rows_draft_as_the_oracle_does(window: int, n_kv_heads: int) -> None:
    model, embedding = make_model(window, n_kv_heads)
    length, batch = 32, 2
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(0, 50, (batch, length), generator=generator)
    taps = torch.randn(batch * length, 48, generator=generator, dtype=torch.float64)
    runner = HeadRunner(model, embedding, torch.float64, PLAIN_HEAD)
    got = [
        model.logits(hidden).view(batch, length, -1)
        for hidden in runner.unroll(taps, tokens, N_STEPS)
    ]
    weights = oracle_weights(model, embedding)
    plan = oracle.Plan(n_heads=4, n_kv_heads=n_kv_heads, head_dim=8, theta=5e5, window=window)
    captured = taps.view(batch, length, 3, 16)
    # First row, inside the window, around block borders, far behind them.
    for row in (0, 5, 7, 8, 9, 16, 23):
        states = list(captured[1, : row + 1].unbind(1))
        drafted = tokens[1, row + 2 : row + 1 + N_STEPS]
        want = oracle.draft(states, tokens[1, 1 : row + 2], drafted, weights, plan)
        for step, stages in enumerate(want):
            worst = (stages["logits"][-1] - got[step][1, row]).abs().max().item()
            assert worst <= TOLERANCE, f"row {row}, step {step}: {worst:.1e}"


def test_window_slides_with_the_draft() -> None:
    first, later = visible(4, 2, torch.device("cpu"))
    # Row 3 at step 2 sits at position 5 and sees positions 2 and 3 of its block, and its chain.
    assert first[3, :8].nonzero().flatten().tolist() == [6, 7]
    assert first[3, 8:].tolist() == [True] * 2 + [False] * 6
    # Row 0 of a later block reaches one position back into the block before.
    assert later[0, :8].nonzero().flatten().tolist() == [3, 4]
    assert first[0, :8].nonzero().flatten().tolist() == [4]
