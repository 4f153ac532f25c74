#!/bin/sh
# Builds the image of the Containerfile, runs it and asks it for a text; says so in reports/raw/container.log.
#   scripts/container.sh [BASE]
# BASE is an image to build on (default: the Containerfile's), or `debian`: one made here of Debian's
# packages, for machines that reach no registry of images. Needs buildah and, for `debian`, debootstrap;
# no daemon: it builds and runs in a chroot, as root.
#
# From the environment: BUILD_OPTIONS, more options of `buildah bud` (a pip configuration and the
# folders it names, say: -v /etc/pip.conf:/etc/pip.conf:ro), and PORT=8000, which must be free.
set -eu
cd "$(dirname "$0")/.."
base=${1:-} port=${PORT:-8000} key=a-key-of-the-container
store="buildah --storage-driver ${STORAGE_DRIVER:-vfs}"
work=$(mktemp -d) container=
finish() {
    [ -z "$container" ] || $store rm "$container" > /dev/null
    rm -rf "$work"
}
trap finish EXIT

if [ "$base" = debian ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm \
        "$work/root" ${DEBIAN:-} > "$work/debootstrap.log" || { tail "$work/debootstrap.log"; exit 1; }
    tar -C "$work/root" --exclude=./dev --exclude=./var/cache/apt/archives -cf "$work/root.tar" .
    printf 'FROM scratch\nADD root.tar /\n' > "$work/Containerfile"
    base=localhost/debian-python
    $store bud --isolation chroot -q -t "$base" -f "$work/Containerfile" "$work" > /dev/null
fi

# What is committed, as whoever clones it has it.
commit=$(git rev-parse HEAD)
mkdir "$work/tree"
git archive HEAD | tar -x -C "$work/tree"
began=$(date +%s)
# shellcheck disable=SC2086
$store bud --isolation chroot --network host ${base:+--build-arg BASE=$base} ${BUILD_OPTIONS:-} \
    -t aerie -f "$work/tree/Containerfile" "$work/tree" > "$work/build.log" 2>&1 \
    || { tail -n 20 "$work/build.log"; exit 1; }
built=$(($(date +%s) - began))

# The image's own entry point and user; a chroot is not told them by `buildah run`.
container=$($store from aerie)
image() { $store inspect --type container --format "{{$1}}" "$container"; }
entry=$(image .OCIv1.Config.Entrypoint | tr -d '[]')
began=$(date +%s)
# shellcheck disable=SC2086
$store run --isolation chroot --network host -e AERIE_API_KEY=$key "$container" -- \
    $entry --port "$port" > "$work/serve.log" 2>&1 &
until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do
    [ $(($(date +%s) - began)) -lt 120 ] && kill -0 $! || { cat "$work/serve.log"; exit 1; }
    sleep 1
done
ready=$(($(date +%s) - began))
ask() {
    curl -s -w '\nstatus %{http_code}\n' -H 'content-type: application/json' "$@" \
        "http://127.0.0.1:$port/v1/completions" \
        -d '{"prompt": "def f(x):\n", "max_tokens": 16, "temperature": 0, "seed": 1}'
}
{
    echo "commit $commit; buildah $(buildah --version | cut -d' ' -f3), base ${base:-of the Containerfile}"
    echo "built in $built s, as user $(image .OCIv1.Config.User): $entry"
    echo "/health answered 200 after $ready s"
    echo "without the key: $(ask | tail -n 1)"
    echo "with it: $(ask -H "authorization: Bearer $key")"
} > reports/raw/container.log
pkill -TERM -f "[/]venv/bin/aerie serve --host 0.0.0.0 --port $port"
wait $! || true
cat reports/raw/container.log
grep -q '^without the key: status 401$' reports/raw/container.log
grep -q '"completion_tokens":16' reports/raw/container.log
