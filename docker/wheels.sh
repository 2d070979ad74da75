#!/bin/sh
# Download the dependencies of the package for the image's Python, so that the image builds offline.
#
#   docker/wheels.sh SUITE    -> build/wheels/SUITE/*.whl (kept while the dependencies are the same)
set -eu
cd "$(dirname "$0")/.."
suite=$1
python=${PYTHON:-python3}
[ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
target=build/wheels/$suite

version=$(docker run --rm --pull=never "slurm-gpu-aware-base:$suite" \
    python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
wanted=$("$python" - <<'END'
import tomllib
with open("pyproject.toml", "rb") as stream:
    data = tomllib.load(stream)
needed = data["build-system"]["requires"] + data["project"]["dependencies"]
extras = data["project"]["optional-dependencies"]
print("\n".join([*needed, *extras["metrics"], *extras["page"], "# plots", *extras["plots"]]))
END
)
stamp=$(printf '%s\n%s\n' "$version" "$wanted" | sha256sum)
if [ "$(cat "$target/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
rm -rf "$target"
mkdir -p "$target"
# The image installs the first part only; on the foreign site the guide installs all.
printf '%s\n' "$wanted" | sed '/^# plots/,$d' >"$target/requirements.txt"
printf '%s\n' "$wanted" >"$target/all.txt"
machine=$(uname -m)
"$python" -m pip download -q --disable-pip-version-check --no-cache-dir -d "$target" \
    --python-version "$version" --only-binary=:all: --platform "manylinux_2_28_$machine" \
    --platform "manylinux2014_$machine" -r "$target/all.txt" >"$target/pip.log" 2>&1 || {
    cat "$target/pip.log" >&2
    exit 1
}
printf '%s\n' "$stamp" >"$target/stamp"
