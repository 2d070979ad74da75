#!/bin/sh
# Pack Debian's systemd for a test: build/systemd/SUITE.tar.
#
#   docker/systemd.sh [trixie|sid]
#
# It is not part of the image: only the test of the units boots a container with it.
set -eu
cd "$(dirname "$0")/.."
suite=${1:-trixie}
target=build/systemd/$suite.tar
[ ! -e "$target" ] || exit 0

mkdir -p build/systemd
# The mirror that this host uses for Debian itself, as in base-image.sh.
# shellcheck disable=SC2016  # $(...) in the format are for apt
mirror=$(apt-get indextargets --format '$(SITE) $(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$3 == "Debian" { print $2; exit }')
mirror=${mirror%/}
mmdebstrap --quiet --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --variant=extract \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Languages "none"' --format=tar \
    --include=systemd-sysv,mount "$suite" "$target.new" ${mirror:+"$mirror"}
mv "$target.new" "$target"
