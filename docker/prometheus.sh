#!/bin/sh
# Unpack Debian's Prometheus for tests: build/prometheus/SUITE/{prometheus,promtool}.
#
#   docker/prometheus.sh [trixie|sid]
#
# It is not part of the image: only the test of the metrics copies the programs into a container.
set -eu
cd "$(dirname "$0")/.."
suite=${1:-trixie}
target=build/prometheus/$suite
[ ! -x "$target/promtool" ] || exit 0

mkdir -p "$target"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP INT TERM
# The mirror that this host uses for Debian itself, as in base-image.sh.
# shellcheck disable=SC2016  # $(...) in the format are for apt
mirror=$(apt-get indextargets --format '$(SITE) $(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$3 == "Debian" { print $2; exit }')
mirror=${mirror%/}
mmdebstrap --quiet --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --variant=extract \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Languages "none"' \
    --include=prometheus "$suite" "$work/root" ${mirror:+"$mirror"}
for name in prometheus promtool; do
    cp "$work/root/usr/bin/$name" "$target/$name.new"
    mv "$target/$name.new" "$target/$name"
done
