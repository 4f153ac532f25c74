#!/bin/sh
# Parity, sync-debug and graph capture of the PyTorch kernels on a GPU machine.
#   scripts/gpu_kernels.sh [folder of the reports] [commit under test]
# Needs python3 with torch and numpy, nothing installed. Exit status 0: every kernel passes.
set -eu
cd "$(dirname "$0")/.."
out=${1:-reports}
export AERIE_COMMIT="${2:-${AERIE_COMMIT:-}}"
PYTHONPATH=src exec "${PYTHON:-python3}" scripts/gpu_kernels.py --out "$out"
