"""Options of a record that the planner does not look at, and the defaults of a partition."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slurm_gpu_aware.slurm.job_reader import parse_jobs
from slurm_gpu_aware.slurm.parse_cluster import parse_config, parse_partitions
from slurm_gpu_aware.slurm.parse_json import parse_jobs_json
from slurm_gpu_aware.slurm.records import GpuDefaults
from slurm_gpu_aware.slurm.unchecked import core_bounds, unchecked_options

DATA = Path(__file__).resolve().parents[1] / "data" / "slurm-24.11"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ()),
        (
            {
                "Contiguous": "0",
                "MinTmpDiskNode": "0",
                "CoreSpec": "*",
                "ReqB:S:C:T": "0:0:*:*",
                "Prefer": "(null)",
            },
            (),
        ),
        ({"Contiguous": "1"}, ("--contiguous",)),
        ({"Switches": "1@00:05:00"}, ("--switches",)),
        ({"MinTmpDiskNode": "10G"}, ("--tmp",)),
        ({"CoreSpec": "0"}, ("--core-spec",)),
        ({"ThreadSpec": "2"}, ("--thread-spec",)),
        ({"BurstBuffer": "#BB x"}, ("--bb",)),
        ({"Socks/Node": "*", "ReqB:S:C:T": "0:0:*:1"}, ()),
        ({"Socks/Node": "2"}, ("--sockets-per-node or --cores-per-socket (-B)",)),
        ({"ReqB:S:C:T": "0:0:4:*"}, ("--sockets-per-node or --cores-per-socket (-B)",)),
    ],
)
def test_options(fields: dict[str, str], options: tuple[str, ...]) -> None:
    assert unchecked_options(fields) == options


def test_bounds_of_cores() -> None:
    assert core_bounds({"ReqB:S:C:T": "0:0:*:1", "NtasksPerN:B:S:C": "2:0:*:*"}) == (1, None)
    assert core_bounds({"ReqB:S:C:T": "0:0:*:*", "NtasksPerN:B:S:C": "2:0:*:1"}) == (None, 1)
    assert core_bounds({}) == (None, None)


def test_text_and_json_say_the_same() -> None:
    text = (DATA / "jobs.txt").read_text().splitlines()[0]
    text = text.replace("TimeMin=N/A", "TimeMin=00:05:00").replace("Contiguous=0", "Contiguous=1")
    text = text.replace("ReqB:S:C:T=0:0:*:*", "ReqB:S:C:T=0:0:2:1")
    text = text.replace("Socks/Node=*", "Socks/Node=1")
    text = text.replace("NtasksPerN:B:S:C=0:0:*:*", "NtasksPerN:B:S:C=0:0:*:1")
    text = text.replace("MinTmpDiskNode=0", "MinTmpDiskNode=1024M")
    text = re.sub(r"CoreSpec=\S+", "CoreSpec=2", text)
    (read,) = parse_jobs(text).jobs
    record = json.loads((DATA / "jobs.json").read_text())["jobs"][0]

    def number(value: int) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": value}

    record |= {
        "contiguous": True,
        "time_minimum": number(5),
        "sockets_per_node": number(1),
        "cores_per_socket": number(2),
        "threads_per_core": number(1),
        "tasks_per_core": number(1),
        "minimum_tmp_disk_per_node": number(1024),
        "core_spec": 2,
        "thread_spec": 32766,
    }
    (found,) = parse_jobs_json(json.dumps({"jobs": [record]}))
    assert (
        (read.unchecked, read.threads_per_core, read.tasks_per_core, read.time_min_s)
        == (found.unchecked, found.threads_per_core, found.tasks_per_core, found.time_min_s)
        == (
            (
                "--contiguous",
                "--tmp",
                "--core-spec",
                "--sockets-per-node or --cores-per-socket (-B)",
            ),
            1,
            1,
            300,
        )
    )


def test_defaults_of_partition_and_cluster() -> None:
    given = "JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=1000"
    (plain,) = parse_partitions((DATA / "partitions.txt").read_text().splitlines()[0])
    assert plain.per_gpu == GpuDefaults()
    line = (DATA / "partitions.txt").read_text().splitlines()[0]
    (partition,) = parse_partitions(line.replace("JobDefaults=(null)", given))
    assert partition.per_gpu == GpuDefaults(4, 1000)
    text = (DATA / "config.txt").read_text()
    assert parse_config(text).per_gpu == GpuDefaults()
    text = text.replace("JobDefaults             = (null)", "JobDefaults  = DefMemPerGPU=500")
    assert parse_config(text).per_gpu == GpuDefaults(None, 500)
