#!/bin/sh
# Build the image of the container cluster, or of the foreign site:
#
#   docker/image.sh [trixie|sid] [own|foreign]
#
# A change of our own source rebuilds the last layers only (seconds).
set -eu
cd "$(dirname "$0")/.."
suite=${1:-trixie}
kind=${2:-own}

# One build at a time: builds share the folder build/.
mkdir -p build
exec 9>build/image.lock
flock 9

docker/base-image.sh "$suite"
docker/wheels.sh "$suite"

# What is laid over the image's root: the fake GPUs, two on each of a node's two sockets. On n3 NVML
# counts them in another order than Slurm, as happens on real machines.
rm -rf build/image
mkdir -p build/image/etc/gpu-aware-fake build/fake_nvml
make -s -C docker/fake_nvml OUT="$PWD/build/fake_nvml" DESTDIR="$PWD/build/image" install
mkdir -p build/image/usr/local/lib/fake_gpus
cp -r docker/fake_gpus/fake_gpus* build/image/usr/local/lib/fake_gpus
machine() { # KIND NODE SEED [ORDER]
    "${PYTHON:-python3}" docker/fake_nvml/machines.py write --kind "$1" --node "$2" --seed "$3" \
        --cpus 0-7 --cpus 8-15 --nvml-order "${4:-0,1,2,3}" \
        --out "build/image/etc/gpu-aware-fake/$2.json"
}
machine two-socket-4 n1 1
machine two-socket-4 n2 2
machine two-socket-4 n3 3 2,0,3,1
machine two-socket-4 n4 4
# The foreign site
machine hgx-a100-4 a1 1
machine hgx-a100-4 a2 2
machine two-socket-4 v1 3
machine two-socket-4 v2 4

# docker/cluster starts the first name, this checkout's; the second is the latest image's, for manual
# use. Without buildx, the classic builder; its long warning is not shown.
case $kind in
own) set -- -t "slurm-gpu-aware:$suite" -f docker/Dockerfile ;;
foreign) set -- -t "slurm-gpu-aware-site:$suite" -f docker/site/Dockerfile ;;
esac
docker build -q --build-arg "SUITE=$suite" -t "$(docker/image-name.sh "$suite" "$kind")" \
    "$@" . 2>build/docker-build.log >/dev/null || {
    tail -n 30 build/docker-build.log >&2
    exit 1
}
