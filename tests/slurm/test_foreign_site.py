"""The guide on a site that is not ours: its own commands, from the first to the last, under load.

Users submit jobs of all forms from before the first step until after the last one. What each job
sees is known from its form alone.
"""

import json
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from foreign_site import USERS, ForeignSite
from guide import Step, read_guide, steps_of
from site_judge import Run, Submission, bad_ends, overlaps, read_runs, read_submissions, wrong_runs
from site_truth import untrue

pytestmark = pytest.mark.skipif(
    os.environ.get("GPU_AWARE_WALK") != "1",
    reason="a cluster of its own that keeps the machine busy: make test-walk",
)
ROOT = Path(__file__).resolve().parents[2]
INTERVAL_S = 2.0
"""Of each of the two users' submissions."""
SETTLED_S = 20.0
"""Of load before the first step, after the rollout, and after the last step."""
CONFIG = "/etc/slurm-gpu-aware/config.toml"
HELD_S = 600.0
"""Longest hold of a job; the steps of the walk end it sooner."""
PLAIN_FAILURE = re.compile(r"srun: error: Unable to confirm allocation for job \d+: Connection re")
"""A srun that meets slurmctld in its restart; nothing of ours is loaded then."""
BELOW = re.compile(r"/(etc|opt|var|usr|run|root|home)/[\w./@*-]+")


@pytest.fixture(name="cluster")
def site_of_others(new_project: str, suite: str) -> Iterator[ForeignSite]:
    """The foreign site, without slurm-gpu-aware; gone after the test."""
    site = ForeignSite(f"{new_project}-site", suite)
    try:
        site.up()
        yield site
    finally:
        site.down()


@pytest.fixture(autouse=True, scope="module", name="clean_first")
def nothing_first() -> None:
    """Nothing to clean: the site is new."""


@pytest.fixture(autouse=True)
def clean() -> None:
    """The same."""


class Walk:
    """What was typed, what was said, and what was wrong."""

    def __init__(self, site: ForeignSite) -> None:
        self.site = site
        self.wrong: list[str] = []
        self.done = ""
        self.restarts: set[int] = set()
        """Phases in which the admin restarts slurmctld, and those before."""
        self.phase = 0

    def begin(self, hold_s: float = 0) -> None:
        """Begin a phase of the load, and hold some jobs that are submitted in it."""
        self.phase += 1
        self.site.tell_load(self.phase, hold_s)

    def take(self, step: Step, hold_s: float = 0) -> str:
        """Do one step of the guide; then doctor has to tell the truth."""
        self.begin(hold_s)
        if "restart slurmctld" in step.text:
            self.restarts |= {self.phase - 1, self.phase}
        began = time.monotonic()
        said = self.site.take(step)
        took_s = time.monotonic() - began
        print(f"=== {step.where}, phase {self.phase}, {took_s:.0f} s\n{step.text}\n{said}")
        self.done += step.text
        if (told := self.site.doctor()) is not None:
            complaints = list(untrue(self.site, *told, self.done))
            self.wrong += [f"after {step.where}: {text}" for text in complaints]
        return said

    def installed(self) -> None:
        """All is done: doctor finds nothing, also on the nodes."""
        for _ in range(8):
            status, checks = self.site.doctor("--nodes") or (127, [])
            self.wrong += untrue(self.site, status, checks, self.done)
            if all(check["status"] != "skipped" for check in checks):
                break
            time.sleep(2)  # a busy node was not asked: "try again"
        bad = [f"{c['name']}: {c['found']}" for c in checks if c["status"] != "ok"]
        if bad or status:
            self.wrong.append(f"installed, but doctor exits with {status}: {'; '.join(bad)}")


def test_guide_from_first_command_to_last(cluster: ForeignSite) -> None:
    steps = read_guide(ROOT)
    roll = next(n for n, step in enumerate(steps) if "setup --roll" in step.text)
    before = cluster.files()
    walk = Walk(cluster)
    load = cluster.start_load(INTERVAL_S)
    walk.begin(HELD_S)
    time.sleep(SETTLED_S)
    for number, step in enumerate(steps[: roll + 1]):
        walk.take(step, HELD_S if number == roll - 1 else 0)
    walk.begin(SETTLED_S)  # the removal waits for jobs that ask for a model
    indexed = walk.phase
    time.sleep(SETTLED_S)
    walk.installed()
    submissions, _ = _load_of(cluster)
    walk.wrong += _not_exact(cluster, [s for s in submissions if s.phase >= indexed])
    said = "".join([walk.take(step) for step in steps[roll + 1 :]])
    for _ in range(2):
        walk.begin()
        time.sleep(SETTLED_S / 2)
    walk.wrong += cluster.stop_load(load, 240)
    submissions, runs = _load_of(cluster)
    walk.wrong += _wrong_jobs(cluster, submissions, runs, walk.restarts)
    if roll + 1 < len(steps):
        walk.wrong += _left(before, cluster.files(), said)
        walk.wrong += _left_in_slurm(cluster)
    again = sum(len(submission.again) for submission in submissions)
    print(f"{len(submissions)} submissions, {len(runs)} runs, {again} plain refusals")
    assert not walk.wrong, "\n".join(walk.wrong)


CHANGES = re.compile("UPDATE|RESERVATION$|RECONFIGURE|SUSPEND|SHUTDOWN|TAKEOVER|KILL")
"""Of the kinds of requests to slurmctld in sdiag; REQUEST_RESERVATION_INFO only reads."""
LOG = "/var/log/cluster/slurmctld.log"


def test_rungs_up_and_down(cluster: ForeignSite) -> None:
    """Watch, shadow, nodes, exact GPUs, and back: below the gate /etc/slurm stays as it was."""
    steps = read_guide(ROOT)
    install = next(n for n, step in enumerate(steps) if "setup --install" in step.text)
    roll = next(n for n, step in enumerate(steps) if "setup --roll" in step.text)
    ladder = steps_of("docs/ladder.md", (ROOT / "docs/ladder.md").read_text(encoding="utf-8"))
    watch, shadow, metrics, nodes, no_shadow, no_watch, no_metrics = ladder
    cluster.sh("ctl", "sed -i 's/^1,a1,A,.*/1,a1,A,95.0/' /root/times.csv")
    before = cluster.files()
    cluster.take(steps[0])
    _watch_and_shadow(cluster, watch, shadow, before)
    cluster.take(metrics)
    _metrics_and_pages(cluster)
    assert _of_slurm(cluster.files()) == _of_slurm(before)
    cluster.take(no_metrics)
    cluster.take(no_shadow)

    for step in (*steps[1:install], nodes, *steps[install:roll]):
        cluster.take(step)
    gres, types = _gres(cluster.files()), _types(cluster)
    assert gres == _gres(before)
    _nodes_are_chosen(cluster)
    refused = cluster.run("ctl", "gpu-aware setup --roll --yes")
    assert refused.returncode == 2
    assert b'gpus = "exact"' in refused.stderr

    _set_gpus(cluster, "exact")
    cluster.take(steps[roll])
    assert all("gpu:g0:1" in text for text in _types(cluster).values())
    job = cluster.submit("bob", ["-p", "gpu", "--gpus=v100:1"], "sleep 300")
    assert "gpu:g" in _running(cluster, job)["TresPerNode"]

    cluster.sh("ctl", "gpu-aware setup --undo --yes", timeout=300)
    _set_gpus(cluster, "nodes")
    assert (_gres(cluster.files()), _types(cluster)) == (gres, types)
    _nodes_are_chosen(cluster)

    remove, delete = steps[roll + 1 :]
    said = cluster.take(remove)
    _watch_and_shadow(cluster, watch, shadow, before)
    for step in (no_shadow, no_watch):
        cluster.take(step)
    assert "gpu-aware" not in cluster.sh("ctl", "ls -R /etc/systemd/system")
    said += cluster.take(delete)
    wrong = [*_left(before, cluster.files(), said), *_left_in_slurm(cluster)]
    assert not wrong, "\n".join(wrong)


def _watch_and_shadow(
    cluster: ForeignSite, watch: Step, shadow: Step, before: dict[str, dict[str, str]]
) -> None:
    """Rungs 1 and 2, and all that reaches slurmctld meanwhile: nothing of ours changes Slurm."""
    logged = int(cluster.sh("ctl", f"wc -c <{LOG}"))
    cluster.sh("ctl", ["sdiag", "-r"])
    assert "16 GPUs" in cluster.take(watch)

    def report() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cluster.sh("ctl", "gpu-aware report --shadow --json"))
        return found

    was = report()
    cluster.take(shadow)
    first = "the shadow's first look"
    cluster.wait_until(lambda: report()["until"] not in (None, was["until"]), 60, first)
    job = cluster.submit("bob", ["-p", "gpu", "--gres=gpu:2"], "sleep 300")
    cluster.wait_until(lambda: report()["compared"] > was["compared"], 60, lambda: str(report()))

    assert _of_slurm(cluster.files()) == _of_slurm(before)
    by_type = cluster.sh("ctl", ["sdiag"]).partition("statistics by message type")[2]
    kinds = set(re.findall(r"^\t([A-Z_]+) ", by_type.partition("statistics by user")[0], re.M))
    assert "REQUEST_JOB_INFO" in kinds
    assert [kind for kind in kinds if CHANGES.search(kind)] == []
    log = cluster.sh("ctl", f"tail -c +{logged + 1} {LOG}")
    assert re.findall(r"(?i).*(?:_slurm_rpc_update|reconfigur|reservation).*", log) == []
    cluster.sh("ctl", ["scancel", job])


def _metrics_and_pages(cluster: ForeignSite) -> None:
    """Of watch and shadow, for Prometheus as a user without rights, and as pages."""
    url = "http://127.0.0.1:9836/metrics"
    get = f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"
    page = ""

    def shows(*lines: str) -> bool:
        nonlocal page
        page = cluster.run("ctl", ["python3", "-c", get]).stdout.decode()
        return all(line in page for line in lines)

    wanted = ('up{source="store"} 1.0', "measured_nodes 4.0", 'started_jobs{partition="gpu"} 1.0')
    cluster.wait_until(lambda: shows(*wanted), 120, lambda: page)
    assert "\ngpu_aware_gate_closed" not in page  # no sample of it
    where = "/tmp/gpu-aware-pages"
    cluster.sh("ctl", f"runuser -u slurm -- gpu-aware page {where}; ls {where}/nodes | wc -l")
    assert "watched" in cluster.sh("ctl", f"cat {where}/index.html; rm -r {where}")


def _set_gpus(cluster: ForeignSite, choice: str) -> None:
    """Change rungs as the page on nodes only says."""
    cluster.sh("ctl", f"sed -i 's/^gpus = .*/gpus = \"{choice}\"/' {CONFIG}")
    cluster.sh("ctl", "gpu-aware setup --install --yes && systemctl restart gpu-aware-selectd")
    cluster.await_gate()


def _running(cluster: ForeignSite, job: str) -> dict[str, str]:
    """The record of a job while it runs; it is cancelled then."""
    record = cluster.wait(job, "RUNNING")
    cluster.sh("ctl", ["scancel", job])
    return record


def _nodes_are_chosen(cluster: ForeignSite) -> None:
    """Rung 3: the node without the slowest GPU, GPUs of the site's type, and doctor is content.

    Of the idle nodes a1 and a2 the slowest GPU for class A is on a1, which Slurm takes first.
    """
    options = ["-p", "gpu", "--gres=gpu:a100:1", "--comment=class=A"]
    record = _running(cluster, cluster.submit("alice", options, "sleep 300"))
    assert (record["ReqNodeList"], record["NodeList"]) == ("a2", "a2"), record
    assert record["TresPerNode"] == "gres/gpu:a100:1"
    assert "gres/gpu:a100=1" in record["AllocTRES"]
    said = cluster.sh("ctl", ["gpu-aware", "explain", record["JobId"]], "alice")
    assert "a2 (Slurm chooses the GPUs)" in said
    options = ["-p", "gpu", "-N2", "--gpus-per-node=a100:2"]
    record = _running(cluster, cluster.submit("bob", options, "sleep 300"))
    assert record["ReqNodeList"] == "a1,a2"
    status, checks = cluster.doctor() or (127, [])
    found = {check["name"]: check for check in checks}
    assert (status, found["gres types"]["status"]) == (0, "ok"), checks
    assert "Slurm chooses the GPUs" in found["gres types"]["found"]


def _of_slurm(files: dict[str, dict[str, str]]) -> dict[tuple[str, str], str]:
    """(Host, path) -> what stands there, of all that belongs to Slurm's configuration."""
    every = ((host, path, kind) for host, paths in files.items() for path, kind in paths.items())
    return {(host, path): kind for host, path, kind in every if path.startswith("/etc/slurm/")}


def _gres(files: dict[str, dict[str, str]]) -> list[str]:
    """gres.conf of each host."""
    return [kind for (_, path), kind in _of_slurm(files).items() if path.endswith("/gres.conf")]


def _types(cluster: ForeignSite) -> dict[str, str]:
    """Node -> GRES as Slurm has them."""
    lines = cluster.sh("ctl", ["sinfo", "-hN", "-p", "gpu", "-o", "%N %G"]).splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


def _load_of(cluster: ForeignSite) -> tuple[list[Submission], list[Run]]:
    submissions: list[Submission] = []
    runs: list[Run] = []
    for user in USERS:
        submissions += read_submissions(cluster.load_file(user, "submitted"))
        runs += read_runs(cluster.load_file(user, "seen"))
    return submissions, runs


def _wrong_jobs(
    cluster: ForeignSite,
    submissions: Sequence[Submission],
    runs: Sequence[Run],
    restarts: Collection[int],
) -> Iterator[str]:
    """Jobs refused, lost, failed, or on other GPUs than their form says."""
    excused = {s.job_id for s in submissions if s.form.refused and s.status}
    for submission in submissions:
        if submission.status and submission.form.refused:
            if submission.form.refused not in submission.said:
                yield f"{submission.label}: refused without a cure: {submission.said}"
            continue
        if submission.status:
            yield f"{submission.label}: refused: {submission.said}"
            continue
        mine = [run for run in runs if run.name == submission.name]
        if not (complaints := list(wrong_runs(submission, mine))):
            continue
        wrote = cluster.output_of(submission.name)
        if submission.phase in restarts and PLAIN_FAILURE.search(wrote):
            print(f"{submission.label}: failed in the restart of slurmctld: {wrote}")
            excused.add(submission.job_id)
            continue
        for complaint in complaints:
            yield f"{complaint}; it wrote: {wrote}"
    yield from overlaps(runs)
    ids = {run.job_id for run in runs} | {s.job_id for s in submissions if s.job_id}
    ids -= excused
    text = cluster.sh("ctl", "sacct -aPn -S now-1hour -o jobidraw,jobname,state,exitcode")
    rows = [row for row in text.splitlines() if row.split("|")[0].split(".")[0] in ids]
    yield from bad_ends(rows)


def _not_exact(cluster: Cluster, submissions: Sequence[Submission]) -> Iterator[str]:
    """Jobs that ran on indexed nodes without exact GPUs."""
    by_name = {s.name: s for s in submissions if s.form.placed and s.form.also != "requeue"}
    ran = 0
    for job in cluster.jobs():
        submission = by_name.get(job.get("JobName", ""))
        if submission is None or job["JobState"] not in ("RUNNING", "COMPLETED"):
            continue
        ran += 1
        if not re.search(r" TresPer(Node|Job)=\S*gpu:g\d", job[""]):
            yield f"{submission.label}: not on exact GPUs"
    if not ran:
        yield "no job ran after the rollout"


def _left(
    before: dict[str, dict[str, str]], after: dict[str, dict[str, str]], said: str
) -> Iterator[str]:
    """Files of any host that are not as they were, and that the removal did not name."""
    named = {path.rstrip("/.") for path in (match[0] for match in BELOW.finditer(said))}
    for host, old in before.items():
        new = after[host]
        for path in sorted(old.keys() | new.keys()):
            if old.get(path) == new.get(path):
                continue
            ours = [
                str(folder) for folder in Path(path).parents if re.search("gpu.aware", str(folder))
            ]
            if not named & {path, *ours}:
                yield f"{host}: {path}: was {old.get(path)}, is {new.get(path)}"


def _left_in_slurm(cluster: Cluster) -> Iterator[str]:
    """Licences, reservations, features and services of ours."""
    text = cluster.sh(
        "ctl",
        "scontrol show lic; scontrol show reservation; scontrol show node; scontrol show config",
    )
    for word in sorted(set(re.findall(r"\S*(?:gpu[-_]?aware|gpu_a100|gpu_v100|gpu:g\d)\S*", text))):
        yield f"Slurm still knows {word}"
    for host in cluster.CONTAINERS:
        for line in cluster.sh(
            host, "ps -eo args | grep gpu-aware | grep -v grep || true"
        ).splitlines():
            yield f"{host}: still runs {line}"
