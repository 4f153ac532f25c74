#!/bin/sh
# The clients of `make interop` in an environment of their own, .interop: nothing of theirs is aerie's.
#   scripts/interop/install.sh [python]
# Does nothing when the lists have not changed, else begins afresh. Some 7 GB, several minutes.
set -eu
cd "$(dirname "$0")/../.."
python=${1:-python3}
lists=scripts/interop/requirements*.txt
stamp=.interop/lists.txt
cat $lists | cmp -s - "$stamp" && exit 0
"$python" -m venv --clear .interop
echo "installing the clients into .interop (7 GB, several minutes)"
pip=".interop/bin/python -m pip install -qq --disable-pip-version-check"
$pip -r scripts/interop/requirements.txt
$pip --no-deps -r scripts/interop/requirements-alone.txt
cat $lists > "$stamp"
