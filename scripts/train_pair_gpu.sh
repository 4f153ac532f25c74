#!/usr/bin/env bash
# Trains the built-in pair on a GPU machine, in calls of at most ten minutes:
#   OUT=folder scripts/train_pair_gpu.sh 1 [seconds of target training, default 380]
#   OUT=folder scripts/train_pair_gpu.sh 2 [seconds of head training, default 360]
#   OUT=folder scripts/train_pair_gpu.sh 3 [seconds, default 360; 0 only measures]
# Stage 1 writes the target, its tokenizer, the held-out prompts and the corpus record. Their place
# in the repository is src/aerie/assets (unpack small.tar.gz there; the weights go to pair/target).
# Stage 2 reads the target from there and writes the head and the acceptance tables. Stage 3 goes on
# from the shipped head.
set -euo pipefail
cd "$(dirname "$0")/.."
stage="${1:?stage 1, 2 or 3}"
: "${OUT:?the folder that receives the files}"
export PYTHONPATH=src PYTHONUNBUFFERED=1
work=build/pair
mkdir -p "$OUT"

pack() { # whatever there is goes back, also after a failure
    local status=$?
    [ -d "$work" ] || exit "$status"
    rm -rf build/packed && mkdir -p build/packed/pair
    for part in target head; do
        if [ -d "$work/$part" ]; then
            cp -r "$work/$part" build/packed/pair/
            find "build/packed/pair/$part" -name '*.safetensors' | while read -r file; do
                mv "$file" "$OUT/$part-$(basename "$file")"
            done
        fi
    done
    [ -d "$work/heldout" ] && cp -r "$work/heldout" build/packed/
    cp "$work"/*.json "$work"/*.csv build/packed/pair/ 2>/dev/null || true
    tar -czf "$OUT/small.tar.gz" -C build/packed .
    ls -l "$OUT"
    exit "$status"
}
trap pack EXIT

case "$stage" in
1)
    rm -rf "$work"
    python3 -m aerie train target --out "$work" --seconds "${2:-380}" --wall 540 --device cuda 2>&1 |
        tee "$OUT/stage1.log"
    ;;
2)
    rm -rf "$work/head" "$work/target"
    python3 -m aerie train head --out "$work" --seconds "${2:-360}" --wall 560 --device cuda 2>&1 |
        tee "$OUT/stage2.log"
    ;;
3)
    rm -rf "$work"
    python3 -m aerie train head --resume --out "$work" --seconds "${2:-360}" --wall 570 \
        --device cuda 2>&1 | tee "$OUT/stage3.log"
    ;;
*)
    echo "stage must be 1, 2 or 3, got $stage" >&2
    exit 2
    ;;
esac
