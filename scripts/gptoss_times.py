"""Times a mixture of packed experts at the size of gpt-oss-120b: writes gptoss_times.json.

    python3 -m scripts.gptoss_times --out DIR [--device cpu] [--tiles]

Random weights from a seed, made on the device, nothing written but the result. First the grouped
expert product is compared with its definition. Then the engine's own captured rounds: plain steps
of 1, 8 and 32 requests against the bytes they must read (experts touched counted) at the speed of a
large copy in the same turns, and prompt chunks against a large product in bfloat16. Rows are routed
evenly, each for itself, or by a Zipf law that neighbouring rows share. With `--tiles` the product
alone is timed instead, by tile, on a GPU. On a CPU everything is tiny and nothing is said about
speed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from aerie.assemble.numerics import find_numerics
from aerie.bench.ceilings import copy_bandwidth, matmul_tflops
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from aerie.bench.round.mixture import (
    PUBLISHED,
    TOY,
    UNIFORM,
    ZIPF,
    ForcedRouting,
    build_mixture,
    chunk_operations,
    step_bytes,
    with_forced_routing,
)
from aerie.bench.round.setup import PAGE, Room, RoundSetup, abandon, start
from aerie.bench.round.speed import LEAD_IN, PLAIN, Clocked
from aerie.bench.turns import synchronise
from aerie.config import GraphConfig
from aerie.kernels import catalogue
from aerie.kernels import load as load_kernels
from aerie.kernels.arrays import on_device
from aerie.kernels.cards.experts import BLOCK, padded_pitch
from aerie.kernels.cases import cases_for
from aerie.kernels.cases.experts import GATE, draw_experts
from aerie.models.decoder import Decoder
from aerie.models.inflate.embed import LargePair
from aerie.models.load import LoadOptions
from aerie.models.routing import route
from aerie.parity.compare import compare_outputs
from aerie.requests.request import State
from aerie.tune.clock import clock_of, marked

KERNEL = "multiply_experts"
SEED = 120
BATCHES = (1, 8, 32)
# What a plain step must have of the copy's speed by batch, and a chunk of a large product's.
STEP_FLOORS, CHUNK_FLOOR = {1: 0.45, 8: 0.70, 32: 0.70}, 0.4
DATA_SHEET_TFLOPS = 989.0  # H200, dense bfloat16
N_BLOCKS, N_ROUNDS, N_CHUNKS, N_CALLS = 4, 16, 5, 16
# Tiles that are tried besides those of the table: rows, outputs, inner, warps, stages.
CANDIDATES = (
    (8, 16, 256, 1, 3), (8, 32, 128, 1, 4), (8, 32, 256, 2, 4), (8, 64, 128, 2, 3),
    (8, 128, 128, 4, 4), (16, 32, 128, 1, 4), (16, 64, 128, 2, 3), (16, 128, 128, 4, 3),
    (32, 128, 128, 4, 3), (64, 64, 128, 4, 3), (64, 128, 128, 8, 3), (64, 128, 64, 4, 4),
    (128, 128, 128, 8, 2), (128, 128, 64, 8, 3),
)  # fmt: skip
# Recorded where they are first met: a run has few sizes and meets each at once.
GRAPHS = GraphConfig(record_every=0, warm="off")


@dataclass(frozen=True)
class Scale:
    """What is measured where."""

    config: Mapping[str, Any]
    dtype: str
    backend: str
    context: int
    chunk: int


SCALES = {
    "cuda": Scale(PUBLISHED, "bfloat16", "triton", 512, 2048),
    "cpu": Scale(TOY, "float32", "pytorch", 24, 64),
}


def check_product(device: str, scale: Scale) -> dict[str, Any]:
    """The expert product against its definition: the card's cases, then deep experts."""
    kernels = load_kernels(scale.backend, device=device, data_errors="status")
    reference = load_kernels("reference", data_errors="status")
    worst, wrong, n_compared = 0, list[str](), 0
    for name, inputs in _inputs_to_compare(scale):
        want = reference[KERNEL](**inputs)._asdict()
        got = kernels[KERNEL](**{key: on_device(value, device) for key, value in inputs.items()})
        found = compare_outputs(catalogue()[KERNEL], want, got._asdict(), device != "cpu")
        worst, n_compared = max(worst, found.ulps), n_compared + 1
        wrong += [f"{name}: {found.reason}"] if found.reason else []
    return {"compared": n_compared, "worst_ulps_of_largest": worst, "wrong": wrong}


def _inputs_to_compare(scale: Scale) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in cases_for(KERNEL):
        if case.expects is None:
            yield case.name, case.build()
    # As deep as they are, with outputs that tiles do not divide; rows for every tile.
    for n_rows, gate in itertools.product((1, 4, 16, 50, 400), ((), GATE)):
        rng, sizes = np.random.default_rng(n_rows), (n_rows, 704, scale.config["hidden_size"])
        drawn = draw_experts(rng, sizes, (5, 2), scale.dtype, gate, has_bias=True)
        yield f"{n_rows} rows, {'gated' if gate else 'plain'}", drawn


def build(setup: RoundSetup, scale: Scale) -> tuple[Decoder, ForcedRouting]:
    """The mixture, routed by tables."""
    numerics = find_numerics(setup.model, PAGE)
    options = LoadOptions(
        getattr(torch, scale.dtype), setup.device, numerics.dense, numerics.is_fused, numerics.ops,
        packed=numerics.packed,
    )  # fmt: skip
    target = build_mixture(scale.config, numerics.prepare_attention, options, SEED)
    return with_forced_routing(target, max(GRAPHS.chunks))


def plain_pair(target: Decoder) -> LargePair:
    """Plain decoding asks for no head."""
    return LargePair(target, cast(Any, None))


def prompts_of(scale: Scale, n_prompts: int, n_tokens: int, seed: int) -> list[list[int]]:
    """Random ids: what a random model makes of them is random, too."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_prompts, n_tokens)
    drawn = torch.randint(1, scale.config["vocab_size"], shape, generator=generator)
    ids: list[list[int]] = drawn.tolist()
    return ids


def time_steps(
    setup: RoundSetup, scale: Scale, model: tuple[Decoder, ForcedRouting], batch: int
) -> list[dict[str, Any]]:
    """Plain steps of a batch under both routings, in turns with a large copy."""
    target, forced = model
    n_rounds = 2 * (N_BLOCKS + 1) * (N_ROUNDS + LEAD_IN)
    most = n_rounds + 64
    core = setup.core(plain_pair(target), PLAIN, Room(batch, scale.context + most, graphs=GRAPHS))
    forced.fill(UNIFORM, 0)
    ids = start(core, prompts_of(scale, batch, scale.context, batch), most)
    kinds: dict[str, Clocked] = {kind: Clocked(core) for kind in (UNIFORM, ZIPF)}
    touched: dict[str, list[float]] = {kind: [] for kind in kinds}
    copies = list[float]()
    for turn in range(N_BLOCKS + 1):
        copies.append(copy_bandwidth(setup.device)["gbps"])
        for kind, clocked in kinds.items():
            forced.fill(kind, turn)
            touched[kind].append(statistics.mean(forced.touched(batch)))
            synchronise(setup.device)
            clocked.block(N_ROUNDS)
            if turn == 0:
                clocked.forget()
    context = scale.context + n_rounds // 2
    states = {core.request(i).state for i in ids}
    assert states == {State.DECODING}, f"{states}: logits are finite, and nobody has ended"
    found = []
    for kind, clocked in kinds.items():
        n_touched = statistics.mean(touched[kind][1:])
        size = target.embedding.element_size()
        layers = target.geometry.n_layers
        n_bytes = step_bytes(target.geometry, n_touched * layers, context, batch, size)
        gbps = statistics.median(copies[1:])
        floor_ms, summary = 1e3 * n_bytes / (gbps * 1e9), clocked.summary()
        found.append(
            {
                "batch": batch,
                "routing": kind,
                "experts_touched": round(n_touched, 2),
                "gigabytes": round(n_bytes / 1e9, 4),
                "copy_gbps": round(gbps, 1),
                "floor_ms": round(floor_ms, 4),
                **summary,
                "share": round(floor_ms / summary["ms"], 4),
            }
        )
    abandon(core, ids)
    return found


def time_chunks(
    setup: RoundSetup, scale: Scale, model: tuple[Decoder, ForcedRouting], tflops: float
) -> list[dict[str, Any]]:
    """Chunks at the beginning of a prompt, by the device's time in the graph that reads."""
    target, forced = model
    room = Room(1, scale.chunk + 64, chunk=scale.chunk, graphs=GRAPHS)
    core = setup.core(plain_pair(target), PLAIN, room)
    clock, found = clock_of(target.embedding.device), []
    operations = chunk_operations(target.geometry, scale.chunk)
    for kind in (UNIFORM, ZIPF):
        times = list[float]()
        for turn in range(N_CHUNKS + 2):
            forced.fill(kind, turn)
            with marked(core.launcher.graphs, clock) as spans:
                prompts = prompts_of(scale, 1, scale.chunk, turn)
                abandon(core, start(core, prompts, 4))
            times.append(sum(clock.seconds(*marks) for name, marks in spans if name == "read"))
        ms = 1e3 * statistics.median(times[2:])
        reached = operations / ms / 1e9
        found.append(
            {
                "rows": scale.chunk,
                "routing": kind,
                "experts_touched": round(statistics.mean(forced.touched(scale.chunk)), 2),
                "rows_of_the_busiest": max(forced.busiest(scale.chunk)),
                "ms": round(ms, 4),
                "tflops": round(reached, 2),
                "share": round(reached / tflops, 4),
                "share_of_data_sheet": round(reached / DATA_SHEET_TFLOPS, 4),
            }
        )
    return found


def time_tiles(device: str, scale: Scale) -> list[dict[str, Any]]:
    """The two products of a layer alone, by tile, one recorded call behind the other.

    Every call has a routing of its own, so that few rows do not find their experts in a cache.
    """
    from aerie.kernels.triton_gpu import experts as product
    from aerie.kernels.triton_gpu.experts_plan import TILES, ExpertTile

    names = ("hidden_size", "intermediate_size", "num_local_experts", "num_experts_per_tok")
    hidden, width, n_experts, n_active = (scale.config[name] for name in names)
    tiles = {tile for _, tile in TILES} | {ExpertTile(*sizes) for sizes in CANDIDATES}
    found = []
    for (n_in, n_out, gate), n_rows in itertools.product(
        ((hidden, 2 * width, GATE), (width, hidden, ())), (1, 8, 32, 64, scale.chunk)
    ):
        shape = (n_rows, n_out, n_in)
        inputs = _random_inputs(device, shape, (n_experts, n_active), gate)
        routings = [_random_routing(device, n_rows, n_experts, n_active) for _ in range(N_CALLS)]
        chosen = product.tile_for(n_rows * n_active, n_experts, n_out, inputs["x"])
        mean = n_rows * n_active / n_experts
        for tile in sorted(tiles | {chosen}, key=str):
            if not mean / 4 <= tile.rows <= max(16, 4 * mean):
                continue
            with mock.patch.object(product, "tile_for", lambda *sizes, own=tile: own):
                calls = [partial(product.multiply_experts, **inputs, **own) for own in routings]
                seconds = _recorded_seconds(calls) / N_CALLS
            where = {"rows": n_rows, "n_out": n_out, "n_in": n_in, "is_chosen": tile == chosen}
            found.append({**where, "tile": list(asdict(tile).values()), "us": 1e6 * seconds})
    return found


def _recorded_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Of all calls in one graph, the fastest of some replays."""
    calls[0]()
    torch.cuda.synchronize()
    graph, clock = torch.cuda.CUDAGraph(), clock_of(torch.device("cuda"))
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(5):
        before = clock.mark()
        graph.replay()
        times.append(clock.seconds(before, clock.mark()))
    return min(times)


def _random_routing(device: str, n_rows: int, n_experts: int, n_active: int) -> dict[str, Any]:
    routing = route(torch.randn(n_rows, n_experts, device=device), n_active)
    return {"order": routing.order, "starts": routing.starts}


def _random_inputs(
    device: str, sizes: tuple[int, int, int], routed: tuple[int, int], gate: tuple[float, ...]
) -> dict[str, Any]:
    (n_rows, n_out, n_in), (n_experts, n_active) = sizes, routed
    pitch, n_blocks = padded_pitch(n_in // BLOCK), n_in // BLOCK

    def drawn(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device=device)

    return {
        "x": torch.randn(n_rows, n_in, device=device).bfloat16(),
        "blocks": drawn(0, 256, n_experts, n_out, n_blocks, BLOCK // 2),
        "scales": drawn(117, 120, n_experts, n_out, pitch)[..., :n_blocks],
        "bias": torch.zeros(n_experts, n_out, device=device).bfloat16(),
        "gate": torch.tensor(gate, dtype=torch.float32, device=device),
        "n_active": n_active,
        "largest_scale": 120,
    }


def judge(steps: Sequence[Mapping[str, Any]], chunks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What even routing has of its floors, a line each."""
    even = [own for own in (*steps, *chunks) if own["routing"] == UNIFORM]
    lines = []
    for own in even:
        is_step = "batch" in own
        floor = STEP_FLOORS[own["batch"]] if is_step else CHUNK_FLOOR
        what = f"plain step, batch {own['batch']}" if is_step else f"chunk of {own['rows']} rows"
        verdict = "reached" if own["share"] >= floor else "MISSED"
        lines.append(f"{what}: {own['ms']:.3f} ms, {own['share']:.3f}, floor {floor} {verdict}")
    return lines


def main() -> int:
    """Check, build, time, judge; 1 where the product differs from its definition."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of gptoss_times.json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiles", action="store_true", help="time tiles of the product only")
    options = parser.parse_args()
    device, scale = options.device, SCALES[options.device]
    if options.tiles and device == "cpu":
        parser.error("--tiles needs a GPU")
    record: dict[str, Any] = {"provenance": provenance(device), "seed": SEED}
    record["scale"] = asdict(scale)
    began = time.perf_counter()

    def done(name: str, value: Any) -> Any:
        """Kept as soon as it is known: a run that is cut off has told what it knew."""
        record[name] = value
        record["seconds"] = round(time.perf_counter() - began, 1)
        write_json(options.out / "gptoss_times.json", record)
        print(f"{record['seconds']:6.1f} s  {name}: {json.dumps(value)[:1200]}", flush=True)
        return value

    checked = done("product", check_product(device, scale))
    if checked["wrong"]:
        print("the product differs from its definition: no time is worth anything")
        return 1
    if options.tiles:
        done("tiles", time_tiles(device, scale))
        return 0
    tflops = done("large_product_tflops", matmul_tflops(device))
    setup = RoundSetup(device, scale.dtype, None, scale.backend, "graphs")
    model = build(setup, scale)
    done("gigabytes_on_the_device", torch.cuda.memory_allocated() / 1e9 if device == "cuda" else 0)
    steps = list[dict[str, Any]]()
    for batch in BATCHES:
        steps += done(f"steps_of_{batch}", time_steps(setup, scale, model, batch))
    chunks = done("chunks", time_chunks(setup, scale, model, tflops))
    # Of a rehearsal nothing follows.
    lines = done("floors", judge(steps, chunks) if device == "cuda" else [])
    print("\n".join(lines))
    print(json.dumps({"floors": lines, "seconds": record["seconds"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
