#!/bin/bash
# Services of a host of the foreign site; each is restarted when it ends.
#
#   services run ctl|node|login   the container's entry point
#   services unit NAME            keep the ExecStart of a systemd unit running (systemctl asks for it)
#   services down NAME [SIGNAL]   stop a service and keep it down (default TERM)
#   services up NAME              start it again
#   services pid NAME             print its process id
set -u
# shellcheck source=docker/keep.sh
. /opt/cluster/keep.sh
etc=/opt/cluster/etc

# Each host has its own /etc/slurm, as the site's push script leaves it.
lay_out() {
    [ ! -e /etc/slurm/slurm.conf ] || return 0
    install -d /etc/slurm
    install -m 644 $etc/slurm.conf $etc/gres.conf $etc/cgroup.conf $etc/job_submit.lua /etc/slurm/
    install -m 755 $etc/prolog.sh $etc/epilog.sh /etc/slurm/
    for user in alice bob; do install -d -o "$user" -g "$user" "/home/$user"; done
}

remote_shell() {
    mkdir -p /run/sshd
    keep sshd /usr/sbin/sshd -D -e &
}

run_ctl() {
    lay_out
    install -o slurm -g slurm -m 600 $etc/slurmdbd.conf /etc/slurm/
    install -m 644 $etc/times.csv /root/
    munge
    remote_shell
    database
    controller
    [ -e $state/site.ready ] || first_day
    touch $state/site.ready
}

gpu_nodes_idle() { [ "$(sinfo -hN -p gpu -t idle | wc -l)" -eq 4 ]; }

history_ran() {
    sleep 0.5
    [ -z "$(squeue -h)" ] && [ "$(sacct -aXn -o state | grep -c COMPLETED)" -ge 26 ]
}

# What an ordinary site has before we come: accounts, QOS with limits, and jobs that have run.
first_day() {
    await 600 gpu_nodes_idle
    $etc/accounts.sh >>"$logs/accounts.log" 2>&1
    for user in alice bob; do
        (as_user $user env HOME=/home/$user /bin/sh -c "cd && exec $etc/history.sh") \
            >>"$logs/history.log" 2>&1 &
    done
    await 600 history_ran
}

run_node() {
    lay_out
    fake_gpus
    munge
    remote_shell
    keep slurmd slurmd -D &
}

run_login() {
    lay_out
    munge
    remote_shell
}

# User, Environment and ExecStart of a unit, as systemd runs it
unit() {
    local file="/etc/systemd/system/$1.service" user start
    user=$(sed -n 's/^User=//p' "$file")
    start=$(sed -n 's/^ExecStart=//p' "$file")
    ! grep -q '^DynamicUser=yes' "$file" || user=bob # who has no right beside those of every user
    mapfile -t words < <(sed -n 's/^Environment=//p' "$file")
    # shellcheck disable=SC2086  # systemd splits at blanks, too
    keep "$1" as_user "${user:-root}" "${words[@]}" $start
}

case ${1:-} in
run)
    rm -f $state/*.pid
    case $2 in ctl) run_ctl ;; node) run_node ;; login) run_login ;; *) exit 2 ;; esac
    wait
    ;;
unit) unit "$2" ;;
down) down "$2" "${3:-TERM}" ;;
up) up "$2" ;;
pid) cat "$state/$2.pid" ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
