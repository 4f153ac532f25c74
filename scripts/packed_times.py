"""What products with packed weights cost on a GPU: by shape, in plain steps and in wide rounds.

    python3 -m scripts.packed_times --out DIR
    python3 -m scripts.packed_times --out DIR --stages parity,tiles

A rehearsal: --device cpu, with toy shapes, kernels in Triton's interpreter and the built-in pair as
it is. Stages, each of which writes DIR/packed_times.json anew as it ends:

- `parity`: R18 and R19 on the device against their definition, within the tolerance of their cards:
  every case of the suite, then large ones at 1, 8, 64 and 2,048 rows; and whether a row has the
  same bits whatever the number of rows;
- `tiles`: tiles tried for every shape and number of rows; the fastest that leaves the bits of all
  others goes into DIR/packed_h200.json. Copied beside `kernels/triton_gpu/packed_plan.py` that
  table is what products choose by; the stages after this one use it already;
- `products`: every shape at 1 to 64 rows and chunks of 128 to 2,048: microseconds, the share of the
  copy's speed at which its bytes went by, what the bfloat16 product of the engine takes, and of
  chunks what it takes to write the weight out and have the library multiply (`out_us`);
- `step`: plain decoding through captured rounds, one request of 1,024 tokens: the pair inflated in
  memory, then its layers in FP8 (blocks of 128 x 128), GPTQ (symmetric) and AWQ (with zero points),
  four bits in groups of 128, LM head dense; the share of the copy's speed, timed in the same turns;
- `tax`: a round of five draft levels and 64 verified rows over a plain step, with a dense draft
  head and with a four-bit one.

Before each product of up to 64 rows stands a gate, as the tuner of dense products has it; weights
are walked that overflow the cache. A stage that fails is named and the others run; exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

# Before Triton is there.
os.environ.update({"TRITON_INTERPRET": "1"} if "cpu" in sys.argv else {})

import torch
from torch import Tensor
from torch.nn import functional

from aerie.assemble.numerics import find_numerics, head_numerics
from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.provenance import provenance
from aerie.bench.record import as_lines, write_json
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start
from aerie.bench.round.speed import (
    N_BLOCKS,
    PLAIN,
    WIDE_TREE,
    Clocked,
    in_blocks,
    launch_counts,
    step_bytes,
)
from aerie.chips import CHIPS, DeviceRecord, record_of
from aerie.config import SpeculationConfig
from aerie.kernels import load
from aerie.kernels.cases import cases_for
from aerie.kernels.cases.case import Case
from aerie.kernels.cases.products import fp8_inputs, int4_inputs
from aerie.kernels.cases.table import cases, row
from aerie.kernels.triton_gpu import packed_plan
from aerie.kernels.triton_gpu.fused import gate
from aerie.kernels.triton_gpu.gemm_plan import shipped_table
from aerie.kernels.triton_gpu.packed_plan import Key, Tile
from aerie.kernels.triton_gpu.table import KERNELS
from aerie.kernels.triton_gpu.tuned_linear import tuned_linears
from aerie.models.inflate.embed import LargePair
from aerie.parity.run import call_case, run_case
from scripts.packed_bed import (
    FORMATS,
    NAMES,
    SHAPES,
    TILES,
    TOY_SHAPES,
    TOY_TILES,
    Bed,
    Shape,
    Weights,
    compile_ahead,
    draw_weights,
    layer_bytes,
    packed_head,
    packed_target,
    written_out,
)

ON_CPU = "cpu" in sys.argv
SEED = 23
ROWS, TOY_ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 2048), (1, 3, 20)
LEAST_OUT, TOY_LEAST_OUT = 128, 20  # rows for which a weight is written out, too
MOST_GATED = 64  # rows up to which a gate stands before a product
REPLAYS, QUICK_REPLAYS = 7, 3
BUILDERS = {"int4": int4_inputs, "fp8": fp8_inputs}
# Outputs, inputs, group: whole tiles and odd ones; of eight bits, a short last group, too.
PARITY_SIZES = ((256, 4096, 128), (272, 2048, 128), (50, 2880, 64))
SHORT_GROUP = 48, 1184, 128
TOY_PARITY_SIZES = ((16, 1024, 128), (5, 576, 64))
SCHEMES = ("fp8", "gptq", "awq")
FLOORS = {"fp8": 0.75, "gptq": 0.60, "awq": 0.60}


@dataclass(frozen=True, eq=False)
class Run:
    """What was asked for, and what all stages share."""

    bed: Bed
    args: argparse.Namespace
    found: dict[str, Any] = field(default_factory=dict)
    held: ExitStack = field(default_factory=ExitStack)  # what later stages choose tiles by
    pairs: list[LargePair] = field(default_factory=list)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of a device's size."""
        return SHAPES if self.bed.is_gpu else TOY_SHAPES

    @property
    def setup(self) -> RoundSetup:
        """The pair of steps and rounds."""
        gpu = RoundSetup("cuda", backend="triton", numerics=self.args.numerics)
        return gpu if self.bed.is_gpu else RoundSetup("cpu", "float32", None)

    def pair(self) -> LargePair:
        """The pair in memory, made once."""
        if not self.pairs:
            self.pairs.append(self.setup.load())
        return self.pairs[0]

    @property
    def chip(self) -> DeviceRecord:
        """What tiles depend on."""
        return record_of(torch.device(self.bed.device))

    def copy_gbps(self) -> float:
        """The ceiling, now."""
        return float(copy_bandwidth(self.bed.device)["gbps"])


def parity(run: Run) -> dict[str, Any]:
    """Every case, large ones, and the bits of rows."""
    own = load("triton", device=run.bed.device, data_errors="status")
    reference = load("reference", data_errors="status")
    chosen = [case for kind in FORMATS for case in _cases(run, kind)]
    seconds = compile_ahead(run.bed, [partial(call_case, own, case) for case in chosen])
    results = [run_case(own, reference, case) for case in chosen]
    failed = [f"{r.kernel} {r.case}: {r.reason}" for r in results if not r.ok]
    bits = {kind: _bits(run, kind) for kind in FORMATS}
    rows = [{"kernel": r.kernel, "case": r.case, "ok": r.ok, "ulps": r.ulps} for r in results]
    failed += [f"{kind}: bits differ at {rows} rows" for kind, rows in bits.items() if rows]
    return {"cases": rows, "compiled_s": round(seconds, 1), "failed": failed}


def _cases(run: Run, kind: str) -> list[Case]:
    """Those that a Triton kernel computes."""
    is_gpu, name = run.bed.is_gpu, NAMES[kind]
    sizes, counts = PARITY_SIZES if is_gpu else TOY_PARITY_SIZES, (1, 8, 64, 2048)
    if kind == "fp8":
        sizes = (*sizes, SHORT_GROUP)
    large = cases(
        name,
        BUILDERS[kind],
        [
            row(f"r{n}_{n_out}x{n_in}_{dtype}", sizes=(n, n_out, n_in), group=group, dtype=dtype)
            for n_out, n_in, group in sizes
            for n in (counts if is_gpu else TOY_ROWS)
            for dtype in (("bfloat16", "float16") if is_gpu else ("float32", "float16"))
        ],
    )
    covers = KERNELS[name].covers
    assert covers is not None
    small = [case for case in cases_for(name) if not case.expects] if is_gpu else []
    return [case for case in (*small, *large) if covers(case.build())]


def _bits(run: Run, kind: str) -> list[int]:
    """Numbers of rows at which the first row has other bits than alone."""
    shape = Shape("bits", 4096, 4096) if run.bed.is_gpu else TOY_SHAPES[0]
    weights = draw_weights(shape, kind, run.bed)
    counts = (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 300, 2048) if run.bed.is_gpu else TOY_ROWS
    x = run.bed.rows(counts[-1], shape.n_in)
    compile_ahead(run.bed, [partial(weights.call, x[:n]) for n in counts])
    alone = weights.call(x[:1])
    return [n for n in counts if not _same(run, weights.call(x[:n])[:1], alone)]


def tiles(run: Run) -> dict[str, Any]:
    """Tile by tile; writes the table, and lets later stages choose by it."""
    tried = [
        (weights, n, candidates)
        for shape in run.shapes
        for kind in FORMATS
        for weights in (draw_weights(shape, kind, run.bed),)
        for n, candidates in (TILES if run.bed.is_gpu else TOY_TILES).items()
        if shape.is_read_by(n)
    ]
    # Few rows first, for they are what time may run out for last.
    tried.sort(key=lambda entry: entry[1])
    jobs = {}
    for weights, n, candidates in tried:
        x = run.bed.rows(n, weights.shape.n_in)
        for tile in {_tile(weights, x), _tile(weights, x[:1]), *_possible(weights, candidates)}:
            shape, kind = weights.shape, weights.kind
            variant = kind, tile, _is_full(shape, tile, kind), shape.group(kind)
            jobs[variant] = partial(weights.call, x, tile)
    seconds = compile_ahead(run.bed, list(jobs.values()))
    deadline, rows, table = time.perf_counter() + run.args.seconds, [], []
    for weights, n, candidates in tried:
        if time.perf_counter() > deadline:
            break
        found = _tune(run, weights, n, candidates)
        rows.append(found)
        if found["best"] is not None:
            key = Key(NAMES[weights.kind], weights.shape.n_out, weights.shape.n_in, n)
            table.append((key, Tile(**found["best"]), {"us": found["us"]}))
    origin = {**provenance(run.bed.device), "dtype": str(run.bed.dtype).removeprefix("torch.")}
    record = packed_plan.table_record(table, origin)
    text = as_lines(record).replace("[{", "[\n{")
    chosen = packed_plan.parse_table(json.loads(text), "the table just made")
    name = next((n for n, chip in CHIPS.items() if chip == run.chip), "other")
    (run.args.out / f"packed_{name}.json").write_text(text, encoding="utf-8")
    run.held.enter_context(mock.patch.object(packed_plan, "tuned", lambda device: chosen))
    left_out = [f"{w.shape.name} {w.kind} x{n}" for w, n, _ in tried[len(rows) :]]
    return {"compiled_s": round(seconds, 1), "rows": rows, "out_of_time": left_out}


def _is_full(shape: Shape, tile: Tile, kind: str) -> bool:
    """Whether a kernel without masks is compiled."""
    n_steps = shape.n_in / shape.product(kind).step
    return shape.n_out % tile.outputs == 0 and n_steps % packed_plan.PARTS == 0


def _possible(weights: Weights, candidates: Sequence[Tile]) -> list[Tile]:
    """Tiles for the parts of a weight; of what a device has no room for, its compiler tells."""
    has_parts = weights.shape.product(weights.kind).has_parts
    return [tile for tile in candidates if has_parts or not tile.is_spread]


def _tune(run: Run, weights: Weights, n: int, candidates: Sequence[Tile]) -> dict[str, Any]:
    """The fastest of the tiles that leave the bits of the rule's own."""
    x = run.bed.rows(n, weights.shape.n_in)
    want = weights.call(x[:1])
    times: dict[Tile, float] = {}
    refused: dict[str, str] = {}
    for tile in _possible(weights, candidates):
        try:
            if not _same(run, weights.call(x, tile)[:1], want):
                refused[str(tile)] = "other bits"
                continue
            times[tile] = _time(run.bed, weights.calls(tile), x, QUICK_REPLAYS)
        except Exception as error:  # a compiler's, most likely: the others count
            refused[str(tile)] = f"{type(error).__name__}: {str(error)[:200]}"
    rule = _time(run.bed, weights.calls(), x, QUICK_REPLAYS)
    best = min(times, key=lambda tile: times[tile], default=None)
    return {
        **_named(weights, n),
        "best": None if best is None else asdict(best),
        "us": round(times[best] if best is not None else rule, 3),
        "rule_us": round(rule, 3),
        "tried": [{**asdict(tile), "us": round(us, 3)} for tile, us in times.items()],
        "refused": refused,
    }


def _same(run: Run, one: Tensor, other: Tensor) -> bool:
    """Bit for bit; the interpreter's sums are NumPy's, whose order depends on the shape."""
    return torch.equal(one, other) if run.bed.is_gpu else torch.allclose(one, other, 1e-3, 1e-2)


def _named(weights: Weights, n: int) -> dict[str, Any]:
    shape = weights.shape
    return {
        "shape": shape.name, "n_out": shape.n_out, "n_in": shape.n_in, "kind": weights.kind,
        "rows": n,
    }  # fmt: skip


def _time(
    bed: Bed, calls: Sequence[Callable[[Tensor], Any]], x: Tensor, replays: int = REPLAYS
) -> float:
    """Microseconds of a product; rows come by way of a gate where it takes hardly longer."""
    is_gated = bed.is_gpu and x.shape[0] <= MOST_GATED
    beside = torch.ones_like(x)

    def one(call: Callable[[Tensor], Any]) -> None:
        call(gate(x, beside) if is_gated else x)

    return bed.microseconds([partial(one, call) for call in calls], replays)


def products(run: Run) -> dict[str, Any]:
    """Every shape at every number of rows, beside the dense product."""
    bed, rows, copies = run.bed, [], []
    counts = ROWS if bed.is_gpu else TOY_ROWS
    xs = {(s, n): bed.rows(n, s.n_in) for s in run.shapes for n in counts if s.is_read_by(n)}
    drawn = [draw_weights(shape, kind, bed) for shape in run.shapes for kind in FORMATS]
    dense = {shape: _dense(run, shape) for shape in run.shapes}
    calls: list[Callable[[], Any]] = [
        partial(call, x)
        for (shape, _), x in xs.items()
        for call in (dense[shape][0], *(w.call for w in drawn if w.shape == shape))
    ]
    least_out = LEAST_OUT if bed.is_gpu else TOY_LEAST_OUT
    calls += [
        partial(layer, xs[w.shape, n])
        for w in drawn
        for layer in written_out(w)[:1]
        for n in counts
        if n >= least_out and (w.shape, n) in xs
    ]
    seconds = compile_ahead(bed, calls)
    for (shape, n), x in xs.items():
        copies.append(run.copy_gbps())
        dense_us = _time(bed, dense[shape], x)
        for weights in (w for w in drawn if w.shape == shape):
            us = _time(bed, weights.calls(), x)
            n_bytes = weights.n_bytes + x.element_size() * n * (shape.n_in + shape.n_out)
            rows.append(
                {
                    **_named(weights, n),
                    "us": round(us, 3),
                    "bytes": n_bytes,
                    "share": round(n_bytes / us / 1e3 / copies[-1], 4),
                    "dense_us": round(dense_us, 3),
                    "tile": asdict(_tile(weights, x)),
                }
                | _out_time(bed, weights, x, least_out)
            )
    gbps = [round(copy, 1) for copy in copies]
    return {"copies_gbps": gbps, "compiled_s": round(seconds, 1), "rows": rows}


def _out_time(bed: Bed, weights: Weights, x: Tensor, least: int) -> dict[str, float]:
    """By way of a weight that is written out, where rows are many."""
    if x.shape[0] < least:
        return {}
    return {"out_us": round(_time(bed, written_out(weights), x), 3)}


def _tile(weights: Weights, x: Tensor) -> Tile:
    return packed_plan.tile_for(weights.shape.product(weights.kind), x)


def _dense(run: Run, shape: Shape) -> list[Callable[[Tensor], Tensor]]:
    """Products as the engine takes them of a dense weight: copies that overflow the cache."""
    bed = run.bed
    n_copies = bed.copies(shape.n_out * shape.n_in * bed.dtype.itemsize)
    weights = [bed.rows(shape.n_out, shape.n_in) * 0.02 for _ in range(n_copies)]
    if not bed.is_gpu:
        return [partial(functional.linear, weight=weight) for weight in weights]
    make = tuned_linears(shipped_table("h200"), bed.device).make
    return [make(weight, None) for weight in weights]


def step(run: Run) -> dict[str, Any]:
    """Plain steps of four engines, in turns with a large copy."""
    pair, products_ = run.pair(), find_numerics(run.setup.model).packed
    with torch.inference_mode():
        targets = {"dense": pair.target} | {
            scheme: packed_target(pair.target, scheme, products_) for scheme in SCHEMES
        }
    engines = {name: (LargePair(target, pair.head), PLAIN) for name, target in targets.items()}
    clocked, copies = in_turns(run, engines)
    gbps = statistics.median(copies)
    kv = step_bytes(pair.target, run.args.context + run.args.rounds // 2, 1)
    rows = {}
    for name, entry in clocked.items():
        n_bytes = kv - layer_bytes(pair.target) + layer_bytes(targets[name])
        summary, floor_ms = entry.summary(), n_bytes / gbps / 1e6
        rows[name] = {
            **summary,
            "bytes": n_bytes,
            "floor_ms": round(floor_ms, 4),
            "share": round(floor_ms / summary["ms"], 4),
            "floor": FLOORS.get(name),
            "counts": launch_counts(entry.core),
            "raw_ms": [round(ms, 4) for ms in entry.wall],
        }
    met = {name: rows[name]["share"] >= floor for name, floor in FLOORS.items()}
    return {"copies_gbps": [round(c, 1) for c in copies], "rows": rows, "met": met}


def tax(run: Run) -> dict[str, Any]:
    """Rounds with either head over plain steps, in turns."""
    pair, products_ = run.pair(), head_numerics(run.setup.model).packed
    with torch.inference_mode():
        heads = {"dense": pair.head} | {
            scheme: packed_head(pair.head, scheme, products_) for scheme in ("gptq", "awq")
        }
    engines: dict[str, tuple[LargePair, SpeculationConfig]] = {"plain": (pair, PLAIN)}
    shape = WIDE_TREE if run.bed.is_gpu else replace(WIDE_TREE, nodes=16)
    engines |= {name: (LargePair(pair.target, head), shape) for name, head in heads.items()}
    clocked, copies = in_turns(run, engines)
    rows = {name: entry.summary() for name, entry in clocked.items()}
    plain = rows["plain"]["ms"]
    taxes = {name: round(rows[name]["ms"] / plain, 4) for name in heads}
    met = {name: taxes[name] < taxes["dense"] for name in heads if name != "dense"}
    return {
        "copies_gbps": [round(c, 1) for c in copies],
        "rows": rows,
        "raw_ms": {name: [round(ms, 4) for ms in entry.wall] for name, entry in clocked.items()},
        "tax": taxes,
        "met": met,
    }


def in_turns(
    run: Run, engines: Mapping[str, tuple[LargePair, SpeculationConfig]]
) -> tuple[dict[str, Clocked], list[float]]:
    """Warm engines of one request each, timed in blocks one after the other; and the copies."""
    args, n_rounds = run.args, run.args.rounds // N_BLOCKS
    most = 6 * ((N_BLOCKS + 2) * (n_rounds + 8) + 8)
    clocked = {}
    for name, (pair, shape) in engines.items():
        prompts = read_prompts(1, args.context, pair.target.geometry.vocab_size)
        core = run.setup.core(pair, shape, Room(1, args.context + most))
        start(core, prompts, most)
        clocked[name] = Clocked(core)
    return clocked, in_blocks(clocked, n_rounds, N_BLOCKS, run.copy_gbps)


STAGES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "parity": parity,
    "tiles": tiles,
    "products": products,
    "step": step,
    "tax": tax,
}


def run_stages(run: Run, names: Sequence[str]) -> dict[str, str]:
    """Each in turn, written as it ends; those that failed, with why."""
    failed: dict[str, str] = {}
    for name in names:
        begin = time.perf_counter()
        try:
            rows = STAGES[name](run)
            if rows.get("failed"):
                failed[name] = f"{len(rows['failed'])}: {rows['failed'][0]}"
        except Exception as error:  # named at the end; what was measured stays
            traceback.print_exc()
            rows, failed[name] = {}, f"{type(error).__name__}: {str(error)[:500]}"
        seconds = round(time.perf_counter() - begin, 1)
        run.found[name] = {**rows, "seconds": seconds}
        if run.bed.is_gpu:
            torch.cuda.empty_cache()
        print(f"{name}: {seconds} s{', FAILED' if name in failed else ''}", flush=True)
        record = {
            "stages": run.found,
            "failed": failed,
            "seed": SEED,
            "asked": {k: v for k, v in vars(run.args).items() if k != "out"},
            "chip": asdict(run.chip),
            "kind": "measured" if run.bed.is_gpu else "rehearsal",
            "provenance": provenance(run.bed.device),
        }
        write_json(run.args.out / "packed_times.json", record)
    return failed


def main() -> None:
    """Measure what was asked for, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True, help="folder of what is written")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--numerics", default="fast", choices=("fast", "exact"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of the tiles, at most")
    parser.add_argument("--context", type=int, default=48 if ON_CPU else 1024)
    parser.add_argument("--rounds", type=int, default=4 if ON_CPU else 48)
    args = parser.parse_args()
    names = args.stages.split(",")
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; known: {', '.join(STAGES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    # The interpreter has no bfloat16.
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    generator = torch.Generator(args.device).manual_seed(SEED)
    run = Run(Bed(args.device, dtype, generator), args)
    with run.held:
        failed = run_stages(run, names)
    met = {name: stage["met"] for name, stage in run.found.items() if "met" in stage}
    print(json.dumps({"ok": not failed, "failed": failed, "met": met}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
