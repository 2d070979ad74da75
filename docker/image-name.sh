#!/bin/sh
# Print the name of the image that this checkout builds and starts: docker/image-name.sh [trixie|sid]
# Each checkout has its own, so that one side by side with another never starts the other's code.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd -P)
number=$(printf '%s' "$root" | cksum | cut -d' ' -f1)
echo "slurm-gpu-aware:${1:-trixie}-$number"
