#!/bin/sh
# Fault drills on this machine: some minutes, two cores. Writes reports/drills.md and reports/raw/drills.jsonl.
#   scripts/drills.sh
# Needs an installed aerie with the extra `serve`; with the extra `ray` a replica is lost, too.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m scripts.drills
