#!/bin/sh
# Tree kernels and products on a GPU machine: parity with graph capture, tuning, times in graphs.
#   scripts/gpu_kernels.sh [folder of the reports] [commit under test] [seconds of tuning] [stages]
# Stages are some of parity,gemm,times. Needs python3 with torch, triton and numpy, nothing
# installed. Exit status 0: every kernel passes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-reports/raw}
export AERIE_COMMIT="${2:-${AERIE_COMMIT:-}}"
exec "${PYTHON:-python3}" -m scripts.gpu_kernels \
    --out "$out" --seconds "${3:-40}" --stages "${4:-parity,gemm,times}"
