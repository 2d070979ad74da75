#!/bin/sh
# Build the image of the container cluster: docker/image.sh [trixie|sid]
# A change of our own source rebuilds the last layers only (seconds).
set -eu
cd "$(dirname "$0")/.."
suite=${1:-trixie}

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
for number in 1 2 3 4; do
    order=0,1,2,3
    [ "$number" -ne 3 ] || order=2,0,3,1
    "${PYTHON:-python3}" docker/fake_nvml/machines.py write --kind two-socket-4 --node "n$number" \
        --seed "$number" --cpus 0-7 --cpus 8-15 --nvml-order "$order" \
        --out "build/image/etc/gpu-aware-fake/n$number.json"
done

# The first name is this checkout's, which docker/cluster starts; the second is the latest one's, for
# people. Without buildx, the classic builder; it says so at length.
docker build -q --build-arg "SUITE=$suite" -t "$(docker/image-name.sh "$suite")" \
    -t "slurm-gpu-aware:$suite" -f docker/Dockerfile . 2>build/docker-build.log >/dev/null || {
    tail -n 30 build/docker-build.log >&2
    exit 1
}
