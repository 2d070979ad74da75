# shellcheck shell=bash
# Shared by the entry points of the containers (services.sh, site/host.sh): keep services running.
state=/run/services
logs=/var/log/cluster
mkdir -p $state $logs

say() { echo "$(date +%T) $*" >>"$logs/services.log"; }

# Keep one service running: start, wait for its end, start again, unless it must stay down.
# One that ends by itself within seconds is started again later.
keep() {
    local name=$1 status began
    shift
    while :; do
        while [ -e "$state/$name.down" ]; do sleep 0.1; done
        began=$SECONDS
        "$@" >>"$logs/$name.log" 2>&1 &
        echo $! >"$state/$name.pid"
        say "$name started, pid $!"
        # Told to stay down since the look above
        [ ! -e "$state/$name.down" ] || kill "$!"
        wait $!
        status=$?
        say "$name ended, status $status"
        rm -f "$state/$name.pid"
        if [ $status -gt 128 ] || [ $((SECONDS - began)) -gt 5 ]; then sleep 0.5; else sleep 2; fi
    done
}

as_user() {
    local user=$1
    shift
    exec setpriv --reuid "$user" --regid "$user" --init-groups env HOME=/nonexistent USER="$user" "$@"
}

# $1 tries of 0.1 s until the command succeeds: many, as the machine may be busy
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
    await 3000 test -S /run/munge/munge.socket.2
}

database() {
    mkdir -p /run/mysqld && chown mysql: /run/mysqld
    keep mariadbd mariadbd --user=mysql &
    await 3000 mariadb -e 'SELECT 1'
    keep slurmdbd as_user slurm env LD_LIBRARY_PATH=/opt/libmariadb slurmdbd -D &
    await 3000 listening localhost 6819
}

controller() {
    keep slurmctld as_user slurm slurmctld -D &
    await 3000 listening "$(hostname)" 6817
    watch_slurmctld &
}

# The device files and the state folder of a host that has fake GPUs
fake_gpus() {
    [ -e "/etc/gpu-aware-fake/$(hostname).json" ] || return 0
    for index in 0 1 2 3; do
        [ -e /dev/nvidia$index ] || mknod -m 666 /dev/nvidia$index c 195 $index
    done
    install -d -m 1777 "/shared/fakegpu/$(hostname)"
}

# Slurm 24.11.5 hangs for ever in some of its reconfigures and shutdowns (docs/internals/slurm.md). An admin would
# restart it; here this does, and keeps what its threads did. It asks this host's slurmctld alone: a ping goes to all
# controllers, and one that is off the network would hold it up.
watch_slurmctld() {
    local pid last="" silent=0 known asked=$state/ping.conf
    sed -n -e "s/^SlurmctldHost=.*/SlurmctldHost=$(hostname)/p" -e '/^ClusterName=\|^SlurmUser=\|^Auth/p' /etc/slurm/slurm.conf |
        sort -u >"$asked"
    while sleep 3; do
        pid=$(cat "$state/slurmctld.pid" 2>/dev/null) || continue
        SLURM_CONF=$asked timeout 3 scontrol ping >/dev/null 2>&1
        # One that starts, or has no munged, refuses at once.
        if [ $? -ne 124 ] || [ "$pid" != "$last" ]; then
            silent=0 last=$pid
            continue
        fi
        silent=$((silent + 1))
        known=""
        waits_for_ever "$pid" && sleep 1 && waits_for_ever "$pid" && known=yes
        [ -n "$known" ] || [ $silent -ge 6 ] || continue
        {
            [ -z "$known" ] || echo "waits for ever, $(date +%s)"
            echo "slurmctld, pid $pid, did not answer $silent times, $(date +%T)"
            stacks "$pid"
        } >>"$logs/hangs.txt"
        say "slurmctld hangs, pid $pid: killed; see hangs.txt"
        kill -KILL "$pid"
        silent=0
    done
}

stacks() { setpriv --reuid slurm --regid slurm --init-groups timeout 20 eu-stack -p "$1" 2>&1; }

# Whether the main thread waits for slurmscriptd without a time limit, which is a matter of milliseconds
waits_for_ever() {
    local main
    main=$(stacks "$1" | awk '/^TID/ { threads++ } threads == 1')
    case $main in *pthread_cond_wait*) ;; *) return 1 ;; esac
    case $main in *slurmscriptd_f*) return 0 ;; *) return 1 ;; esac
}

down() {
    touch "$state/$1.down"
    [ -e "$state/$1.pid" ] && kill -s "${2:-TERM}" "$(cat "$state/$1.pid")"
    return 0
}

up() { rm -f "$state/$1.down"; }
