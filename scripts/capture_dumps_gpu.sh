#!/usr/bin/env bash
# Captures dumps of the Triton kernels from a live engine on a GPU machine, on the built-in pair embedded
# into the Llama-3.1-8B geometry (bf16 weights, hidden rows of 4096, vocabulary 128,256).
#   OUT=folder AERIE_COMMIT=sha scripts/capture_dumps_gpu.sh [backend, default triton]
# Then: mkdir -p tests/data/dumps/h200 && cp $OUT/*.safetensors tests/data/dumps/h200/, and run
# tests/parity/test_dumps.py. At most 8 MB: few requests, short contexts, and of the rows that are as
# wide as the vocabulary (0.5 MB each) two at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${OUT:?the folder that receives the dumps}"
backend="${1:-triton}"
work=build/dumps-gpu
export PYTHONPATH=src
rm -rf "$work"
mkdir -p "$OUT"

capture() { # name, options
    local name="$1"
    shift
    python3 -m aerie parity capture --out "$work/$name" --geometry llama-3.1-8b --device cuda \
        --dtype bfloat16 --backend "$backend" "$@"
}

# Two requests, trees of three levels: everything but the rows that are as wide as the vocabulary.
capture 1-tree --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8 \
    --calls 1 --when first --when width-change --when batch-change --when zero-accepted \
    --when all-accepted --when finished --most-kb 400 --n-pages 24 --max-batch 2
# Trees paid for by measured cost: K3 runs.
capture 2-planner --policy planner --calls 2 --kernel calculate_work_deltas \
    --most-kb 64 --n-pages 24 --max-batch 2 --max-new-tokens 24
# A root and one draft: two rows of logits. Greedy, sampled, and by coins.
capture 3-greedy "def add(a, b):" --speculative-num-steps 1 --speculative-num-draft-tokens 2 \
    --speculative-eagle-topk 1 --calls 1 --kernel sample_target_tokens \
    --most-kb 1200 --n-pages 8 --max-new-tokens 6
capture 4-sampled "def add(a, b):" --speculative-num-steps 1 --speculative-num-draft-tokens 2 \
    --speculative-eagle-topk 1 --temperature 0.8 --top-k 20 --top-p 0.9 --seed 7 \
    --calls 1 --kernel sample_target_tokens --most-kb 1200 --n-pages 8 --max-new-tokens 6
capture 5-coins "def add(a, b):" --speculative-num-steps 1 --speculative-num-draft-tokens 2 \
    --speculative-eagle-topk 1 --rule coins --temperature 1.0 --seed 7 --calls 1 \
    --kernel convert_logits_to_probas --kernel draft_tree_reject_sample \
    --most-kb 2200 --n-pages 8 --max-new-tokens 6

declare -A number=()
for file in "$work"/*/*.safetensors; do
    kernel="$(basename "$file" | sed 's/-[0-9]*\.safetensors$//')"
    count="${number[$kernel]:-0}"
    number[$kernel]=$((count + 1))
    cp "$file" "$OUT/$(printf '%s-%04d.safetensors' "$kernel" "$count")"
done
size="$(cat "$OUT"/*.safetensors | wc -c)"
echo "$(ls "$OUT"/*.safetensors | wc -l) dumps, $size bytes"
[ "$size" -le 8000000 ] || { echo "more than 8 MB: keep fewer calls" >&2; exit 1; }
# The machine that wrote them checks them first, against the definition and itself.
python3 -m aerie parity run --dumps "$OUT" --backend reference
python3 -m aerie parity run --dumps "$OUT" --backend "$backend" --device cuda
