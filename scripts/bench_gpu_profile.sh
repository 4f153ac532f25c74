#!/bin/sh
# Profile, ablation and serving scenarios of the inflated pair on a GPU machine.
#   scripts/bench_gpu_profile.sh OUT COMMIT [stages] [further options of aerie profile]
# Stages: tuning, kernels, ablation, serving. Those joined by commas share a process and its loaded
# pair; groups separated by spaces do not, so that a failure loses no other. Needs python3 with torch, triton, numpy, safetensors, tokenizers,
# typer and rich.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the reports}
export AERIE_COMMIT="${2:?the commit under test: a bare machine has no git}"
stages=${3:-tuning,kernels ablation serving}
[ $# -lt 3 ] || shift 3
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
status=0
for stage in $stages; do
    echo "stage $stage: $(date +%T)"
    "$python" -m aerie profile --stage "$stage" --out "$out" --json "$@" || status=1
done
echo "end: $(date +%T)"
exit $status
