#!/bin/sh
# Checks, sweeps and times tree attention on a GPU machine.
#   scripts/gpu_attention.sh [folder of the reports] [commit under test] [stages] [seconds]
# Stages, separated by commas: check, sweep, sweep64, sweep32, time. Needs python3 with torch,
# triton and numpy, nothing installed. The chosen tiles come back as attention_tiles.json: copy it
# to src/aerie/attention/triton/tiles.json to ship it. Exit status 0: every check passed.
set -eu
cd "$(dirname "$0")/.."
out=${1:-reports/raw}
export AERIE_COMMIT="${2:-${AERIE_COMMIT:-}}"
# Many processes compile at once; one thread pool each of all cores would only take turns.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
stages=${3:-check,sweep,sweep64,sweep32,time}
exec "${PYTHON:-python3}" -m scripts.gpu_attention --out "$out" \
	--stages "$stages" --seconds "${4:-25}"
