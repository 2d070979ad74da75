#!/bin/sh
# Make sure that the container cluster can run here. As root on Debian, what is missing is installed
# and dockerd is started; otherwise one sentence says what is missing.
set -eu

running() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need docker docker.io
# A client may stand alone, for a daemon elsewhere.
running || need dockerd docker.io
need mmdebstrap mmdebstrap
need make make
need gcc gcc
need tar tar
[ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
if ! docker compose version >/dev/null 2>&1; then need docker-compose docker-compose; fi

if [ -z "$missing" ] && running; then
    exit 0
fi

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    if [ -n "$missing" ]; then
        echo "The container cluster needs these Debian packages:$missing; install them, or run this as root on Debian." >&2
    else
        echo "The container cluster needs a Docker daemon that this user may use; start it, or join the group docker." >&2
    fi
    exit 1
fi

if [ -n "$missing" ]; then
    echo "Installing:$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p build
    {
        apt-get update
        # Newer Debian has the client in a package of its own.
        case $missing in
        *docker.io*) ! apt-cache show docker-cli >/dev/null 2>&1 || missing="$missing docker-cli" ;;
        esac
        # shellcheck disable=SC2086  # a list of names
        apt-get install -y --no-install-recommends $missing iptables
    } >build/apt.log 2>&1 || {
        tail -n 20 build/apt.log >&2
        exit 1
    }
fi

wait_for_docker() {
    tries=$1
    while ! running; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.5
    done
}

if ! running; then
    if [ -d /run/systemd/system ]; then
        systemctl start docker || true
    elif ! wait_for_docker 6; then
        # No systemd: by hand. On a bare machine the cgroup controllers may not be mounted yet.
        if ! grep -q ' /sys/fs/cgroup' /proc/mounts; then
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
        fi
        rm -f /var/run/docker.pid
        setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
    fi
    if ! wait_for_docker 120 && [ ! -d /run/systemd/system ]; then
        # A file system on which overlayfs does not work
        pid=$(cat /var/run/docker.pid 2>/dev/null || true)
        [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
        sleep 2
        rm -f /var/run/docker.pid
        setsid dockerd --storage-driver=vfs >>/var/log/dockerd.log 2>&1 </dev/null &
        wait_for_docker 120 || true
    fi
fi
if ! running; then
    echo "dockerd does not start; its log is /var/log/dockerd.log (or: journalctl -u docker)." >&2
    tail -n 5 /var/log/dockerd.log >&2 2>/dev/null || true
    exit 1
fi
