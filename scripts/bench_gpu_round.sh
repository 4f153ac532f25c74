#!/bin/sh
# Rounds of the inflated pair on a GPU machine: costs, speed, losslessness, stress, transformers.
#   scripts/bench_gpu_round.sh OUT COMMIT [stages]
# Stages, comma separated: `costs` (aerie tune costs, then planned from), those of
# `aerie bench round`, `transformers`, `tests` (tests/gpu) and `sanitize` (compute-sanitizer). What
# is timed runs first and alone; what compares texts runs side by side after it. Every stage writes
# its own files, and `costs` every point, so that a run that is cut off loses little.
# Needs python3 with torch, triton, numpy, safetensors, tokenizers and typer; the stages transformers
# and tests need that, and pytest, too. Compiling Triton takes about 45 s on a fresh machine: a
# folder of compiled kernels in TRITON_CACHE_DIR saves most of it.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the reports}
export AERIE_COMMIT="${2:?the commit under test: a bare machine has no git}"
stages=${3:-costs,speed,options,exact,transformers,lossless,sampled,sizes,near_ties,stress,tests}
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
table="$out/costs_h200.json"
status=0
mkdir -p "$out/raw"
echo "commit $AERIE_COMMIT, stages $stages, $(date -u +%FT%TZ)"

has() { case ",$stages," in *",$1,"*) return 0 ;; esac; return 1; }
# Those of the named stages that were asked for, comma separated.
among() {
    found=""
    for name in "$@"; do
        if has "$name"; then found="$found${found:+,}$name"; fi
    done
    echo "$found"
}
# Stages of `aerie bench round` in one process, planned from the table if there is one.
rounds() {
    set -- "$(among "$@")"
    [ -n "$1" ] || return 0
    if [ -f "$table" ]; then
        "$python" -m aerie bench round --stage "$1" --out "$out" --costs "$table"
    else
        "$python" -m aerie bench round --stage "$1" --out "$out"
    fi
}

if has costs; then
    "$python" -m aerie tune costs --device cuda --geometry llama-3.1-8b --dtype bfloat16 \
        --repeats 4 --out "$table" || status=1
fi
rounds speed options exact || status=1
if has transformers; then "$python" -m scripts.bench_round_transformers --out "$out" || status=1; fi
rounds lossless sampled sizes > "$out/raw/round_texts.log" 2>&1 &
texts=$!
rounds near_ties stress > "$out/raw/round_long.log" 2>&1 &
long=$!
if has tests; then "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu || status=1; fi
# Nothing here is timed, so the parts run side by side; each has a log of its own until all ended.
if has sanitize; then
    parts="kernels attention plain tree planner ngram"
    for tool in ${SANITIZE_TOOLS:-memcheck racecheck}; do
        log="$out/raw/triton_${tool}_h200.log"
        checks=""
        for part in $parts; do
            (PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "${SANITIZE_SECONDS:-180}" \
                compute-sanitizer --tool "$tool" "$python" -X faulthandler \
                -m scripts.gpu_sanitize "$part" ||
                echo "$part: the checker ended with $?") > "$log.$part" 2>&1 &
            checks="$checks $!"
        done
        # shellcheck disable=SC2086
        wait $checks
        (cd "$out/raw" && for part in $parts; do cat "${log##*/}.$part"; rm "${log##*/}.$part"; done) > "$log"
        if grep "SUMMARY\|ended with" "$log" | grep -v " 0 errors\|(0 errors"; then status=1; fi
        echo "$tool: $(grep -c "no error" "$log") of 6 parts ended well"
    done
fi
wait $texts || status=1
wait $long || status=1
tail -n 1 "$out/raw/round_texts.log" "$out/raw/round_long.log"
exit $status
