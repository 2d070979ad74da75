"""``gpu-aware-profile job`` on fake GPUs, beside a Slurm in memory."""

import csv
import getpass
import os
import re
import subprocess
import sys
import time

import pytest
from command_server import RUNNER
from fake_nvml import FakeNode
from idle_clock import Stopwatch
from memory_slurm import job_record, opened

ITERATIONS = """
import glob, os, sys, time
ends = [time.time()]
for number in range(600):
    if number >= int(sys.argv[1]) and eval(sys.argv[2]):
        break
    time.sleep(0.1)
    ends.append(time.time())
    if "GPU_AWARE_MARKS" in os.environ:
        with open(os.environ["GPU_AWARE_MARKS"], "ab") as marks:
            marks.write(b".")
print("done")
took = [end - start for start, end in zip(ends, ends[1:])]
open("took", "w").write(f"{min(took)} {max(took)}")
sys.exit(7)
"""


class JobNode:
    """Node n1 of a Slurm in memory, on which job 7 holds GPUs 1 and 2."""

    def __init__(self, library, folder):
        self.folder = folder
        self.fake = FakeNode(library, folder)
        self.slurm = folder / "slurm"
        self.slurm.mkdir()
        self.holds()

    def holds(self, **fields):
        usual = {"state": "RUNNING", "user_name": getpass.getuser(), "nodes": "n1"}
        usual |= {"slots": [1, 2], "gres_total": "gpu:g1:1,gpu:g2:1", "start_time": 1000}
        with opened(self.slurm) as state:
            state["jobs"] = [job_record(**usual | fields)]

    def run(self, *words, **env):
        argv = [sys.executable, str(RUNNER), str(self.slurm), "gpu-aware-profile", "job", *words]
        job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_PROCID": "0"}
        job |= {"TMPDIR": str(self.folder)}
        with (self.folder / "errors").open("w+") as errors:
            done = subprocess.run(
                argv,
                env={**self.fake.env, **job, **env},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=300,
            )
            errors.seek(0)
            done.stderr = errors.read()
        return done

    def records(self):
        return list(self.folder.glob("gpu-aware-job-7*.csv"))

    def rows(self):
        (record,) = self.records()
        with record.open() as file:
            return list(csv.DictReader(file))


@pytest.fixture
def job_node(library, tmp_path):
    return JobNode(library, tmp_path)


def program(iterations, until="True"):
    """So many at least, and ``until`` that holds: on a busy machine what watches begins late."""
    return ["--", sys.executable, "-c", ITERATIONS, str(iterations), until]


def until_recorded(number):
    """That there are so many records."""
    return f"len(glob.glob('gpu-aware-job-7-*.csv')) >= {number}"


def test_a_program_runs_as_usual_and_is_measured(job_node):
    labels = ["--model", "resnet50", "--batch-size", "64", "--class", "A"]
    done = job_node.run(*labels, "--slice", "1", *program(40, until_recorded(1)))
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")
    (row,) = job_node.rows()
    assert (row["application"], row["gpus"], row["nodes"]) == ("resnet50", "2", "1")
    assert (row["batch_size"], row["class"]) == ("64", "A")
    least_s, most_s = map(float, (job_node.folder / "took").read_text().split())
    assert 0.85 * least_s <= float(row["time_s"]) <= 1.15 * most_s
    assert float(row["power_w"]) > 2 * 30.0  # both of its GPUs, and no other
    assert float(row["power_w"]) < 2 * 310.0
    watch = Stopwatch()
    while list(job_node.folder.glob("gpu-aware-job-*/marks")) and watch.idle_s < 60:
        time.sleep(0.05)
    assert list(job_node.folder.glob("gpu-aware-job-*/marks")) == []


def test_no_name_of_a_record_is_foreseen(job_node):
    """Two steps of a job leave two records, and what another user creates first is in no way."""
    (job_node.folder / "gpu-aware-job-7.csv").mkdir()
    for number in (1, 2):
        job_node.run("--model", "m", "--slice", "1", *program(25, until_recorded(number)))
    names = sorted(record.name for record in job_node.records() if record.is_file())
    assert len(names) == 2
    assert all(re.fullmatch(r"gpu-aware-job-7-[0-9a-f]{8}\.csv", name) for name in names)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"user_name": "mallory"}, "job 7 belongs to mallory"),
        ({"state": "COMPLETING"}, "job 7 is not running"),
        ({"nodes": "n2"}, "job 7 holds no GPU on n1"),
    ],
)
def test_only_gpus_of_an_own_job_are_measured(job_node, fields, why):
    job_node.holds(**fields)
    done = job_node.run("--model", "m", "--slice", "1", *program(1))
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr
    assert f"the job runs, but is not measured: {why}" in done.stderr
    assert not job_node.records()


def test_no_job_at_all_runs_the_program(job_node):
    done = job_node.run("--model", "m", *program(1), SLURM_JOB_ID="")
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr
    assert "this is no job of Slurm" in done.stderr


def test_of_several_tasks_only_the_first_is_measured(job_node):
    done = job_node.run("--model", "m", "--slice", "1", *program(15), SLURM_PROCID="1")
    assert (done.returncode, done.stdout, done.stderr) == (7, "done\n", "")
    assert not job_node.records()


def test_a_program_that_cannot_be_run_is_named(job_node):
    done = job_node.run("--model", "m", "--", "./nothing")
    assert done.returncode == 1
    assert "./nothing: cannot be run: No such file or directory" in done.stderr


def test_a_folder_that_is_read_only_does_not_end_the_job(job_node):
    options = ["--model", "m", "--slice", "1", "--out", "/proc/none/x.csv"]
    done = job_node.run(*options, *program(25, "os.path.getsize('errors')"))
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr
    assert "the job goes on, but is not measured" in done.stderr


def test_a_lost_driver_does_not_end_the_job(job_node):
    done = job_node.run(
        "--model", "m", "--slice", "1", *program(3), LD_LIBRARY_PATH=os.fspath(job_node.folder)
    )
    assert (done.returncode, done.stdout) == (7, "done\n"), done.stderr
