#!/bin/sh
# What HTTP costs on this machine: starts a server, measures it against the engine, ends it.
#   scripts/bench_server.sh [folder of the reports] [port]
# Needs an installed aerie with the extra `serve`. One thread each: this is about the server.
set -eu
cd "$(dirname "$0")/.."
out=${1:-reports/raw}
port=${2:-8799}
python=${PYTHON:-python3}
export OMP_NUM_THREADS=1
"$python" -m aerie serve --port "$port" --device cpu --speculative-eagle-topk 1 --speculative-num-steps 5 \
    --speculative-num-draft-tokens 6 --log-level warning &
server=$!
trap 'kill $server 2> /dev/null; wait $server 2> /dev/null || true' EXIT
"$python" -m aerie bench serve --url "http://127.0.0.1:$port" --wait 120 --out "$out"
