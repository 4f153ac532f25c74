#!/bin/sh
# Draft vocabularies of the built-in pair: counts from the standard library, judged on held-out text.
#   scripts/draft_vocab_table.sh [folder of the reports]
set -eu
cd "$(dirname "$0")/.."
out=${1:-reports}
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH=src OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
work=build/draft-vocab
rm -rf "$work" && mkdir -p "$work/text" "$work/heldout"
"$python" - "$work" <<'PY'
"""Lay out what is counted and what is judged as plain files."""
import pathlib, shutil, sys, sysconfig

from aerie.text.heldout import read_documents

work = pathlib.Path(sys.argv[1])
library = pathlib.Path(sysconfig.get_paths()["stdlib"])
for path in sorted(library.glob("*.py"))[:160]:
    shutil.copy(path, work / "text" / path.name)
short = read_documents(1024, 32)
for number, document in enumerate(short):
    (work / "heldout" / f"{number:03d}.txt").write_text(document.text, encoding="utf-8")
print(f"{len(short)} held-out documents, {len(list((work / 'text').iterdir()))} library files")
PY
pair=src/aerie/assets/pair
sizes=512,1024,2048,4096
text=$(for file in "$work"/text/*; do printf ' --text %s' "$file"; done)
heldout=$(for file in "$work"/heldout/*; do printf ' --text %s' "$file"; done)
# shellcheck disable=SC2086  # one option per file
"$python" -m aerie draft-vocab build --model $pair/target $text --out "$work/counts.json" --sizes $sizes
# shellcheck disable=SC2086
"$python" -m aerie draft-vocab report --model $pair/target --draft $pair/head --counts "$work/counts.json" \
    $heldout --sizes $sizes --out "$out"
