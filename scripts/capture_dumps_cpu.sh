#!/usr/bin/env bash
# Captures the representative set of dumps in tests/data/dumps on a CPU, from the built-in pair.
#   scripts/capture_dumps_cpu.sh [folder, default tests/data/dumps]
# Live calls of every kernel the engine runs, chosen by condition; parity cases for the kernels it
# does not call and for refusals, which a healthy run does not have. At most 2 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-tests/data/dumps}"
work=build/dumps
python="${PYTHON:-.venv/bin/python}"
export PYTHONPATH=src OMP_NUM_THREADS=1
rm -rf "$work"

capture() { # name, options
    local name="$1"
    shift
    "$python" -m aerie parity capture --out "$work/$name" --device cpu "$@"
}

# Three requests, trees of three levels: widths and batches change, runs are rejected and taken.
capture 1-tree --speculative-num-steps 3 --speculative-eagle-topk 3 --speculative-num-draft-tokens 8 \
    --calls 1 --when first --when width-change --when batch-change --when zero-accepted \
    --when all-accepted --when finished --most-kb 64 --n-pages 24
# A wide tree for one request.
capture 2-wide "import os, sys" --speculative-num-steps 2 --speculative-eagle-topk 8 \
    --speculative-num-draft-tokens 24 --calls 1 --most-kb 40 --n-pages 12 --max-new-tokens 12
# Vocabulary-wide rows: few of them. The target's own tokens, greedy and sampled; then coins.
capture 3-greedy "def add(a, b):" --speculative-num-steps 2 --speculative-num-draft-tokens 3 \
    --calls 1 --kernel sample_target_tokens --most-kb 128 --n-pages 8 --max-new-tokens 8
capture 4-sampled "def add(a, b):" --speculative-num-steps 2 --speculative-num-draft-tokens 3 \
    --temperature 0.8 --top-k 20 --top-p 0.9 --seed 7 \
    --calls 1 --kernel sample_target_tokens --most-kb 128 --n-pages 8 --max-new-tokens 8
capture 5-coins "def add(a, b):" --speculative-num-steps 2 --speculative-num-draft-tokens 3 \
    --rule coins --temperature 1.0 --seed 7 --calls 1 --when first --when zero-accepted \
    --kernel convert_logits_to_probas --kernel draft_tree_reject_sample \
    --most-kb 160 --n-pages 8 --max-new-tokens 16
# Trees paid for by measured cost: K3 runs, and widths differ from layer to layer.
capture 6-planner --policy planner --calls 1 --when first --when width-change --most-kb 200 --n-pages 24 \
    --kernel calculate_work_deltas --kernel update_cumu_draft_state \
    --kernel draft_tree_layer_score_index_gen_op --max-new-tokens 24
# Kernels the engine does not call by itself, hidden rows in 16 bits, and refusals.
cases=(
    calculate_work_deltas/b5_old10_k8_fills_then_displaces
    calculate_work_deltas/b6_old8_k7_ties_full
    calculate_work_deltas/old_past_verify
    fused_tree_mask_operator/b3_trees
    fused_tree_mask_operator/b7_odd_bits
    fused_tree_mask_operator/mask_one_short
    fused_tree_mask_operator/layout_falls
    calculate_verify_kv_qo_ms/b7_odd_bits
    calculate_verify_kv_qo_ms/b2_kv_sum_at_int32
    calculate_verify_kv_qo_ms/mask_overflows
    compute_kv_indices/b3_draft_w2_depth2
    compute_kv_indices/draft_one_short
    assign_draft_cache_locs_operator/b3_spans
    assign_draft_cache_locs_operator/b4_some_empty_spans
    assign_draft_cache_locs_operator/pool_row_twice
    draft_replay_input_operator/b5_padding_3
    draft_replay_input_operator/b3_h65_bf16
    draft_replay_input_operator/b9_past_buckets
    extend_replay_input_operator/b3_r7_padding_fills_rows
    extend_replay_input_operator/b3_h64_fp16
    extend_replay_input_operator/lengths_below_rows
    draft_tree_layer_score_index_gen_op/b5_w3_k4_h65_bf16
    draft_tree_layer_score_index_gen_op/b6_w5_k7_ties
    draft_tree_layer_score_index_gen_op/b4_w5_k5_map
    draft_tree_layer_score_index_gen_op/map_not_injective
    update_cumu_draft_state/b2_w8_k8_compat_layer2
    update_cumu_draft_state/duplicate_siblings
    update_node_data/b3_merged_path
    update_node_data/rows_129
    convert_logits_to_probas/b5_mixed_heat
    convert_logits_to_probas/nan_logit
    convert_logits_to_probas/logits_float16
    draft_tree_reject_sample/bonus_on_the_edge
    draft_tree_reject_sample/coins_b6_mix
    draft_tree_reject_sample/match_walk_too_deep
    sample_target_tokens/b4_everything
    sample_target_tokens/b3_penalties_of_the_path
    sample_target_tokens/top_p_nan
    update_verify_result/b6_some_stop
    update_verify_result/b6_limit_inside_tree
    update_verify_result/path_falls
    assign_req_to_token_pool_operator/reversed_span_takes_no_share
    assign_req_to_token_pool_operator/b129
    build_active_slots/s9_counts_tokens
    build_active_slots/s8_every_other
    build_active_slots/rows_0
    place_verify_rows/b3_padding
    place_verify_rows/b4_list_without_slots
    place_prompt_rows/b3_padding
    place_prompt_rows/b3_one_without_rows
    place_draft_rows/b4_mixed
    place_draft_rows/b3_run_7
    place_draft_levels/b4_three_levels
    place_draft_levels/b4_nothing_fed
    mark_draft_paths/b3_fed_30
    mark_draft_paths/b2_refused
    best_draft_children/r3_map_ties
    best_draft_children/r3_bf16
    best_draft_children/r3_some_nan
    grow_draft_layer/b4_w5_k7_ties
    grow_draft_layer/b3_h65_bf16
    grow_draft_layer/duplicate_siblings
    choose_best_nodes/b3_ties
    choose_best_nodes/verify_129
    choose_planned_nodes/b5_not_on_offer
    choose_planned_nodes/b2_merged_paths
    note_chosen_nodes/b5_mixed
    note_chosen_nodes/b2_more_than_noted
    move_kv_slots/three_requests
    move_kv_slots/bf16_chain
    hand_over_verdict/every_end
    hand_over_verdict/b5_all_empty
    find_text_path/b3_longer_wins_over_later
    find_text_path/b3_searched_cuts_the_match
    merge_text_path/every_way
    merge_text_path/b9_some_without_score
    toss_coins/b4_samples
    toss_coins/b4_seed_edges
    score_target_tokens/b4_mixed
    score_target_tokens/b3_nan
    find_near_ties/b3_at_the_limit
    find_near_ties/b4_everything
    forbid_tokens/b3_map_of_some
    forbid_tokens/b3_bf16_map
    multiply_int4/r3_bias
    multiply_int4/r3_bf16
    multiply_int4/group_odd
    multiply_fp8/r3_last_group_short
    multiply_fp8/r3_bf16_bias
    multiply_fp8_rows/r3_bias
    multiply_fp8_rows/r3_bf16
    unpack_int4/n5_plain
    unpack_int4/n5_bf16
    unpack_fp8/n3_last_group_short
    unpack_fp8/n5_bf16
    multiply_experts/r3_gated_bias
    multiply_experts/r3_bf16
    weigh_kv_blocks/b3
    weigh_kv_blocks/b2_small_half
    bound_kv_blocks/b3
    bound_kv_blocks/b2_bfloat16
    choose_kv_blocks/b3_ties
    choose_kv_blocks/window_0
    gather_kv_blocks/b3
    gather_kv_blocks/b1_small_bfloat16
    splice_drafted_run/b4
    splice_drafted_run/no_room
)
"$python" -m aerie parity export --out "$work/7-cases" "${cases[@]/#/--case=}"

declare -A number=()
rm -f "$out"/*.safetensors
mkdir -p "$out"
for file in "$work"/*/*.safetensors; do
    kernel="$(basename "$file" | sed 's/-[0-9]*\.safetensors$//')"
    count="${number[$kernel]:-0}"
    number[$kernel]=$((count + 1))
    cp "$file" "$out/$(printf '%s-%04d.safetensors' "$kernel" "$count")"
done
du -cb "$out"/*.safetensors | tail -n 1
for backend in reference pytorch; do
    "$python" -m aerie parity run --dumps "$out" --backend "$backend"
done
