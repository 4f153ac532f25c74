"""The fused draft's memory on chip, block by block, and its tiles: fetched, computed, evicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.errors import UsageError
from aerie.fpga.page import written
from aerie.fpga.race import BAND, CANDIDATES, DSP
from aerie.perf.buffers import BRAM, URAM, Buffer, ChipPlan, Tile, cycles_of, spread
from aerie.perf.device import Device
from aerie.perf.point import Point, Sizes

HALF, SINGLE = 2, 4  # bytes of a number
GROUP = 128  # weights that share a scale
GROUP_BITS = 4 * GROUP + 16  # a group with its scale: one word of the resident block
LANES = 16 * GROUP  # bits of a row that meet a group in a cycle
TILE_WORDS = 256  # of each memory channel
KEY_POSITIONS = 16  # of a tile of keys and values
NODE_BYTES = 44  # token, score, delta and three links, as the kernels store them
EXP_BYTES = 4096


def quantised_groups(sizes: Sizes) -> dict[str, int]:
    """Groups of 4-bit weights of the layer's two halves."""
    hidden, q, kv = sizes.hidden, sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    attention = 2 * hidden * (q + 2 * kv) + q * hidden
    return {"attention": attention // GROUP, "mlp": 3 * hidden * sizes.mlp_width // GROUP}


def rows_of(point: Point) -> int:
    """Rows in flight: frontiers, or what was accepted, whichever is more."""
    return point.batch * max(point.tree.width, point.tree.depth + 1)


def buffers_of(point: Point, device: Device, is_resident: bool) -> list[Buffer]:
    """Everything a draft round keeps on chip."""
    assert device.fabric is not None
    sizes, tree, rows, batch = point.sizes, point.tree, rows_of(point), point.batch
    hidden, q, kv = sizes.hidden, sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    port = 8 * device.fabric.port_bytes
    channels = device.memory.pseudo_channels
    groups = quantised_groups(sizes)["attention"]
    resident = Buffer("attention weights with scales", groups * GROUP_BITS // 8, GROUP_BITS,
                      ram=URAM, role="resident")  # fmt: skip
    row = rows * HALF
    return [
        *([resident] if is_resident else []),
        Buffer("weight tiles of all channels", channels * port // 8 * TILE_WORDS,
               channels * port, 2, role="prefetch"),
        Buffer("keys and values", KEY_POSITIONS * 2 * kv * HALF, LANES, 2, role="prefetch"),
        Buffer("embedded rows", row * hidden, LANES, role="prefetch"),
        Buffer("hidden rows, level by level", row * hidden, LANES, 2),
        Buffer("joined rows", 2 * row * hidden, LANES),
        Buffer("queries, keys, values of the rows", row * (q + 2 * kv), LANES),
        Buffer("attended rows", row * q, LANES),
        Buffer("rows of the residual, then normed", 2 * row * hidden, LANES),
        Buffer("sums of the feed-forward", rows * hidden * SINGLE, LANES),
        Buffer("tile of the feed-forward", row * GROUP, LANES, 2),
        Buffer("candidates of the head", rows * CANDIDATES * 2 * SINGLE, 64),
        Buffer("node store", batch * tree.nodes * NODE_BYTES, 8 * NODE_BYTES),
        Buffer("running order and masks", batch * tree.verify * (SINGLE + 16), 160),
        Buffer("norms, angles, powers", 4 * hidden * SINGLE + 8 * sizes.head_dim + EXP_BYTES, port),
        Buffer("keys and values going out", 2 * kv * HALF, port, 2, role="evict"),
    ]  # fmt: skip


def plan_of(point: Point, device: Device) -> tuple[ChipPlan, bool]:
    """With the attention block on chip if it fits beside the rest, else without it."""
    if device.on_chip is None or device.fabric is None:
        raise UsageError(f"device card {device.name} needs [on_chip] and [fabric] for a plan")
    whole = spread(buffers_of(point, device, is_resident=True), device.on_chip)
    if whole.fits:
        return whole, True
    return spread(buffers_of(point, device, is_resident=False), device.on_chip), False


@dataclass(frozen=True)
class Streamed:
    """A level of the draft as tiles through the chip, with one buffer and with two."""

    tiles: int
    stage: Tile
    single: int  # cycles
    double: int


def level_of(point: Point, device: Device, is_resident: bool, gbps: float, side: str) -> Streamed:
    """The layer's weights of one level: what is fetched, multiplied, and leaves."""
    assert device.fabric is not None
    groups = quantised_groups(point.sizes)
    streamed = groups["mlp"] + (0 if is_resident else groups["attention"])
    port, clock = device.fabric.port_bytes, device.fabric.clock_mhz
    tile_bytes = device.memory.pseudo_channels * port * TILE_WORDS
    n_tiles = -(-streamed * GROUP_BITS // 8 // tile_bytes)
    weights = sum(groups.values()) * GROUP / n_tiles
    per_dsp, _ = BAND[side]
    leaving = rows_of(point) * 2 * point.sizes.n_kv_heads * point.sizes.head_dim * HALF
    stage = Tile(
        round(tile_bytes / (gbps * 1e3 / clock)),
        round(weights * rows_of(point) / (DSP * per_dsp)),
        -(-leaving // port // n_tiles),
    )
    tiles = [stage] * n_tiles
    return Streamed(n_tiles, stage, cycles_of(tiles, 1), cycles_of(tiles, 2))


def study(points: Sequence[Point], device: Device, gbps: Mapping[str, float]) -> list[Any]:
    """A row a point."""
    found = []
    for point in points:
        plan, is_resident = plan_of(point, device)
        levels = {side: level_of(point, device, is_resident, gbps[side], side) for side in BAND}
        found.append(
            {
                "geometry": point.sizes.name,
                "batch": point.batch,
                "rows": rows_of(point),
                "is_resident": is_resident,
                "fits": plan.fits,
                "megabytes": round(plan.megabytes, 2),
                "URAM": [plan.used(URAM), plan.has(URAM)],
                "BRAM36": [plan.used(BRAM), plan.has(BRAM)],
                "buffers": [
                    {"name": b.name, "role": b.role, "n_bytes": b.n_bytes, "copies": b.copies,
                     "width": b.width, "ram": b.ram.name, "blocks": b.blocks}
                    for b in plan.buffers
                ],
                "level": {
                    side: {"tiles": one.tiles, **vars(one.stage), "single": one.single,
                           "double": one.double}
                    for side, one in levels.items()
                },
                "kind": "analytical",
            }
        )  # fmt: skip
    return found


def totals(found: Mapping[str, Any]) -> dict[str, Any]:
    """The record: what the page says of each point, without its list of buffers."""
    rows = [
        {name: value for name, value in row.items() if name not in ("buffers", "level")}
        for row in found["rows"]
    ]
    return {**found, "rows": rows}


def page(found: Mapping[str, Any]) -> str:
    """Totals, the blocks of the first point, and the tiles of a level."""
    rows = found["rows"]
    lines = [
        f"| {r['geometry']} | {r['batch']} | {r['rows']} | {'yes' if r['is_resident'] else 'no'}"
        f" | {r['URAM'][0]:,} of {r['URAM'][1]:,} | {r['BRAM36'][0]:,} of {r['BRAM36'][1]:,}"
        f" | {r['megabytes']:.1f} | {'yes' if r['fits'] else 'no'} |"
        for r in rows
    ]
    first = rows[0]
    lines += ["", f"## Block by block: {first['geometry']}, batch {first['batch']}", "",
              "| buffer | role | bytes a copy | copies | bits a cycle | blocks |",
              "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {b['name']} | {b['role']} | {b['n_bytes']:,} | {b['copies']} | {b['width']:,}"
        f" | {b['blocks']:,} {b['ram']} |"
        for b in first["buffers"]
    ]
    lines += ["", "## One level: fetch, compute, evict", "",
              "| geometry | batch | side | tiles | fetch | compute | evict | one buffer"
              " | two buffers | gain |", "|---|---:|---|" + "---:|" * 7]  # fmt: skip
    for r in rows:
        for side, one in r["level"].items():
            lines.append(
                f"| {r['geometry']} | {r['batch']} | {side} | {one['tiles']} | {one['prefetch']:,}"
                f" | {one['compute']:,} | {one['evict']:,} | {one['single']:,} | {one['double']:,}"
                f" | {one['single'] / one['double']:.2f} |"
            )
    return written("plan", lines, found)
