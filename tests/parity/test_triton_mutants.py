"""The small cases bite: a Triton kernel with one thing wrong is noticed by what CI runs of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load, triton_gpu
from aerie.kernels.implementation import Implementation
from aerie.kernels.kernel import Kernel
from aerie.kernels.registry import Kernels
from aerie.kernels.triton_gpu import KERNELS, adopt, refuse_device
from aerie.parity.run import run_case
from tests.parity.triton_cases import small_cases

FOLDER = Path(triton_gpu.__file__).parent

pytestmark = [
    pytest.mark.skipif(refuse_device("cpu") is not None, reason=f"triton: {refuse_device('cpu')}"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


@dataclass(frozen=True)
class Mutant:
    """One change of one place of the sources: what is wrong then, and a case that sees it."""

    kernel: str
    seen_by: str
    file: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.before.strip()} -> {self.after.strip()}"


K1, K2, K3 = (
    "draft_tree_layer_score_index_gen_op",
    "update_cumu_draft_state",
    "calculate_work_deltas",
)
K4, K5, K7 = "fused_tree_mask_operator", "convert_logits_to_probas", "update_verify_result"
K8, K10C, K13 = "compute_kv_indices", "update_node_data", "build_active_slots"
WALK, SAMPLE = "draft_tree_reject_sample", "sample_target_tokens"

MUTANTS = (
    Mutant(K1, "b4_w3_k5_certain", "device.py",
           "here[None, :] < here[:, None]", "here[None, :] > here[:, None]"),
    Mutant(K1, "b3_w3_k4_parents_not_finite", "device.py", ", -0x7FFFFFFF)", ", 0x7FFFFFFF)"),
    Mutant(K1, "b4_w3_k10_over_one", "growth_device.py",
           "tl.maximum(p, 0.0), 1.0)", "tl.maximum(p, 0.0), 2.0)"),
    Mutant(K2, "b1_k1_smallest", "growth_device.py",
           "here % top_k < top_k - 1", "here % top_k < top_k"),
    Mutant(K2, "frontier_not_stored", "growth_device.py", "| (ids >= count)", "| (ids > count)"),
    Mutant(K2, "b3_w2_k3_scores_not_sorted", "growth_device.py",
           "old_rank = rank_descending(old, is_old, M)", "old_rank = place"),
    Mutant(K3, "b2_old16_k8_compat", "growth_device.py",
           "(n_old - 1 - (rank - n_free))", "(n_old - 1)"),
    Mutant(K3, "b1_first_layer_k8", "growth_device.py",
           "tl.maximum(batch, 1)", "tl.maximum(batch, 2)"),
    Mutant(K4, "b1_root_only_seq1", "slots.py",
           "(word >> (tree & 31)) & 1, 1)", "(word >> (tree & 31)) & 1, 0)"),
    Mutant(K4, "mask_one_short", "slots.py",
           "(asked_bytes > mask_capacity)", "(asked_bytes > mask_capacity + 1)"),
    Mutant(K5, "b2_greedy_equal", "device.py",
           "tl.min(tl.where(value == top, ids, 2147483647)",
           "tl.max(tl.where(value == top, ids, 0)"),
    Mutant(K5, "all_masked_row", "verdict.py",
           "(peak == float(\"-inf\")) & (is_bad == 0)", "(peak > peak)"),
    Mutant(WALK, "match_walk_too_deep_at_0", "walk.py", "(n_taken < depth)", "(n_taken <= depth)"),
    Mutant(WALK, "match_row_with_two_parents", "walk.py", "row == at, target", "row == 0, target"),
    Mutant(SAMPLE, "b2_heat_5", "noise.py", "(position + 1)", "(position)"),
    Mutant(SAMPLE, "infinite_logit", "sampling_scan.py", "top == float(\"inf\")", "top != top"),
    # Blind to a stop token in the bonus place.
    Mutant(K7, "b3_stop_bonus", "commit.py", "(step <= n_accepted)", "(step < n_accepted)"),
    Mutant(K7, "b3_limits_inside", "commit.py", "- length - 1, 0)", "- length, 0)"),
    Mutant(K7, "b3_stop_first", "commit.py",
           "tl.minimum(n_emitted, n_accepted) + 1", "n_accepted + 1"),
    Mutant(K7, "b3_stops_unused", "commit.py", "& (token >= 0)", ""),
    Mutant(K8, "b1_seq_0", "slots.py",
           "is_clean & (asked > kv_capacity)", "is_clean & (asked >= kv_capacity)"),
    Mutant(K8, "b3_full_table", "slots.py", "length > width - count", "length >= width - count"),
    Mutant(K10C, "first_unused_node_linked", "layout_rows.py",
           "| (node >= used)", "| (node > used)"),
    Mutant(K10C, "b2_every_node", "layout_rows.py",
           "low |= tl.where((at >= 0) & (at < 64), bit, 0)", "low |= bit"),
    Mutant(K13, "s6_at_limit", "replay.py", ">= tl.load(limit", "> tl.load(limit"),
    Mutant(K13, "s6_eos_only", "replay.py",
           "tl.store(accept_count + slot, none", "tl.store(accept_count + slot, none + 1"),
    Mutant("place_verify_rows", "b3_padding", "round_rows.py",
           "mask=is_real, other=1)", "mask=is_real, other=0)"),
    Mutant("place_prompt_rows", "b3_padding", "round_rows.py",
           "tl.where(is_real, position, 0)", "position"),
    Mutant("place_draft_rows", "b1_part_of_a_run", "round_levels.py",
           "tl.minimum(own, kept - 1)", "own"),
    Mutant("place_draft_levels", "b4_three_levels", "round_levels.py",
           "tl.where(is_node, length + level, index)", "index"),
    # Blind to a layer that goes on in the next word.
    Mutant("mark_draft_paths", "b3_fed_30", "round_levels.py",
           "(column // 32)[:, None]", "(fed // 32 + 0 * node)[:, None]"),
    Mutant("best_draft_children", "r3_both_zeros", "draft_top.py", "x + 0.0, float", "x, float"),
    Mutant("grow_draft_layer", "duplicate_siblings", "growth_layer.py",
           "count + chosen, -1)", "count + chosen, 0)"),
    Mutant("choose_best_nodes", "b3_all_equal", "round_verdict.py",
           "(other_node[None, :] < node[:, None])", "(other_node[None, :] > node[:, None])"),
    Mutant("choose_planned_nodes", "b5_far_off", "round_forest.py",
           "call.deepest.bit_length()", "0"),
    Mutant("note_chosen_nodes", "b5_mixed", "round_forest.py",
           "tl.load(own + parent, mask=is_noted & (parent >= 0), other=-1)", "parent"),
    # Blind to the last move.
    Mutant("move_kv_slots", "one_move", "round_verdict.py", "entry + 1, 0)", "entry, 0)"),
    Mutant("hand_over_verdict", "b1_no_tree", "round_verdict.py",
           "tl.where(n_emitted > 0, root, old)", "root"),
    Mutant("find_text_path", "b3_searched_cuts_the_match", "round_text.py",
           "(end - back >= start)", "(end - back >= 0)"),
    Mutant("merge_text_path", "b9_left_over_child", "round_text.py", "& (depth == step + 1)", ""),
    # The words that tokens are drawn with.
    Mutant("toss_coins", "b3", "scores.py", "tl.load(sample_index + request), COINS",
           "tl.load(sample_index + request), 0"),
    Mutant("score_target_tokens", "b3_infinite", "scores.py",
           "x < float(\"inf\")", "x <= float(\"inf\")"),
    # A token does not tie with itself.
    Mutant("find_near_ties", "b3_above_the_limit", "near_ties.py",
           "(ids != token) & (x > float(\"-inf\"))", "(x > float(\"-inf\"))"),
    Mutant("find_near_ties", "b3_top_k_leaves_one", "near_ties.py", "(count < k)", "(count <= k)"),
    # A seat reads its first mask for all of its rows; ids beyond the first word of a mask.
    Mutant("forbid_tokens", "b3", "masks.py", "begin + row - tl.load(", "begin + 0 * tl.load("),
    Mutant("forbid_tokens", "b3_map_outside", "masks.py", "(own < 32 * n_words)", "True"),
    # Blind to where a text ends inside a block.
    Mutant("weigh_kv_blocks", "b3_block_edges", "partial_kv.py",
           "tl.where(is_real[None, :], score, float(\"-inf\"))", "score"),
    Mutant("bound_kv_blocks", "b3", "partial_kv.py", "tl.maximum(above, below)", "above"),
    # Blind to the zero of every other code; every group takes the scale of the first.
    Mutant("multiply_int4", "r3_plain", "packed.py", "((wide >> 4) - zero)", "(wide >> 4)"),
    Mutant("multiply_fp8", "r3_plain", "packed_walk.py", "// EVERY * n_out", "* 0"),
    # Halves go up; the scale of a row that holds 448 and no more is twice as large.
    Mutant("multiply_fp8_rows", "r3_halves_to_even", "fp8_rows.py",
           "size + 0x7FFFF + ((size >> 20) & 1)", "size + 0x80000"),
    Mutant("multiply_fp8_rows", "r3_largest_448", "fp8_rows.py", "0x1FFFFF", "0x200000"),
    # Blind to the zero of every other code; every group takes the scale of the first.
    Mutant("unpack_int4", "n5_plain", "unpack.py", "(both >> 4).to(tl.int32) - zero.to(tl.int32)",
           "(both >> 4).to(tl.int32)"),
    Mutant("unpack_fp8", "n5_plain", "unpack.py", "(step // EVERY)", "(0 * step)"),
    # Every tile of an expert takes the rows of its first.
    Mutant("multiply_experts", "r17_a_tile_and_one", "experts.py",
           "first + (tile - end + n_tiles) * BM, 0)", "first, 0)"),
    Mutant("gather_kv_blocks", "b1_two_blocks", "partial_kv.py", "place * SIZE + own", "own"),
)  # fmt: skip


def test_every_kernel_has_a_mutant() -> None:
    assert {mutant.kernel for mutant in MUTANTS} == set(KERNELS)


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the Python path; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def mutated(mutant: Mutant, folder: Path) -> ModuleType:
    """The table of a copy of the backend in which one place is changed."""
    package = folder / "triton_mutant"
    package.mkdir()
    for path in FOLDER.glob("*.py"):
        text = path.read_text("utf-8").replace("aerie.kernels.triton_gpu", package.name)
        if path.name == mutant.file:
            assert text.count(mutant.before) == 1, f"{mutant} is not one place of {path.name}"
            text = text.replace(mutant.before, mutant.after)
        (package / path.name).write_text(text, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    return importlib.import_module(f"{package.name}.table")


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_kernel_is_noticed(mutant: Mutant, copies: Path) -> None:
    reference = load("reference", data_errors="status")
    entry: Implementation = mutated(mutant, copies).KERNELS[mutant.kernel]
    kernel = Kernel(reference[mutant.kernel].card, entry, adopt, raises=False)
    wrong = Kernels("mutant", "cpu", "status", {mutant.kernel: kernel})
    (case,) = (case for case in small_cases(mutant.kernel) if case.name == mutant.seen_by)
    assert not run_case(wrong, reference, case).ok, f"{mutant} passes {case.name}"
