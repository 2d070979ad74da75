#!/bin/sh
# Remove the images that this checkout built; those of other checkouts and the shared base stay.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v docker >/dev/null || exit 0

id() {
    docker images -q "$1" 2>/dev/null || true
}

for kind in own foreign; do for suite in trixie sid; do
    own=$("$here/image-name.sh" "$suite" "$kind")
    image=$(id "$own")
    [ -n "$image" ] || continue
    # By name: removal by number would also remove an equal image of another checkout.
    docker rmi -f "$own"
    # The name of the latest one, should that be this.
    latest=${own%-*}
    [ "$(id "$latest")" != "$image" ] || docker rmi -f "$latest"
done; done
