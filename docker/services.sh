#!/bin/bash
# Services of a container of the cluster; each is restarted when it ends.
#
#   services run ctl|node|login      the container's entry point
#   services down NAME [SIGNAL]      stop a service and keep it down (default TERM)
#   services up NAME                 start it again
#   services pid NAME                print its process id
#   services mode plain|aware        without filter and selector, or with them
set -u
# shellcheck source=docker/keep.sh
. /opt/cluster/keep.sh
etc=/opt/cluster/etc
ours=/opt/slurm-gpu-aware/share/slurm-gpu-aware
kind=${GPU_AWARE_CLUSTER:-own}

# Files that all containers share: laid out by the controller, once per cluster.
lay_out() {
    install -d -m 1777 /shared /shared/fakegpu
    install -d /shared/gpu-aware /shared/gpu-aware/clocks /shared/home
    install -d -o slurm -g slurm -m 755 /shared/gpu-aware/state
    for user in alice bob; do install -d -o "$user" -g "$user" "/shared/home/$user"; done
    if [ ! -e /etc/slurm/.ready ]; then
        install -d /etc/slurm/prolog.d /etc/slurm/epilog.d /etc/slurm/resv.d
        install -d -o slurm -g slurm -m 755 /etc/slurm/gpu-aware-orders
        install -m 644 $etc/slurm.conf $etc/gres.conf $etc/cgroup.conf /etc/slurm/
        install -o slurm -g slurm -m 600 $etc/slurmdbd.conf /etc/slurm/
        [ "$kind" != pair ] || two_controllers
        install -m 755 $etc/hook-noop.sh /etc/slurm/prolog.d/00-noop
        install -m 755 $etc/hook-noop.sh /etc/slurm/epilog.d/00-noop
        mode "${GPU_AWARE_MODE:-aware}"
        touch /etc/slurm/.ready
    fi
}

# A second controller, ctl2; both share StateSaveLocation, and there is no accounting.
two_controllers() {
    sed -i -e 's/^SlurmctldHost=.*/&\nSlurmctldHost=ctl2/' \
        -e 's/^SlurmctldTimeout=.*/SlurmctldTimeout=10/' \
        -e 's|^SlurmctldPidFile=.*|SlurmctldPidFile=/var/log/slurm/slurmctld.pid|' \
        -e '/^AccountingStor/d' /etc/slurm/slurm.conf
}

# Slurm reads job_submit.lua again if its time is later, in whole seconds.
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

selector() {
    if gpu-aware selectd --help >/dev/null 2>&1; then
        keep selectd as_user slurm gpu-aware selectd
    else
        say "no selector in this image"
    fi
}

run_ctl() {
    if [ "$(hostname)" = ctl ]; then lay_out; else await 3000 test -e /etc/slurm/.ready; fi
    munge
    [ "$kind" = pair ] || database
    controller
    selector &
}

run_node() {
    fake_gpus
    munge
    await 3000 test -e /etc/slurm/.ready
    # Clocks that a killed container left locked
    gpu-aware-clock reset-all --every >>"$logs/clocks.log" 2>&1
    keep slurmd slurmd -D &
    keep clockd gpu-aware clockd &
}

case ${1:-} in
run)
    rm -f $state/*.pid
    case $2 in ctl) run_ctl ;; node) run_node ;; login) munge ;; *) exit 2 ;; esac
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
