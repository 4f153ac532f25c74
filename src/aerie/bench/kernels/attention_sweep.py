"""Chooses attention tiles by timing candidates at every bucket, within a number of seconds."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from aerie.attention.triton import (
    Tile,
    TileKey,
    TileTable,
    TritonAttention,
    load_tiles,
    one_tile,
    tile_key,
)
from aerie.bench.kernels.attention import (
    Heads,
    Point,
    Work,
    label,
    make_work,
    random_storage,
    seconds_per_layer,
    storage_elements,
)

SAMPLES = 3
N_LAYERS = 4  # of the longest points; shorter ones get more out of the same storage
Plan = list[tuple[Point, tuple[Tile, ...]]]
Variant = tuple[Tile, Heads, torch.dtype, bool]
# A tile is (queries, columns, warps, stages). Three and four stages are the same code, for the
# read of a slot takes one of them: 3 keeps two blocks in flight, 5 three, 7 four.
SMALL = ((16, 128, 4, 3), (16, 64, 4, 3), (16, 128, 4, 5), (16, 64, 4, 5))
MIDDLE = ((64, 64, 4, 5), (64, 64, 4, 3), (64, 32, 4, 5), (64, 32, 4, 7))
ONE_A_PROCESSOR = ((128, 64, 8, 5), (128, 64, 8, 7), (256, 64, 8, 5), (256, 32, 8, 7))
TWO_A_PROCESSOR = ((128, 32, 4, 5), (128, 32, 4, 7), (64, 64, 4, 5))
# Where one program fills a processor, bringing up the merge early paid; beside two it cost 3 µs.
EARLY = (Tile(128, 64, 8, 5, 1, is_overlapped=True), Tile(128, 64, 8, 7, 1, is_overlapped=True))
SPLIT_HEADS = (Tile(64, 64, 4, 5, 2, heads=2),)
# Tried on the fastest of a point's candidates: the same code, other splits.
REFINEMENTS: tuple[dict[str, Any], ...] = (
    {"masked_cost": 1}, {"masked_cost": 4}, {"least_blocks": 4}, {"least_blocks": 8},
)  # fmt: skip
# float32 runs on no matrix unit: for checks of exactness, so only the tile's size is chosen.
EXACT = ((16, 32, 4, 1), (16, 64, 4, 1), (32, 32, 4, 1))
COLUMNS = (1024, 8192, 16384, 32768)
BATCHES = (1, 4)


@dataclass(frozen=True)
class Trial:
    """One tile at one point."""

    point: Point
    tile: Tile
    microseconds: float


def _each(tiles: Iterable[tuple[int, int, int, int]], per_processor: Iterable[int]) -> list[Tile]:
    programs = tuple(per_processor)
    return [Tile(*tile, n) for tile in tiles for n in programs]


LARGE = (*_each(ONE_A_PROCESSOR, (1,)), *_each(TWO_A_PROCESSOR, (2,)))

# Tiles worth trying for one bucket of queries: rows of its points, tiles, and whether of trees.
GROUPS: tuple[tuple[int, tuple[Tile, ...], bool], ...] = (
    (1, (*_each(SMALL, (1, 2, 3)), Tile(16, 128, 4, 5, 1, is_overlapped=True)), True),
    (16, (*_each(MIDDLE, (1, 2, 3)), *SPLIT_HEADS), True),
    (64, (*LARGE, *EARLY), True),
    (128, (*LARGE, *EARLY), True),
    (2048, tuple(replace(tile, per_processor=0) for tile in LARGE), False),
)


def sweep_points(heads: Heads, dtype: torch.dtype) -> Plan:
    """Every bucket of one geometry with its candidates and the shipped tile, the longest first."""
    shipped, found = load_tiles(), []
    sizes = itertools.product(sorted(COLUMNS, reverse=True), BATCHES, GROUPS)
    for columns, batch, (most, tiles, is_tree) in sizes:
        rows = most if is_tree else min(columns, most // batch)
        point = Point(rows, columns, batch, heads, dtype, is_tree)
        # A sweep that did not time it could not say whether it is still good.
        own = shipped.choose(key_of(point))
        tried = (*tiles, own.tile) if own.is_tuned else tiles
        found.append((point, tuple(dict.fromkeys(tried))))
    return found


def exact_points(heads: Heads) -> Plan:
    """float32: one batch, two lengths, trees only."""
    tiles = tuple(_each(EXACT, (2,)))
    return [
        (Point(rows, columns, 1, heads, torch.float32), tiles)
        for columns in (8192, 1024)
        for rows in (64, 16, 1)
    ]


def key_of(point: Point) -> TileKey:
    """The bucket a point decides."""
    return tile_key(
        queries=point.rows * (point.heads.n_heads // point.heads.n_kv_heads),
        columns=point.columns,
        batch=point.batch,
        head_dim=point.heads.head_dim,
        dtype=point.dtype,
    )


def compile_all(work: Plan, n_processes: int) -> tuple[Plan, list[str]]:
    """Fill the compiler's cache from many processes at once; timing then never waits for it.

    Returns the work without the candidates that this device cannot run, and why it cannot.
    """
    jobs: dict[Variant, set[Point]] = {}
    for point, tiles in work:
        for tile in tiles:
            small = replace(point, columns=max(128, min(point.columns, point.rows)))
            jobs.setdefault(_variant(point, tile), set()).add(small)
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        reasons = list(pool.map(_compile, jobs, jobs.values()))
    failed = {variant for variant, reason in zip(jobs, reasons, strict=True) if reason}
    left = [
        (point, tuple(tile for tile in tiles if _variant(point, tile) not in failed))
        for point, tiles in work
    ]
    return left, [reason for reason in reasons if reason]


def sweep(work: Plan, storage: Tensor, seconds: float) -> list[Trial]:
    """Time every candidate; stops early when the seconds are spent."""
    trials: list[Trial] = []
    start = time.monotonic()
    for point, tiles in work:
        made = make_work(point, storage)
        for tile in tiles:
            if time.monotonic() - start > seconds:
                return trials
            trials.append(_trial(point, tile, made))
        best = min((t for t in trials if t.point == point), key=lambda t: t.microseconds).tile
        if best.per_processor:
            trials += [_trial(point, replace(best, **change), made) for change in REFINEMENTS]
    return trials


def choose(trials: list[Trial], origin: str) -> TileTable:
    """The fastest tile of every bucket."""
    best: dict[TileKey, Trial] = {}
    for trial in trials:
        key = key_of(trial.point)
        if key not in best or trial.microseconds < best[key].microseconds:
            best[key] = trial
    return TileTable({key: trial.tile for key, trial in best.items()}, dict.fromkeys(best, origin))


def record(trials: list[Trial], provenance: dict[str, Any]) -> dict[str, Any]:
    """The whole sweep as JSON: every trial, grouped by point, fastest first."""
    points: dict[Point, list[Trial]] = {}
    for trial in trials:
        points.setdefault(trial.point, []).append(trial)
    return {
        "provenance": provenance,
        "points": [
            {
                "key": asdict(key_of(point)),
                "rows": point.rows,
                "columns": point.columns,
                "batch": point.batch,
                "dtype": str(point.dtype).removeprefix("torch."),
                "is_tree": point.is_tree,
                "trials": [
                    {"tile": label(trial.tile), "microseconds": trial.microseconds}
                    for trial in sorted(found, key=lambda trial: trial.microseconds)
                ],
            }
            for point, found in points.items()
        ],
    }


def _trial(point: Point, tile: Tile, work: Work) -> Trial:
    backend = TritonAttention(one_tile(tile))
    taken = statistics.median(seconds_per_layer(work, backend, SAMPLES))
    return Trial(point, tile, round(taken * 1e6, 2))


def _variant(point: Point, tile: Tile) -> Variant:
    """What decides the code of the kernels; the number of programs does not."""
    code = replace(tile, per_processor=1, masked_cost=2, least_blocks=1)
    return code, point.heads, point.dtype, point.is_tree


def _compile(variant: Variant, points: set[Point]) -> str:
    """Run one variant at small sizes of its points; returns why it cannot run, or nothing."""
    tile = variant[0]
    backend = TritonAttention(one_tile(tile))
    for point in points:
        storage = random_storage(storage_elements([point], 1), point.dtype, "cuda")
        work = make_work(point, storage)
        try:
            seconds_per_layer(work, backend, 1)
        except Exception as failure:  # a tile too large for the device must not end the sweep
            return f"{label(tile)} {point}: {type(failure).__name__}: {failure}"
    return ""
