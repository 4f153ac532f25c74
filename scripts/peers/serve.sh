#!/usr/bin/env bash
# vLLM and aerie as HTTP servers on one machine, both in memory, loaded in turns by one client.
#
#   scripts/peers/serve.sh OUT_DIR TARGET HEAD LANE ...
#
# LANE: vllm:plain, vllm:chainK, aerie:planner (its default), aerie:plain, aerie:chainK. Servers are
# started one after the other; then, TURNS times, each gets the loads of the contract. OUT_DIR/rows.jsonl
# receives a row of the seconds until /health answers, and one for each load; OUT_DIR has the logs, too.
#
# Settings, from the environment:
#   TURNS=3  CONTRACT=evidence/contracts/peers/serve.toml
#   CLIENT=aerie   `aerie bench peer`, or CLIENT=vllm: `vllm bench serve`
#   SHARE=0.3      of the GPU's memory for a vLLM server;  PAGES=8192: KV pages of 16 positions of aerie's
#   LONGEST=33792  REQUESTS=64  READY_SECONDS=400  PORT=8123  PYTHON=python3
#   DEVICE=cuda  DTYPE=bfloat16  (aerie: also cpu float32)
set -euo pipefail

[ $# -ge 4 ] || { sed -n '4p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
target=$2 head=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} port=${PORT:-8123} turns=${TURNS:-3} client=${CLIENT:-aerie}
contract=${CONTRACT:-evidence/contracts/peers/serve.toml} ready_seconds=${READY_SECONDS:-400}
share=${SHARE:-0.3} pages=${PAGES:-8192} longest=${LONGEST:-33792} requests=${REQUESTS:-64}
device=${DEVICE:-cuda} dtype=${DTYPE:-bfloat16}
run=$(date -u +%Y-%m-%dT%H:%M:%S)
rows=$out/rows.jsonl
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING
export VLLM_USE_FLASHINFER_SAMPLER=0 # flashinfer is not in the bundle

servers=()
stop_servers() {
  [ ${#servers[@]} -gt 0 ] || return 0
  kill "${servers[@]}" 2> /dev/null || true
  wait "${servers[@]}" 2> /dev/null || true
}
trap stop_servers EXIT

start_server() { # lane, port
  local engine=${1%%:*} policy=${1#*:} began now phases command
  local chain="{\"method\":\"eagle3\",\"model\":\"$head\",\"num_speculative_tokens\":${policy#chain}}"
  case $engine in
    vllm) command=("$python" -m vllm.entrypoints.cli.main serve "$target" --dtype "$dtype"
      --served-model-name m --port "$2" --max-model-len "$longest" --max-num-seqs "$requests"
      --gpu-memory-utilization "$share") ;;
    aerie) command=("$python" -m aerie serve --model "$target" --device "$device" --dtype "$dtype"
      --served-name m --port "$2" --max-model-len "$longest" --max-batch "$requests"
      --n-pages "$pages" --metrics-compat vllm) ;;
    *) echo "unknown engine in $1" >&2; return 1 ;;
  esac
  case $engine:$policy in
    *:chain[0-9]*) command+=(--speculative-config "$chain") ;;
    aerie:planner) command+=(--draft "$head") ;;
    aerie:plain) command+=(--method none) ;;
    vllm:plain) ;;
    *) echo "unknown policy in $1" >&2; return 1 ;;
  esac
  "${command[@]}" > "$out/$engine-$policy.server.log" 2>&1 &
  servers+=($!)
  began=$(date +%s%N)
  while ! curl -sf -o /dev/null "http://127.0.0.1:$2/health"; do
    kill -0 "${servers[-1]}" 2> /dev/null || { echo "$1 ended before it was ready: see $out" >&2; return 1; }
    [ $(($(date +%s%N) - began)) -lt $((ready_seconds * 1000000000)) ] ||
      { echo "$1 not ready after $ready_seconds s" >&2; return 1; }
    sleep 0.2
  done
  now=$((($(date +%s%N) - began) / 1000000))
  phases=$(curl -sf "http://127.0.0.1:$2/metrics" |
    sed -n 's/^aerie_load_seconds{phase="\(.*\)"} \(.*\)/"\1": \2/p' | paste -sd, -)
  printf '{"kind": "ready", "lane": "%s %s", "run": "%s", "seconds": %d.%03d, "phases": {%s}, "sampling": {"temperature": 0.0}}\n' \
    "$engine" "$policy" "$run" $((now / 1000)) $((now % 1000)) "$phases" | tee -a "$rows"
}

load_server() { # lane, port, turn
  local own=(--url "http://127.0.0.1:$2" --contract "$contract" --name "${1%%:*} ${1#*:}"
    --run "$run" --turn "$3" --out "$rows")
  case $client in
    aerie) "$python" -m aerie bench peer "${own[@]}" > "$out/client.log" || cat "$out/client.log" ;;
    vllm) "$python" "$here/vllm_client.py" "${own[@]}" --tokenizer "$target" --work "$out/vllm" ||
      echo "$1, turn $3: not all loads" >&2 ;;
    *) echo "unknown client $client" >&2; return 1 ;;
  esac
}

lanes=("$@")
for index in "${!lanes[@]}"; do start_server "${lanes[index]}" $((port + index)); done
for ((turn = 0; turn < turns; turn++)); do
  for ((place = 0; place < ${#lanes[@]}; place++)); do
    index=$(((turn + place) % ${#lanes[@]})) # the first of a turn is another one each time
    load_server "${lanes[index]}" $((port + index)) "$turn"
  done
done
"$python" "$here/offline.py" table "$rows" | tee "$out/tables.md"
