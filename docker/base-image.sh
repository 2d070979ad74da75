#!/bin/sh
# Make the base image of the container cluster: Debian with Slurm, munge and MariaDB.
#
#   docker/base-image.sh [trixie|sid]     (trixie: Slurm 24.11, sid: Slurm 26.05)
#
# The image comes straight from Debian's packages (mmdebstrap, docker import), so no image registry
# is needed. It is made once: if it exists, nothing happens. GPU_AWARE_REBUILD=1 makes it again.
# shellcheck disable=SC2016  # $1 in the hooks and $(...) in the format are for mmdebstrap and apt
set -eu

suite=${1:-trixie}
case $suite in
trixie | sid) ;;
*)
    echo "base-image.sh: unknown suite '$suite'; known: sid, trixie" >&2
    exit 2
    ;;
esac
# A changed recipe makes a new image.
recipe=$(sha256sum <"$0" | cut -c1-12)
image=slurm-gpu-aware-base:$suite
label=gpu-aware.recipe=$recipe

if [ -z "${GPU_AWARE_REBUILD:-}" ] &&
    [ -n "$(docker images -q --filter "reference=$image" --filter "label=$label")" ]; then
    exit 0
fi

# The mirror that this host uses for Debian itself; empty lets mmdebstrap take Debian's default.
mirror=$(apt-get indextargets --format '$(SITE) $(REPO_URI) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$3 == "Debian" { print $2; exit }')
mirror=${mirror%/}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP INT TERM

packages=slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin
packages=$packages,munge,mariadb-server,systemd-standalone-sysusers,adduser
packages=$packages,python3-minimal,python3-venv,lua5.1,procps,passwd,iproute2,elfutils
# The foreign site (docker/site) copies its files from host to host.
packages=$packages,openssh-server,openssh-client,rsync
# The client is compiled when the package is installed, as on a site's own hosts.
packages=$packages,gcc,libc6-dev,libslurm-dev,python3-dev

set -- --variant=essential --format=tar --components=main --include="$packages" \
    --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt=force-unsafe-io --dpkgopt=force-confdef \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/mariadb/mariadb-test/*'
# Debian starts a fresh database with a 96 MB log; the cluster needs little.
set -- "$@" --essential-hook='mkdir -p "$1/etc/mysql/mariadb.conf.d"' \
    --essential-hook='printf "[mysqld]\ninnodb_log_file_size=8M\n" >"$1/etc/mysql/mariadb.conf.d/90-small.cnf"' \
    --customize-hook='rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists "$1"/var/log/*.log'
if [ "$suite" = sid ]; then
    # slurmdbd 26.05 stops at start with sid's libmariadb3; the stable suite's library is laid aside
    # for slurmdbd alone.
    mmdebstrap --quiet --keyring="$keyring" --variant=extract --include=libmariadb3 trixie \
        "$work/stable" ${mirror:+"$mirror"}
    find "$work/stable/usr/lib" -name libmariadb.so.3 -exec cp -L {} "$work/" \;
    set -- "$@" --customize-hook='mkdir -p "$1/opt/libmariadb"' \
        --customize-hook="copy-in $work/libmariadb.so.3 /opt/libmariadb"
fi

previous=$(docker images -q "$image")
echo "Making $image from Debian packages; this takes a minute or two." >&2
mmdebstrap --quiet --keyring="$keyring" "$@" "$suite" "$work/root.tar" ${mirror:+"$mirror"}
docker import --change "LABEL $label" "$work/root.tar" "$image" >/dev/null
[ -z "$previous" ] || docker rmi "$previous" >/dev/null 2>&1 || true
