#!/bin/sh
# The first minute on a machine, with no option: writes OUT/front_door_NAME.log, a transcript.
#   scripts/front_door.sh OUT NAME COMMIT
# The cache is empty at first, so the first load measures costs and the second does not. Where torch
# sees a GPU, all of it must have run there, in bfloat16, in captured rounds, planned: else exit 1.
# Needs python3 with torch, numpy, safetensors, tokenizers, jinja2, typer and rich, on a GPU triton;
# `aerie serve` is left out, and that is said, where fastapi or uvicorn is missing.
set -eu
cd "$(dirname "$0")/.."
out=${1:?folder of the transcript}
name=${2:?what to call this machine}
export AERIE_COMMIT="${3:?the commit under test: a bare machine has no git}"
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
mkdir -p "$out"
AERIE_CACHE=$(mktemp -d)
export AERIE_CACHE
trap 'rm -rf "$AERIE_CACHE"' EXIT

timed() { # a command as a user types it, and how long it took
    echo "\$ aerie $*"
    begin=$("$python" -c 'import time; print(time.time())')
    "$python" -m aerie "$@" 2>&1 || { echo "(failed)"; failed=1; }
    "$python" -c "import time; print(f'({time.time() - $begin:.1f} s)\n')"
}

transcript() {
    echo "commit $AERIE_COMMIT, $(date -u +%FT%TZ)"
    timed --version
    timed doctor
    timed generate --max-new-tokens 64
    timed generate --max-new-tokens 64
    timed generate --max-new-tokens 64 --compare
    echo "\$ aerie serve"
    "$python" -m scripts.front_door || failed=1
}

failed=0
transcript > "$out/front_door_$name.log"
cat "$out/front_door_$name.log"
exit $failed
