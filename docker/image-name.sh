#!/bin/sh
# Print the name of the image that this checkout builds and starts: docker/image-name.sh [trixie|sid] [own|foreign]
# Each checkout has its own, so that it never starts another checkout's code.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd -P)
number=$(printf '%s' "$root" | cksum | cut -d' ' -f1)
case ${2:-own} in
foreign) echo "slurm-gpu-aware-site:${1:-trixie}-$number" ;;
*) echo "slurm-gpu-aware:${1:-trixie}-$number" ;;
esac
