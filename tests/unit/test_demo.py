"""docker/demo.py without a cluster: its tables and numbers."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docker"))
demo, demo_report = map(import_module, ("demo", "demo_report"))


def the_jobs(slowdown):
    """The jobs of the mix, each on the widest place that a table shows."""
    gpus = {"n1": {0, 1}, "n2": {0, 1}}
    return [
        demo_report.Job(
            f"12{i}_3", user, app_class, demo.asked_of(options), demo_report.Place(gpus, slowdown)
        )
        for i, (user, _, app_class, options, count) in enumerate(demo.MIX)
        for _ in range(count * (4 if "--array=0-3" in options else 1))
    ]


def test_the_table_fits_100_columns_and_ends_with_means(capsys):
    alone, placed = the_jobs(1.5), the_jobs(1.5)
    alone[0].place.slowdown, placed[0].place.slowdown = 1.21, 1.0  # one of the jobs of class A
    demo_report.report_places(alone, placed)
    demo_report.further(placed[0], keep=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("n1:0,1 n2:0,1" in line for line in lines) == len(alone)
    of_a = len([job for job in alone if job.app_class == "A"])
    means = [1.5 * (first / 1.5) ** (1 / of_a) - 1 for first in (1.21, 1.0)]
    (row,) = (line.split() for line in lines if re.match("A +mean", line))
    assert row[2:] == [f"{100 * mean:+.1f}%" for mean in means]


def test_a_job_without_a_place_is_an_error():
    alone = the_jobs(1.5)
    alone[2].place = None
    with pytest.raises(demo_report.DemoError, match=r"jobs 121_3 and"):
        demo_report.report_places(alone, the_jobs(1.0))


def test_the_order_is_told_by_the_mean_time_from_submission_to_end(capsys, monkeypatch):
    told = "1_3|2026-05-04T14:00|2026-05-04T14:00:{}\n2|2026-05-04T14:00:10|2026-05-04T14:00:40\n"
    both = []
    for end in (50, 20):
        monkeypatch.setattr(demo, "cluster", lambda *_, end=end: told.format(end))
        both.append([demo_report.Job(job_id, "alice", "A", "") for job_id in ("1_3", "2")])
        demo.read_times(both[-1])
    demo_report.report_times(*both)
    assert (
        "25 s from submission to end on average, 40 s with Slurm alone (-38%)"
        in capsys.readouterr().out
    )


def test_ends_are_read_until_accounting_knows_all(monkeypatch):
    first, ended = (f"{job}|2026-05-04T14:00|2026-05-04T14:0{job}" for job in (1, 2))
    running = ended[:-16] + "Unknown"
    answers = iter(["", first, f"{first}\n{running}", f"{first}\n{ended}\n"])
    monkeypatch.setattr(demo, "cluster", lambda *_: next(answers))
    monkeypatch.setattr(demo.time, "sleep", lambda _: None)
    jobs = [demo_report.Job(job_id, "alice", "A", "") for job_id in ("1", "2")]
    demo.read_times(jobs)
    assert [job.took_s for job in jobs] == [60.0, 120.0]
    assert next(answers, None) is None


def test_watch_shows_the_gpus_that_are_not_well(capsys, monkeypatch):
    gpus = [{"node": "n1", "gpu": g, "state": "well", "why": ""} for g in range(4)]
    gpus[2] |= {"state": "slow", "why": "class A: 50% slower than its peers in 3 sweeps"}
    monkeypatch.setattr(demo, "cluster", lambda *_, **__: json.dumps({"gpus": gpus}))
    demo_report.report_watch(demo.watch())
    out = capsys.readouterr().out
    assert re.search(r"n1:2 +slow +class A: 50% slower", out)
    assert "n1:0" not in out
    assert "The other 3 GPUs are well." in out


def test_make_help_counts_the_jobs():
    (line,) = re.findall(r"^demo:.*## (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert f"{len(the_jobs(1.0))} jobs" in line
