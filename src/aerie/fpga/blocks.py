"""The blocks that are simulated and synthesised: circuit, memory image, definition, bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.commit import VerifyResult
from aerie.fpga.rtl.commit_lists import MAX_STOPS
from aerie.fpga.rtl.deltas import MOST_NEW, MOST_SCORES, WorkDeltas
from aerie.fpga.rtl.gather import RowGather
from aerie.fpga.rtl.layer import ID, LayerScores
from aerie.fpga.rtl.mask import TreeMask
from aerie.fpga.rtl.merge import ScoreMerge
from aerie.fpga.sim.images import Array, CallImage, Image, flush, image_of, padded_rows
from aerie.kernels.binding import bind
from aerie.kernels.catalogue import catalogue

Call = Mapping[str, Any]
WIDE = ("m_axi", "g_axi")


@dataclass(frozen=True)
class Block:
    """One card: how it is made, fed and judged. `beyond` says why a call is out of its bounds."""

    name: str
    number: str
    kernel: str  # of the catalogue; empty where there is none
    make: Callable[[], CardEngine]
    image: Callable[[Call, Call], CallImage]
    beyond: Callable[[Call], str]
    prefixes: tuple[str, ...] = ("m_axi",)
    summary: str = ""


# ---- K1 ----

BUS = 256


def flushed_layer(inputs: Call) -> dict[str, Array]:
    """K1 with subnormals flushed before they are sorted, as the circuit does it."""
    probas = flush(np.clip(np.nan_to_num(flush(inputs["topk_probas"]), nan=0.0), 0.0, 1.0))
    parents = flush(inputs["last_layer_scores"])
    batch, width = parents.shape
    top_k = probas.shape[1] // width
    current = flush(probas.astype(np.float32) * np.repeat(parents, top_k, axis=1))
    order = np.argsort(-current, axis=1, kind="stable").astype(np.int64)
    best = order[:, :top_k]
    hidden = inputs["input_hidden"]
    rows = hidden.reshape(batch, width, hidden.shape[1])
    return {
        "curr_layer_scores": current,
        "sort_layer_scores": np.take_along_axis(current, order, axis=1),
        "sort_layer_indices": order,
        "cache_topk_indices": best + inputs["cumu_count"],
        "parent_indices_in_layer": best // top_k,
        "output_hidden": np.take_along_axis(rows, (best // top_k)[:, :, None], axis=1),
    }


def _layer_image(inputs: Call, outputs: Call) -> CallImage:
    names = bind(catalogue()[_K1], inputs)
    status = np.asarray(outputs["status"])
    wanted = {name: np.asarray(outputs[name]) for name in LayerScores.PORTS if name in outputs}
    again = flushed_layer(inputs)
    for name, array in again.items():
        is_taken = (status == 0).reshape((-1, *[1] * (array.ndim - 1)))
        wanted[name] = np.where(is_taken, array, wanted[name])
    hidden = padded_rows(inputs["input_hidden"], BUS) if names["H"] else _no_rows()
    image = Image()
    for name in LayerScores.PORTS:
        if name == "input_hidden":
            image.put(name, hidden)
        elif name == "output_hidden":
            shape = (names["B"] * names["K"], hidden.shape[1])
            image.put(name, np.zeros(shape, np.uint8))
        elif name == "hot_token_id":
            given = inputs.get(name)
            image.put(name, np.zeros(1, np.int64) if given is None else given)
        elif name in inputs:
            image.put(name, inputs[name])
        else:
            image.fresh(name, wanted[name].shape, wanted[name].dtype)
    image.seal()
    rows = wanted["output_hidden"].reshape(names["B"] * names["K"], names["H"])
    wanted["output_hidden"] = padded_rows(rows, BUS) if names["H"] else image.get("output_hidden")
    has_map = inputs.get("hot_token_id") is not None
    registers = {
        **{name: int(names[name]) for name in ("B", "W", "K", "cumu_count")},
        "n": names["W"] * names["K"],
        "VD": len(inputs["hot_token_id"]) if has_map else 0,
        "has_map": int(has_map),
        "row_beats": hidden.shape[1] // (BUS // 8) if names["H"] else 0,
        **{f"{name}_base": image.places[name] for name in LayerScores.PORTS},
    }
    return CallImage(image, registers, {name: flush(array) for name, array in wanted.items()})


def _no_rows() -> Array:
    return np.zeros((1, BUS // 8), np.uint8)


def _layer_beyond(inputs: Call) -> str:
    names = bind(catalogue()[_K1], inputs)
    if names["W"] * names["K"] > 64:
        return "W*K > 64"
    parents = inputs["last_layer_scores"]
    if not ((parents >= 0) & (parents <= 1)).all():
        return "a parent's score outside [0, 1]"
    ids = inputs.get("hot_token_id")
    if ids is not None and (len(ids) > 4096 or ids.min() < 0 or ids.max() >= 1 << ID):
        return "the map is longer than 4096, or an id has more than 18 bits"
    return ""


# ---- K2's merge ----


def _merge_image(inputs: Call, outputs: Call) -> CallImage:
    names = bind(catalogue()[_K2], inputs)
    n = names["W"] * names["K"]
    image = Image()
    image.put("status", np.asarray(outputs["status"]))
    image.put("sort_scores", inputs["sort_scores"])
    image.put("sort_layer_scores", inputs["sort_layer_scores"])
    image.seal()
    registers = {
        "B": names["B"],
        "M": names["M"],
        "n": n,
        "old_count": min(names["verify_num"], names["cumu_count"]),
        "new_count": min(names["verify_num"], names["cumu_count"] + n),
        **{f"{name}_base": image.places[name] for name in ScoreMerge.PORTS},
    }
    return CallImage(image, registers, {"sort_scores": flush(outputs["sort_scores"])})


def _merge_beyond(inputs: Call) -> str:
    names = bind(catalogue()[_K2], inputs)
    if names["W"] * names["K"] > 64:
        return "W*K > 64"
    old = inputs["sort_scores"][:, : min(names["verify_num"], names["cumu_count"])]
    runs = (old, inputs["sort_layer_scores"])
    if not all(((run >= 0) & np.isfinite(run)).all() for run in runs):
        return "a score that is negative or not finite"
    if any((np.diff(run, axis=1) > 0).any() for run in runs):
        return "a run does not descend"
    return ""


# ---- K3, K4, K7 ----


def _whole_card(kernel: str, engine: type[CardEngine]) -> Callable[[Call, Call], CallImage]:
    def make(inputs: Call, outputs: Call) -> CallImage:
        card = catalogue()[kernel]
        image, registers = image_of(card, inputs, engine.ARGUMENTS, engine.PORTS)
        wanted = {port.name: flush(np.asarray(outputs[port.name])) for port in card.outputs}
        return CallImage(image, registers, wanted)

    return make


def _deltas_image(inputs: Call, outputs: Call) -> CallImage:
    """K3 summed without rounding; the definition's float64 sum is within one ulp of it."""
    scores = flush(inputs["work_scores"])
    exact = exact_gains(scores, inputs["node_top_k"], inputs["verify_num"])
    if np.array_equal(scores, inputs["work_scores"]):
        np.testing.assert_array_max_ulp(exact, np.asarray(outputs["G"]), maxulp=1)
    return _whole_card(_K3, WorkDeltas)(inputs, {"G": exact})


def exact_gains(scores: Array, top_k: int, verify_num: int) -> Array:
    """G in integers of 2^-149, rounded once; a float64 sum loses bits beside a large score."""
    batch, length = scores.shape
    n_old = length - top_k
    gains = [0] * (top_k + 1)
    for row in scores:
        units = [_units(bits) for bits in row.view(np.uint32).tolist()]
        displaced = [0] * (verify_num - n_old) + units[:n_old][::-1]
        mass = 0
        for k, score in enumerate(units[n_old:]):
            if k < len(displaced):
                mass += max(score - displaced[k], 0)
            gains[k + 1] += mass
    rounded = [_nearest(gain, max(batch, 1)) for gain in gains]
    return flush(np.array(rounded, np.uint32).view(np.float32))


def _units(bits: int) -> int:
    exponent = bits >> 23 & 255
    mantissa = (bits & 0x7FFFFF) | ((1 << 23) if exponent else 0)
    return mantissa << max(exponent - 1, 0)


def _nearest(value: int, divisor: int) -> int:
    """The bits of the float nearest to value * 2^-149 / divisor, ties to even."""
    if not value:
        return 0
    # Scaled so that the quotient has at least 24 bits, then cut to 24, subnormals to fewer.
    shift = max(0, 24 + divisor.bit_length() - value.bit_length() + 1)
    quotient, rest = divmod(value << shift, divisor)
    cut = max(quotient.bit_length() - 24, shift)
    kept, lost = quotient >> cut, quotient & ((1 << cut) - 1)
    twice = 2 * lost if cut else 0
    half = 1 << cut
    is_tie = twice == half and not rest
    up = twice > half or (twice == half and rest) or (is_tie and kept & 1)
    kept += 1 if up else 0
    exponent = cut - shift
    return (exponent << 23) + kept


def _deltas_beyond(inputs: Call) -> str:
    scores = inputs["work_scores"]
    if scores.shape[1] > MOST_SCORES or inputs["node_top_k"] > MOST_NEW:
        return "more scores than the chip holds"
    return "" if ((scores >= 0) & (scores < 2)).all() else "a score outside [0, 2)"


def _commit_beyond(inputs: Call) -> str:
    return "more stop ids than 64" if inputs["stop_tokens"].shape[1] > MAX_STOPS else ""


# ---- the gather ----


def _gather_image(inputs: Call, outputs: Call) -> CallImage:
    image = Image()
    image.put("moves", np.asarray(inputs["moves"], np.int32))
    image.put("source_rows", padded_rows(inputs["source_rows"], BUS))
    image.put("target_rows", padded_rows(inputs["target_rows"], BUS))
    image.seal()
    registers = {
        "n_rows": len(inputs["moves"]),
        "row_beats": image.arrays["source_rows"].shape[1] // (BUS // 8),
        **{f"{name}_base": image.places[name] for name in RowGather.PORTS},
    }
    return CallImage(image, registers, {"target_rows": padded_rows(outputs["target_rows"], BUS)})


_K1, _K2 = "draft_tree_layer_score_index_gen_op", "update_cumu_draft_state"
_K3, _K4, _K7 = "calculate_work_deltas", "fused_tree_mask_operator", "update_verify_result"

BLOCKS: tuple[Block, ...] = (
    Block("layer", "K1", _K1, LayerScores, _layer_image, _layer_beyond, WIDE,
          "score, sort 64, gather rows of the best"),
    Block("merge", "K2", _K2, ScoreMerge, _merge_image, _merge_beyond,
          summary="the running order, two runs merged"),
    Block("deltas", "K3", _K3, WorkDeltas, _deltas_image, _deltas_beyond,
          summary="gains, summed exactly"),
    Block("mask", "K4", _K4, TreeMask, _whole_card(_K4, TreeMask), lambda inputs: "",
          summary="slot lists and packed masks"),
    Block("commit", "K7", _K7, VerifyResult, _whole_card(_K7, VerifyResult), _commit_beyond,
          summary="compaction and scatter"),
    Block("gather", "", "", RowGather, _gather_image, lambda inputs: "", WIDE,
          "rows through two buffers in turns"),
)  # fmt: skip


def block_named(name: str) -> Block:
    """A block by its name."""
    return next(block for block in BLOCKS if block.name == name)
