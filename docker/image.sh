#!/bin/sh
# Build the image of the container cluster: docker/image.sh [trixie|sid]
# A change of our own source rebuilds the last layers only (seconds).
set -eu
cd "$(dirname "$0")/.."
suite=${1:-trixie}

docker/base-image.sh "$suite"
docker/wheels.sh "$suite"

# What is laid over the image's root: the fake GPUs (library and machines).
rm -rf build/image
mkdir -p build/image/usr/local/lib build/image/etc/gpu-aware-fake
if [ -f docker/fake_nvml/Makefile ]; then
    make -s -C docker/fake_nvml
    install -m 755 docker/fake_nvml/libnvidia-ml.so.1 build/image/usr/local/lib/
    cp docker/fake_nvml/machines/*.json build/image/etc/gpu-aware-fake/
fi

# Without buildx, the classic builder; it says so at length.
docker build -q --build-arg "SUITE=$suite" -t "slurm-gpu-aware:$suite" -f docker/Dockerfile . \
    2>build/docker-build.log >/dev/null || {
    cat build/docker-build.log >&2
    exit 1
}
