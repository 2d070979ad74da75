#!/bin/sh
# Remove the images that this checkout built; those of others, and the base, which all share, stay.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v docker >/dev/null || exit 0

id() {
    docker images -q "$1" 2>/dev/null || true
}

for suite in trixie sid; do
    own=$("$here/image-name.sh" "$suite")
    image=$(id "$own")
    [ -n "$image" ] || continue
    # By name: by number, an equal image of another checkout would go with it.
    docker rmi -f "$own"
    # The name of the latest one, should that be this.
    [ "$(id "slurm-gpu-aware:$suite")" != "$image" ] || docker rmi -f "slurm-gpu-aware:$suite"
done
