"""A large site as text, read and planned as the selector does, without Slurm and without Docker.

    python benchmarks/large_site.py [PART ...] [--nodes 2000] [--jobs 1000] [--ended 10000]

Writes what ``scontrol`` would print for nodes of 8 GPUs, three quarters of them busy, with parked
jobs of many shapes (those of ``benchmarks/scale.py``), and reads it through the gateway's own
parsers; only the command itself is left out. Parts:

- ``round``: one whole round but for ``scontrol``: reading, snapshot and translation, planning;
- ``idle``: the selector's CPU per minute with jobs that have ended still in slurmctld's memory; a
  command that prints the text stands for ``scontrol``.

Times are medians of CPU time of this process, so that other load disturbs them little.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placement_profile import show_profile

from slurm_gpu_aware.config import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.planning import round as planning
from slurm_gpu_aware.service.books import Books
from slurm_gpu_aware.service.rounds import Rounds
from slurm_gpu_aware.service.selectd import GC_OBJECTS, Selector
from slurm_gpu_aware.slurm.cli_gateway import CliGateway

REPEATS = 5
SETTLE_S = 40.0
"""As long after its start every round of the selector asks Slurm."""
SCONTROL = """\
#!/bin/sh
for word; do
    case "$word" in
    job) echo x >>{folder}/asked; exec cat {folder}/job ;;
    node|partition|reservation|license|config) exec cat {folder}/$word ;;
    esac
done
"""
WIDTH = 8
NOW = 1_795_260_000
GPUS = ",".join(f"gpu:g{i}:1" for i in range(WIDTH))
HEAD = (
    "JobId={id} JobName=wrap UserId=alice(2001) GroupId=alice(2001) MCS_label=N/A"
    " Priority={priority} Nice=0 Account=(null) QOS=(null) JobState={state} Reason={reason}"
    " Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0"
    " DerivedExitCode=0:0 RunTime={run} TimeLimit={limit} TimeMin=N/A SubmitTime={at}"
    " EligibleTime={at} AccrueTime={at} StartTime={start} EndTime={end} Deadline=N/A"
    " SuspendTime=None SecsPreSuspend=0 LastSchedEval={seen} Scheduler=Main Partition=gpu"
    " AllocNode:Sid=ctl:71 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes}"
)
TAIL = (
    " MinCPUsNode=1 MinMemoryCPU=500M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00"
    " OverSubscribe=OK Contiguous=0 Licenses={licences} Network=(null) Command=(null)"
    " WorkDir=/tmp AdminComment={admin} Comment=class={name} StdErr=/tmp/slurm-{id}.out"
    " StdIn=/dev/null StdOut=/tmp/slurm-{id}.out TresPerNode=gres/gpu:{gpus} "
)


def job_line(
    number: int,
    state: str,
    nodes: int,
    gpus: int,
    *,
    reason: str = "None",
    minutes: int = 60,
    run: str = "00:00:00",
    start: str = "Unknown",
    end: str = "Unknown",
    where: str = "",
    seen: int = NOW,
) -> str:
    """A job record; one in state RUNNING holds all its node's GPUs, one CPU."""
    head = HEAD.format(
        id=number,
        priority=20_000 - number,
        state=state,
        reason=reason,
        run=run,
        limit=f"{minutes // 60:02d}:{minutes % 60:02d}:00",
        at=NOW - 600,
        start=start,
        end=end,
        seen=seen,
        nodes=where,
    )
    middle = (
        f" BatchHost={where}"
        * bool(where)
        + f" NumNodes={nodes}-{nodes} NumCPUs={nodes} NumTasks={nodes} CPUs/Task=1"
        f" ReqB:S:C:T=0:0:*:* ReqTRES=cpu={nodes},mem={500 * nodes}M,node={nodes},billing={nodes}"
        f",gres/gpu={nodes * gpus} AllocTRES=(null) Socks/Node=* NtasksPerN:B:S:C=0:0:*:*"
        " CoreSpec=*"
    )
    if state == "RUNNING":
        held = ",".join(f"gpu:g{i}:1(IDX:{i})" for i in range(WIDTH))
        middle += f" JOB_GRES={GPUS}   Nodes={where} CPU_IDs=0 Mem=500 GRES={held}"
    tail = TAIL.format(
        id=number,
        gpus=gpus,
        name="ABC"[number % 3],
        licences="gpuaware:1" if state == "PENDING" else "(null)",
        admin=f"gpuaware/1;tn=gres/gpu:{gpus};nn={nodes}-{nodes};mc={nodes}",
    )
    return head + middle + tail


def node_line(number: int, busy: bool) -> str:
    """A node record."""
    used = ",".join(f"gpu:g{i}:{int(busy)}(IDX:{i if busy else 'N/A'})" for i in range(WIDTH))
    state, cpus = ("MIXED", 1) if busy else ("IDLE", 0)
    name = f"c{number}"
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc={cpus} CPUEfctv=64 CPUTot=64"
        f" CPULoad=0.00 AvailableFeatures=gpu_v100 ActiveFeatures=gpu_v100 Gres={GPUS}"
        f" GresDrain=N/A GresUsed={used} NodeAddr={name} NodeHostName={name} Version=24.11.5"
        f" OS=Linux 6.1 #1 SMP  RealMemory=512000 AllocMem={500 * cpus} FreeMem=0 Sockets=2"
        f" Boards=1 State={state}+CLOUD ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A"
        " MCS_label=N/A Partitions=gpu  BootTime=None SlurmdStartTime=None"
        f" LastBusyTime={NOW} ResumeAfterTime=None CfgTRES=cpu=64,mem=500G,billing=64"
        f" AllocTRES=cpu={cpus} CurrentWatts=0 AveWatts=0 "
    )


class TextGateway(CliGateway):
    """The gateway with texts for answers."""

    def __init__(self, nodes: int, jobs: int, ended: int, busy: float = 0.75) -> None:
        super().__init__()
        taken = int(nodes * busy)
        lines = [
            job_line(
                i + 1,
                "RUNNING",
                1,
                WIDTH,
                minutes=7 * 24 * 60,
                start=str(NOW - 100),
                end=str(NOW + 7 * 86400),
                where=f"c{i + 1}",
            )
            for i in range(taken)
        ]
        first = len(lines) + 1
        lines += [
            job_line(
                first + i, "PENDING", i % 4 + 1, i % 8 + 1, reason="Licenses", minutes=60 + i % 50
            )
            for i in range(jobs)
        ]
        first = len(lines) + 1
        lines += [
            job_line(
                first + i,
                "COMPLETED",
                1,
                1,
                run="00:00:10",
                start=str(NOW - 20),
                end=str(NOW - 10),
                where=f"c{i % nodes + 1}",
            )
            for i in range(ended)
        ]
        self.texts = {
            "job": "\n".join(lines) + "\n",
            "node": "\n".join(node_line(i + 1, i < taken) for i in range(nodes)) + "\n",
            "partition": (
                "PartitionName=gpu DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=UNLIMITED"
                f" Nodes=c[1-{nodes}] PriorityTier=1 State=UP\n"
            ),
            "reservation": (
                "ReservationName=gpuaware_gate StartTime=100 EndTime=99999999999 Nodes=(null)"
                " Flags=ANY_NODES Licenses=gpuaware:100000 State=ACTIVE\n"
            ),
            "license": "LicenseName=gpuaware Total=100000 Used=0 Free=0 Reserved=100000\n",
            "config": (
                "ClusterName             = site\nSLURM_VERSION           = 24.11.5\n"
                "SelectTypeParameters    = CR_CORE_MEMORY\n"
            ),
        }

    def _ask(self, *arguments: str) -> str:
        return self.texts[next(a for a in arguments if a in self.texts)]


def whole_round(given: argparse.Namespace) -> None:
    """CPU time of a round's parts, but for the commands."""
    gateway = TextGateway(given.nodes, given.jobs, given.ended)
    plan_round = planning.plan_round
    spent: dict[str, list[float]] = {}
    placed: list[int] = []

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments, **options)
            finally:
                spent.setdefault(name, []).append(time.process_time() - began)

        return wrapped

    def plan(*arguments: Any, **options: Any) -> Any:
        found = plan_round(*arguments, **options)
        placed.append(len(found.assignments))
        return found

    for name in ("jobs", "nodes", "partitions", "reservations"):
        setattr(gateway, name, timed(f"read {name}", getattr(gateway, name)))
    planning.plan_round = timed("plan", plan)
    with tempfile.TemporaryDirectory() as folder:
        books = Books(Path(folder) / "store.db")
        rounds = Rounds(gateway, Config(), books, gate_held_until=lambda: 0.0, clock=lambda: NOW)
        whole: list[float] = []
        for _ in range(1 + REPEATS):
            began = time.process_time()
            outcome = rounds.run()
            whole.append(time.process_time() - began)
        print(
            f"{given.nodes} nodes, {given.jobs} parked and {given.ended} ended jobs:"
            f" {outcome.queued} planned, {placed[-1]} placed"
        )
        print(f"{'':<20}{'first, s':>10}{'then, s':>10}")
        for name, times in {**spent, "whole round": whole}.items():
            print(f"{name:<20}{times[0]:>10.3f}{statistics.median(times[1:]):>10.3f}")
        if given.profile:
            show_profile(rounds.run)
        books.close()
    planning.plan_round = plan_round


def idle(given: argparse.Namespace) -> None:
    """CPU of the selector and its commands while no job is parked or runs and many have ended."""
    texts = TextGateway(given.nodes, 0, given.ended, busy=0.0).texts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, text in texts.items():
            (folder / what).write_text(text)
        scontrol = folder / "scontrol"
        scontrol.write_text(SCONTROL.format(folder=folder))
        scontrol.chmod(0o755)
        config = Config(
            store=StoreConfig(path=folder / "store.db"),
            events=EventsConfig(submit_file=folder / "submitted"),
        )
        os.environ["GPU_AWARE_CLOCK_CONFIG"] = str(folder / "clock.conf")
        selector = Selector(config, CliGateway(scontrol=str(scontrol)))
        marks: list[float] = []

        def measure() -> None:
            time.sleep(SETTLE_S)
            marks.append(cpu_s())
            time.sleep(given.seconds)
            marks.append(cpu_s())
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=measure, daemon=True).start()
        selector.loop()
        selector.close()
        asked = (folder / "asked").read_text().split()
    share = (marks[1] - marks[0]) / given.seconds
    print(
        f"idle for {given.seconds:g} s with {given.ended} ended jobs: {100 * share:.2f}% of a core"
        f" without slurmctld's and scontrol's own; all jobs were asked for {len(asked)} times"
    )


def cpu_s() -> float:
    """CPU time of this process and of the commands that it ran, seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"round": whole_round, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--ended", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to be idle")
    parser.add_argument("--profile", action="store_true", help="show where a round spends its time")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}")
    logging.disable(logging.CRITICAL)
    gc.set_threshold(GC_OBJECTS, 20, 20)  # as the daemon does
    for name in given.parts or PARTS:
        PARTS[name](given)


if __name__ == "__main__":
    main()
