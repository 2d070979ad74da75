#!/bin/bash
# Runs while the image is built: an accounting database that knows the cluster and its users, and a
# slurmctld that has saved its state once. So a cluster starts in seconds, and a slurmctld that is
# killed soon after starts again (26.05 refuses to while a state file has never been written).
set -eu

mkdir -p /run/munge /run/mysqld /tmp/slurm
chown munge: /run/munge
chown mysql: /run/mysqld
sed -e 's/^AccountingStorageHost=.*/AccountingStorageHost=localhost/' \
    -e "s/^SlurmctldHost=.*/SlurmctldHost=$(hostname)/" \
    -e '/^NodeName=DEFAULT/!s/^NodeName=.*/& NodeAddr=localhost/' \
    -e '/^\(JobSubmitPlugins\|Prolog\|Epilog\)=/d' /opt/cluster/etc/slurm.conf >/tmp/slurm/slurm.conf
cp /opt/cluster/etc/gres.conf /opt/cluster/etc/cgroup.conf /tmp/slurm/
install -o slurm -m 600 /opt/cluster/etc/slurmdbd.conf /tmp/slurm/
chown slurm /tmp/slurm
export SLURM_CONF=/tmp/slurm/slurm.conf

await() {
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    echo "make-accounting.sh: no success within the time limit: $*" >&2
    cat /tmp/slurm/*.log >&2 || true
    exit 1
}

setpriv --reuid munge --regid munge --init-groups munged
mariadbd --user=mysql >/tmp/slurm/mariadbd.log 2>&1 &
database=$!
await mariadb -e 'SELECT 1'
mariadb -e "CREATE DATABASE slurm_acct_db; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;
            GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
setpriv --reuid slurm --regid slurm --init-groups \
    env LD_LIBRARY_PATH=/opt/libmariadb slurmdbd -D >/tmp/slurm/slurmdbd.log 2>&1 &
accounting=$!
await sacctmgr -n list cluster
cluster=$(sed -n 's/^ClusterName=//p' /tmp/slurm/slurm.conf)
sacctmgr -iQ add cluster "$cluster"
sacctmgr -iQ add account lab "Cluster=$cluster"
sacctmgr -iQ add user root,slurm,alice,bob Account=lab "Cluster=$cluster"
sacctmgr -iQ modify user slurm set AdminLevel=Admin
sacctmgr -nP list assoc format=cluster,account,user

setpriv --reuid slurm --regid slurm --init-groups \
    env SLURM_CONF=$SLURM_CONF slurmctld -D >/tmp/slurm/slurmctld.log 2>&1 &
controller=$!
await sinfo
# The usage of accounts is written by a clean shutdown.
kill "$controller"
wait "$controller" || true
ls /var/spool/slurmctld
test -e /var/spool/slurmctld/assoc_usage

kill "$accounting"
wait "$accounting" || true
mariadb-admin shutdown
wait $database
kill "$(cat /run/munge/munged.pid)"
rm -rf /tmp/slurm /var/log/slurm/*
