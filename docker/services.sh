#!/bin/bash
# What runs in a container of the cluster, each service restarted when it ends.
#
#   services run ctl|node            the container's entry point
#   services down NAME [SIGNAL]      stop a service and keep it down (default TERM)
#   services up NAME                 let it run again
#   services pid NAME                print its process id
#   services mode plain|aware        without us (no filter, no selector) or with us
set -u
state=/run/services
logs=/var/log/cluster
etc=/opt/cluster/etc
ours=/opt/slurm-gpu-aware/share/slurm-gpu-aware

say() { echo "$(date +%T) $*" >>"$logs/services.log"; }

# Keep one service running: start, wait for its end, start again, unless it was told to stay down.
# One that ends by itself is started again more slowly than one that was killed.
keep() {
    local name=$1 status
    shift
    while :; do
        while [ -e "$state/$name.down" ]; do sleep 0.1; done
        "$@" >>"$logs/$name.log" 2>&1 &
        echo $! >"$state/$name.pid"
        say "$name started, pid $!"
        wait $!
        status=$?
        say "$name ended, status $status"
        rm -f "$state/$name.pid"
        if [ $status -gt 128 ]; then sleep 0.5; else sleep 2; fi
    done
}

as_user() {
    local user=$1
    shift
    exec setpriv --reuid "$user" --regid "$user" --init-groups env HOME=/nonexistent USER="$user" "$@"
}

# $1 tries of 0.1 s until the command succeeds
await() {
    local tries=$1
    shift
    for _ in $(seq "$tries"); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    say "waited in vain: $*"
    return 1
}

listening() { (exec 3<>"/dev/tcp/$1/$2"); }

munge() {
    mkdir -p /run/munge && chown munge: /run/munge
    rm -f /run/munge/munge.socket.2
    keep munged setpriv --reuid munge --regid munge --init-groups munged -F --force &
    await 100 test -S /run/munge/munge.socket.2
}

database() {
    mkdir -p /run/mysqld && chown mysql: /run/mysqld
    keep mariadbd mariadbd --user=mysql &
    await 300 mariadb -e 'SELECT 1'
    keep slurmdbd as_user slurm env LD_LIBRARY_PATH=/opt/libmariadb slurmdbd -D &
    await 300 listening localhost 6819
}

# Files that all containers share: laid out by the controller, once per cluster.
lay_out() {
    install -d -m 1777 /shared /shared/fakegpu
    install -d /shared/gpu-aware /shared/gpu-aware/clocks /shared/home
    for user in alice bob; do install -d -o "$user" -g "$user" "/shared/home/$user"; done
    if [ ! -e /etc/slurm/.ready ]; then
        install -d /etc/slurm/prolog.d /etc/slurm/epilog.d /etc/slurm/resv.d
        install -m 644 $etc/slurm.conf $etc/gres.conf $etc/cgroup.conf /etc/slurm/
        install -o slurm -g slurm -m 600 $etc/slurmdbd.conf /etc/slurm/
        install -m 755 $etc/hook-noop.sh /etc/slurm/prolog.d/00-noop
        install -m 755 $etc/hook-noop.sh /etc/slurm/epilog.d/00-noop
        mode "${GPU_AWARE_MODE:-aware}"
        touch /etc/slurm/.ready
    fi
}

# Slurm reads a job_submit.lua again whose time is later, in whole seconds.
install_filter() {
    local before
    before=$(stat -c %Y /etc/slurm/job_submit.lua 2>/dev/null || echo 0)
    install -m 644 "$1" /etc/slurm/job_submit.lua
    [ "$(date +%s)" -gt "$before" ] || touch -d "@$((before + 1))" /etc/slurm/job_submit.lua
}

# With us or without us.
mode() {
    case $1 in
    plain)
        install_filter $etc/job_submit_plain.lua
        rm -f /etc/slurm/prolog.d/*gpu-aware* /etc/slurm/epilog.d/*gpu-aware*
        install -m 755 $etc/hook-noop.sh /etc/slurm/resv.d/50-gpu-aware-pool
        down selectd TERM
        ;;
    aware)
        if [ -e $ours/lua/job_submit.lua ]; then
            find $ours/lua -name '*.lua' ! -name job_submit.lua \
                -exec install -m 644 -t /etc/slurm {} +
            install -m 644 $etc/gpu_aware_conf.lua /etc/slurm/
            install_filter $ours/lua/job_submit.lua
        else
            install_filter $etc/job_submit_plain.lua
        fi
        for kind in prolog epilog resv; do
            for file in "$ours/$kind.d"/*; do
                [ -f "$file" ] && install -m 755 "$file" "/etc/slurm/$kind.d/"
            done
        done
        up selectd
        ;;
    *)
        echo "services: unknown mode '$1'; known: aware, plain" >&2
        exit 2
        ;;
    esac
}

# Slurm 24.11.5 hangs for ever in some of its reconfigures and shutdowns (docs/internals/slurm.md). An admin would
# restart it; here this does, and keeps what its threads did.
watch_slurmctld() {
    local pid last="" silent=0
    while sleep 3; do
        pid=$(cat "$state/slurmctld.pid" 2>/dev/null) || continue
        timeout 9 scontrol ping >/dev/null 2>&1
        # One that starts, or has no munged, refuses at once.
        if [ $? -ne 124 ] || [ "$pid" != "$last" ]; then
            silent=0 last=$pid
            continue
        fi
        silent=$((silent + 1))
        [ $silent -ge 3 ] || continue
        {
            echo "slurmctld, pid $pid, did not answer three times, $(date +%T)"
            setpriv --reuid slurm --regid slurm --init-groups timeout 20 eu-stack -p "$pid" 2>&1
        } >>"$logs/hangs.txt"
        say "slurmctld hangs, pid $pid: killed; see hangs.txt"
        kill -KILL "$pid"
        silent=0
    done
}

selector() {
    if gpu-aware selectd --help >/dev/null 2>&1; then
        keep selectd as_user slurm gpu-aware selectd
    else
        say "no selector in this image"
    fi
}

run_ctl() {
    lay_out
    munge
    database
    keep slurmctld as_user slurm slurmctld -D &
    await 300 listening ctl 6817
    watch_slurmctld &
    selector &
}

run_node() {
    for index in 0 1 2 3; do
        [ -e /dev/nvidia$index ] || mknod -m 666 /dev/nvidia$index c 195 $index
    done
    install -d -m 1777 "/shared/fakegpu/$(hostname)"
    munge
    await 600 test -e /etc/slurm/.ready
    # Clocks that a killed container left locked
    gpu-aware-clock reset-all --every >>"$logs/clocks.log" 2>&1
    keep slurmd slurmd -D &
}

down() {
    touch "$state/$1.down"
    [ -e "$state/$1.pid" ] && kill -s "${2:-TERM}" "$(cat "$state/$1.pid")"
    return 0
}

up() { rm -f "$state/$1.down"; }

mkdir -p $state $logs
case ${1:-} in
run)
    rm -f $state/*.pid
    case $2 in ctl) run_ctl ;; node) run_node ;; *) exit 2 ;; esac
    wait
    ;;
down) down "$2" "${3:-TERM}" ;;
up) up "$2" ;;
pid) cat "$state/$2.pid" ;;
mode) mode "$2" ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
