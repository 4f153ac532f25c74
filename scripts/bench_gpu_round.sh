#!/bin/sh
# Rounds of the inflated pair on a GPU machine: speed, losslessness, stress, and transformers beside it.
#   scripts/bench_gpu_round.sh OUT COMMIT [stage ...]      stages: speed transformers lossless stress
# Needs python3 with torch, triton, numpy, safetensors, tokenizers and typer; the stage transformers
# needs that too. Every stage writes its own files, so that a later one loses nothing.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the reports}
export AERIE_COMMIT="${2:-${AERIE_COMMIT:-}}"
shift; [ $# -gt 0 ] && shift
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
status=0
for stage in ${*:-speed transformers lossless stress}; do
    echo "== $stage"
    case "$stage" in
    transformers) "$python" scripts/bench_round_transformers.py --out "$out" || status=1 ;;
    stress) "$python" -m aerie bench round --stage stress --context 65536 --out "$out" || status=1 ;;
    *) "$python" -m aerie bench round --stage "$stage" --out "$out" || status=1 ;;
    esac
done
exit $status
