#!/bin/sh
# Rounds of the inflated pair on a GPU machine: speed, losslessness, stress, transformers beside it.
#   scripts/bench_gpu_round.sh OUT COMMIT [stages]
# Stages, comma separated: those of `aerie bench round`, in one process, and transformers.
# Needs python3 with torch, triton, numpy, safetensors, tokenizers and typer; the stage transformers
# needs that too. Every stage writes its own files, so that a later one loses nothing.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the reports}
export AERIE_COMMIT="${2:?the commit under test: a bare machine has no git}"
stages=${3:-speed,transformers,lossless,sampled,sizes,near_ties,stress}
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
status=0
own=$(echo "$stages" | tr ',' '\n' | grep -v '^transformers$' | paste -sd, -)
if [ -n "$own" ]; then
    "$python" -m aerie bench round --stage "$own" --out "$out" || status=1
fi
case ",$stages," in
*,transformers,*) "$python" scripts/bench_round_transformers.py --out "$out" || status=1 ;;
esac
exit $status
