"""Plain decoding of the inflated pair here and in transformers, same weights, same run.

    PYTHONPATH=src python scripts/bench_round_transformers.py --out reports [--device cuda]

transformers runs with its static cache and a compiled forward (mode reduce-overhead, which replays
CUDA graphs). Its weights are views of ours. The last line is JSON; exit status 1 below the floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
# A bare machine has no installed package: the source is beside us.
sys.path[:0] = [str(ROOT / "src")]

from aerie.bench.bytes import step_bytes  # noqa: E402
from aerie.bench.ceilings import copy_bandwidth  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start  # noqa: E402
from aerie.bench.round.speed import PLAIN, Clocked  # noqa: E402
from aerie.bench.turns import synchronise  # noqa: E402
from aerie.models.decoder import Decoder  # noqa: E402

FLOOR = 1.4
N_WARM = 8


def main() -> int:
    """Time both, interleaving nothing: compiled graphs and ours must not share warm-up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--geometry", default="llama-3.1-8b")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=48)
    options = parser.parse_args()
    inflated = None if options.geometry == "none" else options.geometry
    setup = RoundSetup(options.device, options.dtype, inflated, options.backend)
    pair = setup.load()
    ceiling = copy_bandwidth(options.device)
    prompt = read_prompts(1, options.context, pair.target.geometry.vocab_size)[0]
    floor = 1e3 * step_bytes(pair.target, options.context, 1) / (ceiling["gbps"] * 1e9)
    print(f"ceiling: {ceiling['gbps']:.0f} GB/s, so no step below {floor:.3f} ms", flush=True)
    own, text = ours(setup, pair, prompt, options.steps)
    print(f"aerie: {own:.3f} ms a step", flush=True)
    other, other_text = theirs(pair.target, prompt, options.steps)
    print(f"transformers: {other:.3f} ms a step", flush=True)
    shared = next(
        (i for i, (a, b) in enumerate(zip(text, other_text, strict=False)) if a != b), len(text)
    )
    record = {
        "ok": other / own >= FLOOR,
        "aerie_ms": round(own, 4),
        "transformers_ms": round(other, 4),
        "ratio": round(other / own, 4),
        "floor": FLOOR,
        "byte_floor_ms": round(floor, 4),
        "same_tokens": shared,
        "tokens": min(len(text), len(other_text)),
        "versions": {"transformers": __import__("transformers").__version__},
        "setup": vars(setup),
        "kind": "measured",
        "provenance": provenance(options.device),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text_out = json.dumps(record, indent=1) + "\n"
    (options.out / "round_transformers.json").write_text(text_out, encoding="utf-8")
    print(json.dumps(record))
    return 0 if record["ok"] else 1


def ours(setup: RoundSetup, pair: Any, prompt: list[int], n_steps: int) -> tuple[float, list[int]]:
    """Median milliseconds of a plain step, and the text."""
    core = setup.core(pair, PLAIN, Room(1, len(prompt) + n_steps + N_WARM))
    request_id = start(core, [prompt], n_steps + N_WARM)[0]
    clocked = Clocked(core)
    clocked.block(N_WARM - 4)
    clocked.forget()
    clocked.block(n_steps)
    return statistics.median(clocked.wall), core.request(request_id).output


@torch.inference_mode()
def theirs(target: Decoder, prompt: list[int], n_steps: int) -> tuple[float, list[int]]:
    """The same for transformers: prefill, then one compiled token after another."""
    from transformers import LlamaForCausalLM, StaticCache

    device = target.embedding.device
    config = llama_config(target)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(dict(named_weights(target)), strict=False, assign=True)
    with torch.device(device):
        # Its frequencies are computed, not loaded.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.eval()
    cache = StaticCache(config=config, max_cache_len=len(prompt) + n_steps + N_WARM + 8)
    ids = torch.tensor([prompt], device=device)
    token = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    position = torch.tensor([[len(prompt)]], device=device)
    text, times = [token], []
    for turn in range(n_steps + N_WARM):
        synchronise(device.type)
        begin = time.perf_counter()
        out = compiled(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=True
        )
        token = out.logits[:, -1:].argmax(-1).clone()
        synchronise(device.type)
        if turn >= N_WARM:
            times.append(1e3 * (time.perf_counter() - begin))
        position += 1
        text.append(token)
    return statistics.median(times), torch.cat(text, dim=1)[0].tolist()


def llama_config(target: Decoder) -> Any:
    """The configuration of the same model there."""
    from transformers import LlamaConfig

    geometry, attention = target.geometry, target.geometry.attention
    assert geometry.rope.kind == "default", "only the plain rotary rule is mapped"
    return LlamaConfig(
        vocab_size=geometry.vocab_size,
        hidden_size=geometry.hidden_size,
        intermediate_size=geometry.mlp_width,
        num_hidden_layers=geometry.n_layers,
        num_attention_heads=attention.n_heads,
        num_key_value_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        rms_norm_eps=geometry.norm_eps,
        max_position_embeddings=geometry.max_positions,
        rope_theta=geometry.rope.theta,
        rope_parameters={"rope_type": "default", "rope_theta": geometry.rope.theta},
        tie_word_embeddings=False,
        dtype=target.embedding.dtype,
        attn_implementation="sdpa",
    )


def named_weights(target: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Our tensors under their names; parts of a fused product are views of it."""
    dtype, attention = target.embedding.dtype, target.geometry.attention
    heads = (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads)
    yield "model.embed_tokens.weight", target.embedding
    yield "model.norm.weight", target.final_norm.weight.to(dtype)
    yield "lm_head.weight", target.head.weight  # type: ignore[attr-defined]
    for index, layer in enumerate(target.layers):
        prefix = f"model.layers.{index}"
        block: Any = layer.attention
        rows = [n * attention.head_dim for n in heads]
        for name, weight in zip("qkv", _parts(block.qkv, rows), strict=True):
            yield f"{prefix}.self_attn.{name}_proj.weight", weight
        yield f"{prefix}.self_attn.o_proj.weight", block.output.weight
        mlp: Any = layer.feed_forward
        width = target.geometry.mlp_width
        for name, weight in zip(("gate", "up"), _parts(mlp.gate_up, [width, width]), strict=True):
            yield f"{prefix}.mlp.{name}_proj.weight", weight
        yield f"{prefix}.mlp.down_proj.weight", mlp.down.weight
        yield f"{prefix}.input_layernorm.weight", layer.attention_norm.weight.to(dtype)
        norm = layer.feed_forward_norm.weight.to(dtype)
        yield f"{prefix}.post_attention_layernorm.weight", norm


def _parts(projections: Any, rows: list[int]) -> list[Tensor]:
    if hasattr(projections, "linears"):
        return [linear.weight for linear in projections.linears]
    return list(projections.linear.weight.split(rows))


if __name__ == "__main__":
    sys.exit(main())
