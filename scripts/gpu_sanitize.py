"""A few small launches of every Triton kernel, for a memory checker to watch.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck python3 scripts/gpu_sanitize.py kernels
    TRITON_INTERPRET=1 python3 scripts/gpu_sanitize.py kernels cpu   # a rehearsal, checks nothing

Parts: `kernels` (every card's and the operations between products), `attention`, and the whole
rounds of an engine under each policy, `plain`, `tree`, `planner` and `ngram`. A process each, so
that a checker that gives up on one part has seen the others.

Without the caching allocator every tensor is an allocation of its own, so that a read or write
past its end is seen. Compares nothing: the parity run does that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from aerie.attention.contract import LayerAttention, Reach  # noqa: E402
from aerie.attention.triton import Tile, TritonAttention, one_tile  # noqa: E402
from aerie.bench.kernels.attention import on  # noqa: E402
from aerie.bench.lane import captured  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.setup import Room, RoundSetup, read_prompts  # noqa: E402
from aerie.config import GraphConfig, SpeculationConfig  # noqa: E402
from aerie.kernels import load  # noqa: E402
from aerie.kernels.arrays import on_device  # noqa: E402
from aerie.kernels.cases import cases_for  # noqa: E402
from aerie.kernels.triton_gpu import KERNELS, fused  # noqa: E402
from aerie.kernels.triton_gpu.gemm import gemm_scratch, product  # noqa: E402
from aerie.kernels.triton_gpu.gemm_plan import Plan  # noqa: E402
from aerie.requests.params import SamplingParams  # noqa: E402
from tests.unit.attention.trees import packed_slots, random_parents, tree_batch  # noqa: E402

ORIGIN = ("device", "commit", "source_sha256", "date", "torch")
PER_KERNEL = 4
MOST_ENTRIES = 3_000
N_TOKENS = 16
# Of the first request and of the second: greedy rounds, and rounds with everything in them.
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "logit_bias": {7: 1.0},
        "min_tokens": 4,
        "logprobs": 5,
    },
)
COSTS = ROOT / "tests" / "data" / "costs_cheap.json"
POLICIES = {
    "plain": SpeculationConfig(method="none"),
    "tree": SpeculationConfig(top_k=8, depth=4, nodes=24),
    "planner": SpeculationConfig(policy="planner"),
    "ngram": SpeculationConfig(method="eagle3+ngram", top_k=4, depth=4, nodes=16),
}


def main(part: str, device: str = "cuda") -> None:
    """One part, and what was launched."""
    print({name: value for name, value in provenance(device).items() if name in ORIGIN})
    launched = PARTS[part](device)
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"{part}: {launched}, no error")


def kernels_and_operations(device: str) -> str:
    """Small cases of every kernel, and the operations between them."""
    n_calls = other_launches(device)
    kernels = load("triton", device, data_errors="status")
    for name, entry in KERNELS.items():
        covers = entry.covers or (lambda inputs: True)
        small = [case for case in cases_for(name) if case.expects is None]
        chosen = [case.build() for case in small]
        chosen = [c for c in chosen if covers(c) and 1 < size_of(c) <= MOST_ENTRIES]
        for inputs in chosen[:: max(1, len(chosen) // PER_KERNEL)]:
            kernels[name](**{key: on_device(value, device) for key, value in inputs.items()})
            n_calls += 1
    return f"{n_calls} calls of {len(KERNELS)} kernels and the fused operations"


def attention(device: str) -> str:
    """Ragged trees, more than divide an H200's programs, in two tiles and two precisions."""
    generator = torch.Generator().manual_seed(5)
    shares = [1, 9, 3, 2, 5] * 9
    lengths = [40, 200, 333, 17, 90] * 9
    rows = tree_batch(
        [torch.zeros(n, dtype=torch.int64) for n in shares],
        [random_parents(n, generator) for n in shares],
        packed_slots(lengths),
    )
    n_calls = 0
    for dtype in (torch.bfloat16, torch.float32):
        for height in (16, 64):
            backend = TritonAttention(one_tile(Tile(height, 32, 4, 2, 1)))
            pool = torch.randn(2, sum(lengths) + 1, 2, 64, device=device).to(dtype)
            queries = torch.randn(rows.n_rows, 8, 64, device=device).to(dtype)
            layer = LayerAttention(64**-0.5, Reach())
            backend(on(rows, torch.device(device)), [layer.reach])(queries, *pool, layer)
            n_calls += 1
    return f"{n_calls} layers"


def size_of(inputs: dict[str, object]) -> int:
    """Entries of all arrays of a call."""
    return sum(int(getattr(value, "size", 0)) for value in inputs.values())


def rounds(policy: SpeculationConfig, device: str) -> str:
    """Rounds of the built-in pair, kernel by kernel: attention, trees, a planner's choice."""
    setup = RoundSetup(device, "float32", None, "triton", costs=str(COSTS), foreign_costs=True)
    pair = setup.load()
    prompts = read_prompts(2, 40, pair.target.geometry.vocab_size)
    graphs = GraphConfig(slots=(2,), rows=(8, 64), columns=(256,))
    core = setup.core(pair, policy, Room(2, 128, graphs=graphs))
    # A graph cannot be recorded without the caching allocator; what it would hold runs as it is.
    core.launcher.graphs._is_captured = False
    for seed, prompt in enumerate(prompts):
        core.submit(prompt, SamplingParams(N_TOKENS, seed=seed, ignore_eos=True, **ASKED[seed]))
    while not core.is_idle:
        core.step()
    return f"{captured(core).counts.rounds} rounds of an engine"


def other_launches(device: str) -> int:
    """Products in parts, and the operations between products."""
    x = torch.randn(5, 256, device=device).bfloat16()
    weight = torch.randn(128, 256, device=device).bfloat16()
    scratch = gemm_scratch(device)
    product(x[:1], weight, None, Plan("gemv", 8, 64, splits=2), scratch)
    product(x, weight, weight[:, 0].contiguous(), Plan("dot", 64, 64, 16, 4, stages=3), scratch)
    norm = torch.ones(256, device=device)
    fused.add_normalise(x, x, norm, 1e-5)
    fused.gate(*x.split(128, dim=1))
    heads = [part.unflatten(1, (-1, 32)) for part in x.split([128, 64, 64], dim=1)]
    angle = torch.rand(5, 1, 16, device=device)
    slots = torch.arange(1, 6, device=device)
    stored = torch.zeros(6, 2, 32, device=device).bfloat16()
    fused.rotate_store(tuple(heads), (angle, angle), slots, (stored, stored.clone()))
    return 5


PARTS: dict[str, Callable[[str], str]] = {
    "kernels": kernels_and_operations,
    "attention": attention,
    **{name: partial(rounds, policy) for name, policy in POLICIES.items()},
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        raise SystemExit(f"usage: gpu_sanitize.py PART [DEVICE], PART one of {', '.join(PARTS)}")
    main(*sys.argv[1:])
