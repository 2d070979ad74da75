"""``gpu-aware-profile report`` and ``show --worst``."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from store_samples import ingest, report

from gpu_aware_profile.commands import report as commands_report
from gpu_aware_profile.report.report_data import read_report, stored_job_scores
from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.profile import LOADED, RunConditions
from slurm_gpu_aware.slurm.records import SlurmSwitch
from slurm_gpu_aware.store.database import Store, open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger
from slurm_gpu_aware.store.measurements import Run, add_runs

DAY_S = 86_400.0
PNG = b"\x89PNG\r\n"
NODES = ("r1-1", "r1-2", "r2-1")


def add_history(store: Store, at: float, slow: float = 1.0) -> None:
    """Idle and loaded runs of 4 GPUs of each node; GPU 2 of r2-1 is ``slow``, GPU 1 was unlucky."""
    for node in NODES:
        ingest(store, {**report(node, at), "timings": []})
        for name, base in (("A", 100.0), ("C", 50.0)):
            for slot in range(4):
                ms = base * (1.0 + 0.01 * slot) * (slow if (node, slot) == ("r2-1", 2) else 1.0)
                last = 3.0 * ms if (node, slot) == ("r2-1", 1) else ms * 1.002
                runs = [Run(node, slot, name, at, t) for t in (ms, ms * 0.999, last)]
                runs.append(Run(node, slot, name, at, 1.1 * ms, RunConditions(LOADED)))
                add_runs(store, runs, source="fake")


def jobs(store: Store) -> None:
    """Four jobs on each of two GPUs; those on r1-1:1 take 20% longer. Jobs with the site's default
    class, on GPU 2, tell nothing of a class."""
    ledger = Ledger(store)
    start = time.time() - 2 * DAY_S
    for number in range(12):
        slot, run_s = number % 2, 1000.0 * (1.2 if number % 2 else 1.0)
        asked = {"name": "train", "class": "A", "gpus": 1, "class_from": "given"}
        if number >= 8:
            slot, asked["class_from"] = 2, "site" if number % 2 else "nothing"
        outcome = {"state": "COMPLETED", "start_s": start}
        decision = Decision(
            str(number), "alice", start, start, asked, "eft", ["r1-1"], [[slot]], 1.0, "node", 1.0,
            state="ended", outcome_at=start + run_s, outcome=outcome,
        )  # fmt: skip
        ledger.add_decision(decision)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "store.db"
    with open_store(file) as store:
        add_history(store, time.time() - 40 * DAY_S)
        add_history(store, time.time() - 3600.0, slow=1.5)
        jobs(store)
        recompute_scores(store)
    (tmp_path / "config.toml").write_text("")
    return file


def called(path: Path, *words: str) -> Result:
    own = ["--store", str(path), "--config", str(path.with_name("config.toml"))]
    return gpu_aware_profile(words[0], *own, *words[1:])


def test_what_is_reported(path: Path) -> None:
    now = time.time()
    with open_store(path, readonly=True) as store:
        found = read_report(store, Config(), [], now - 30 * DAY_S, now)
    assert found.classes == ["A", "C"]
    rows = {(row.node, row.slot): row for row in found.of_class("A")}
    slow, unlucky = rows["r2-1", 2], rows["r2-1", 1]
    assert slow.score > 1.4
    assert slow.worst_run == pytest.approx(slow.score, rel=0.01)
    assert unlucky.score < 1.02
    assert unlucky.worst_run == pytest.approx(3.0 * unlucky.score)
    assert slow.loaded == pytest.approx(1.1)
    assert [(c.node, c.slot) for c in found.drift.slower] == [("r2-1", 2)] * 2
    racks = {node: place.rack for node, place in found.places.items()}
    assert racks == {"r1-1": "r1", "r1-2": "r1", "r2-1": "r2"}


def test_scores_from_jobs_stand_beside_those_of_the_sweep(path: Path) -> None:
    now = time.time()
    with open_store(path, readonly=True) as store:
        scores = {s[:3]: (round(s.score, 3), s.jobs) for s in stored_job_scores(store, now)}
        row = next(r for r in read_report(store, Config(), [], 0.0, now).rows if r.job_score)
    assert scores == {("r1-1", 0, "A"): (0.909, 4), ("r1-1", 1, "A"): (1.091, 4)}
    assert row.score == pytest.approx(1.0, abs=0.03)  # not mixed in


def test_scores_from_jobs_are_shown(path: Path) -> None:
    answer = json.loads(called(path, "show", "--jobs", "--json").stdout)
    rows = [(j["node"], j["gpu"], round(j["job_score"], 3), j["jobs"]) for j in answer["jobs"]]
    assert rows == [("r1-1", 1, 1.091, 4), ("r1-1", 0, 0.909, 4)]
    assert answer["jobs"][0]["pm_score"] == pytest.approx(1.0, abs=0.03)
    lines = called(path, "show", "--jobs").stdout.splitlines()
    assert lines[0].split() == ["class", "node", "GPU", "PM", "score", "from", "jobs", "jobs"]
    assert len(lines) == 4
    assert called(path, "show", "--jobs", "--csv").exit_code == 2


def test_slurms_topology_gives_the_racks(path: Path) -> None:
    switches = [SlurmSwitch("leaf", 0, frozenset(NODES))]
    with open_store(path, readonly=True) as store:
        found = read_report(store, Config(), switches, 0.0, time.time())
    assert {place.rack for place in found.places.values()} == {"leaf"}


def test_gpus_under_a_power_profile_are_named(path: Path) -> None:
    pytest.importorskip("matplotlib")
    raw = report("r1-1", time.time())
    assert called(path, "show", "--json").stdout.count("offered") == 0
    raw["gpus"][2] |= {"power_profiles": "max_p max_q", "requested_profiles": "max_q"}
    raw["gpus"][1] |= {"power_profiles": "max_p max_q", "requested_profiles": ""}
    with open_store(path) as store:
        ingest(store, raw)
    found = json.loads(called(path, "show", "--json").stdout)["power_profiles"]
    assert [(one["gpu"], one["requested"]) for one in found] == [(1, ""), (2, "max_q")]
    assert {one["offered"] for one in found} == {"max_p max_q"}
    lines = [line.split() for line in called(path, "show").stdout.splitlines()]
    assert ["r1-1", "2", "max_q", "max_p", "max_q"] in lines
    text = page_of(path)
    assert "Note: power profile max_q is requested on r1-1:2: their times" in text
    assert text.count("power profile") == 1


def page_of(path: Path) -> str:
    """The page that report writes."""
    page = path.with_name("gpus.html")
    succeeded(called(path, "report", "--html", str(page)))
    return page.read_text(encoding="utf-8")


def test_a_page_needs_no_other_file(path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = page_of(path)
    assert not re.search(r"(?:src|href)='(?!data:)", text)
    assert text.count("src='data:image/png;base64,") == 8
    for words in ("12 GPUs of 3 nodes", "<td>r2-1:2</td>", "Scores from finished jobs", "By rack"):
        assert words in text
    assert "racks are what the node names have before their last number" in text


def test_pictures_are_written(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    succeeded(called(path, "report", "--png", str(tmp_path / "png")))
    files = sorted((tmp_path / "png").iterdir())
    assert [f.stem for f in files] == sorted(
        ["change", "distribution", "jobs", "map", "neighbours", "racks", "runs", "violins"]
    )
    assert all(file.read_bytes().startswith(PNG) for file in files)


def test_without_matplotlib_the_page_has_the_tables(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    done = succeeded(called(path, "report", "--html", str(tmp_path / "gpus.html")))
    assert "no pictures: matplotlib is not installed" in done.stderr
    text = (tmp_path / "gpus.html").read_text(encoding="utf-8")
    assert "<td>r2-1:2</td>" in text
    assert "No pictures: matplotlib is not installed" in text
    assert called(path, "report", "--png", str(tmp_path / "png")).exit_code == 1


def test_one_gpu_with_one_run_is_enough(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report("n1", time.time(), {0: 100.0}))
        recompute_scores(store)
    (tmp_path / "config.toml").write_text("")
    text = page_of(path)
    assert text.count("src='data:image/png") == 3  # distribution, violins, map
    assert "no GPU was measured twice" in text


def test_an_empty_store_and_no_file_are_said(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    (tmp_path / "config.toml").write_text("")
    assert "no scores yet" in refusal(called(path, "report", "--png", str(tmp_path / "x")))
    refusal(called(path, "report"), 2)


def test_names_from_outside_are_escaped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path) as store:
        store.execute("UPDATE gpus SET model = '<script>x</script>'")
    monkeypatch.setattr(commands_report, "_drawn", lambda found, folder: [])
    assert "<script>" not in page_of(path)


def test_the_worst_gpus_of_each_class(path: Path) -> None:
    answer = json.loads(called(path, "show", "--worst", "2", "--json").stdout)
    worst = [(g["class"], g["node"], g["gpu"]) for g in answer["gpus"]]
    assert next(gpu for gpu in worst if gpu[0] == "A") == ("A", "r2-1", 2)
    assert [name for name, *_ in worst] == ["A", "A", "C", "C"]
    assert answer["summary"][0]["gpus"] == 12
    assert called(path, "show", "--worst", "0").exit_code == 2
