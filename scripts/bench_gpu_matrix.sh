#!/bin/sh
# The contract on a GPU machine: gates, baseline matrix, planner matrix and the checks beside them.
#   scripts/bench_gpu_matrix.sh OUT COMMIT [what] [scenarios]
# What, comma separated, measured in this order by one process: micro, full, repeats, tail, slots,
# acceptance, matrix (the named scenarios of evidence/contracts/h200.toml; empty: all), planner (all
# of evidence/contracts/h200_planner.toml).
# Needs python3 with torch, triton, numpy, safetensors, tokenizers, typer and rich. Raw rows are
# appended to OUT as they are measured, so that a call cut short loses nothing; points finished for
# the same sources and contract are skipped. Full gates start only after three micro passes.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the reports}
export AERIE_COMMIT="${2:?the commit under test: a bare machine has no git}"
what=${3:-micro,full,repeats,tail,slots,acceptance,matrix,planner}
scenarios=${4:-}
contract=${CONTRACT:-evidence/contracts/h200.toml}
planner=${PLANNER_CONTRACT:-evidence/contracts/h200_planner.toml}
export PYTHONPATH=src PYTHONUNBUFFERED=1
mkdir -p "$out"
# Rows go on from those of the repository, passes are counted on, and a speed counts for proven
# kernels only: the gates look for the matrix beside their rows.
for name in h200_baseline_raw.csv.xz gates_micro.json p0_parity_matrix.json; do
    if [ -f "reports/$name" ] && [ ! -f "$out/$name" ]; then cp "reports/$name" "$out/"; fi
done
own=$(echo "$what" | tr ',' '\n' | grep -v '^planner$' | paste -sd, -)
case ",$what," in *,planner,*) then="--then $planner" ;; *) then="" ;; esac
# shellcheck disable=SC2086
exec "${PYTHON:-python3}" -m aerie bench gpu --contract "$contract" --out "$out" --what "$own" \
    --points "$scenarios" --gates "${GATES:-evidence/gates}" $then
