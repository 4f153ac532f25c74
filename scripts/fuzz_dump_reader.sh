#!/usr/bin/env bash
# Fuzzes the C++ reader of dumps and writes reports/raw/dump_fuzz.log.
#   scripts/fuzz_dump_reader.sh [inputs, default 100000]
# Mutations of the dumps in tests/data/dumps below 16 KB, splices, and random bytes; the same inputs on
# every machine. Any read out of bounds or undefined operation ends the run with a report.
set -euo pipefail
cd "$(dirname "$0")/.."
inputs="${1:-100000}"
bench=src/aerie/kernels/hls/tb
mkdir -p build reports
"${CXX:-g++}" -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined \
    -fno-sanitize-recover=all "$bench/dump_fuzz.cpp" -o build/dump_fuzz
mapfile -t seeds < <(find tests/data/dumps -name '*.safetensors' -size -16k | LC_ALL=C sort)
{
    echo "commit ${AERIE_COMMIT:-$(git rev-parse HEAD)}"
    echo "reader sha256 $(cat "$bench"/dump*.hpp "$bench"/dump_fuzz.cpp | sha256sum | cut -c 1-64)"
    echo "compiler $("${CXX:-g++}" --version | head -n 1)"
    echo "flags -fsanitize=address,undefined -fno-sanitize-recover=all"
    build/dump_fuzz "$inputs" 2026 "${seeds[@]}"
} | tee reports/raw/dump_fuzz.log
