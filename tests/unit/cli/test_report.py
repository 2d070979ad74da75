"""``gpu-aware report``: the page, its pictures, and its sentences."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import gpu_aware, refusal, succeeded
from matplotlib.figure import Figure

from slurm_gpu_aware.simulator.files import load_results
from slurm_gpu_aware.simulator.history import BASELINE, RECORDED
from slurm_gpu_aware.simulator.pictures import _HATCHES, PICTURES, line_look
from slurm_gpu_aware.simulator.report import page_text, plain_summary


@pytest.fixture(scope="module")
def saved_results(tmp_path_factory):
    made = tmp_path_factory.mktemp("results") / "out"
    args = "simulate --synthetic 30 --nodes 2 --gpus-per-node 4 -p packed -p pal --processes 1"
    succeeded(gpu_aware(*args.split(), "--out", str(made)))
    head = json.loads((made / "summary.json").read_text())
    (made / "summary.json").write_text(json.dumps({**head, "trace": "<script>alert(1)</script>"}))
    return made


def test_the_page_holds_everything_and_escapes_names(saved_results):
    done = succeeded(gpu_aware("report", str(saved_results), "--json"))
    files = json.loads(done.stdout)["files"]
    assert len(files) == 7
    page = (saved_results / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 6
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "packed" in page
    assert "<script>" not in page
    for name in files[1:]:
        with open(name, "rb") as picture:
            assert picture.read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("content", [None, "{", '{"runs": [{}]}', "[]"])
def test_no_folder_of_results_is_one_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    said = refusal(gpu_aware("report", str(tmp_path)))
    assert str(tmp_path) in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("field", "of"), [("error", "gain"), ("low", "gain"), ("avg_jct_s", "")])
def test_a_folder_of_an_older_version_asks_for_a_new_simulation(saved_results, tmp_path, field, of):
    made = shutil.copytree(saved_results, tmp_path / "older")
    summary = json.loads((made / "summary.json").read_text())
    gain = {"low": 0.1, "mean": 0.2, "high": 0.3, "error": 0.01}
    summary["runs"][1] |= {"gain": gain}
    summary["seeds"] = 8
    del (gain if of else summary["runs"][1])[field]
    (made / "summary.json").write_text(json.dumps(summary))
    said = refusal(gpu_aware("report", str(made)))
    assert f"{made}: '{field}' is missing: an older version wrote the folder" in said
    assert "simulate again: gpu-aware simulate" in said
    assert "damaged" not in said


def head(*runs):
    keys = ("policy", "avg_jct_s", "avg_run_s")
    return {"trace": "the last 90 days", "runs": [dict(zip(keys, r, strict=True)) for r in runs]}


def test_the_summary_says_where_the_gain_comes_from():
    """Gains are told against the simulation of what Slurm does, which itself is not the record."""
    past = head((RECORDED, 2000.0, 600.0), (BASELINE, 1000.0, 600.0), ("pal", 900.0, 575.0))
    gain, calibration = plain_summary(past)
    assert gain == (
        "On the last 90 days, average completion time with pal would have been 10.0% shorter than "
        "with slurm, Slurm's own placement; 75% of it from less waiting, the rest from "
        "faster runs."
    )
    assert calibration == (
        "Calibration: simulated with slurm, average completion time is 50.0% shorter than "
        "Slurm recorded; that difference is the model's, not a gain."
    )
    exact = plain_summary(head((RECORDED, 1000.0, 600.0), (BASELINE, 1000.2, 600.0)))
    assert exact[0].endswith("average completion time is what Slurm recorded.")


@pytest.mark.parametrize(
    ("jct", "run", "ending"),
    [
        (110, 60, "with a is 10.0% longer."),
        (90, 60, "10.0% shorter; all of it from less waiting, runs took longer."),
        (90, 30, "10.0% shorter; all of it from faster runs, jobs waited longer."),
        (90, 50, "10.0% shorter; all of it from less waiting."),
        (90, 50.01, "10.0% shorter; all of it from less waiting."),
        (90, 40.01, "10.0% shorter; all of it from faster runs."),
        (90, 48, "10.0% shorter; 80% of it from less waiting, the rest from faster runs."),
        (99.99, 50, "with a is the same."),
    ],
)
def test_the_summary_splits_what_is_saved(jct, run, ending):
    (line,) = plain_summary(head(("packed", 100.0, 50.0), ("a", jct, run)))
    assert line.endswith(ending)


def test_the_page_compares_one_set_of_jobs_and_says_which(tmp_path):
    """A job of 64 GPUs ended in the record of some other cluster, and never runs on 16."""
    rows = ["1|1000|1000|100|COMPLETED|gres/gpu=4", "2|1000|1000|200|COMPLETED|gres/gpu=64"]
    summary, runs = what_if(tmp_path, [RECORD, *rows], "--nodes", "4")
    assert [one.label for one in runs] == [RECORDED, BASELINE, "pal"]
    assert [one.columns["gpus"].tolist() for one in runs] == [[4.0]] * 3
    assert {float(one.used_gpus.max()) for one in runs} == {4.0}
    page = page_text(summary, [])
    assert "those of the 1 job that ended in every run; 1 did not" in page
    assert "<th>ended</th><th>killed</th><th>never ran</th>" in page
    assert "partitions, GPU models" in page
    assert "<h2>What the record lacks</h2><ul><li>no column TimelimitRaw: " in page
    cells = re.findall(r"<tr><td>pal</td><td>(\d+)</td><td>0</td><td>(\d+)</td>", page)
    assert cells == [("1", "1")]


def test_every_line_looks_different_without_its_colour():
    looks = [line_look(number) for number in range(40)]
    assert len(set(looks)) == 40
    assert len(set(_HATCHES)) == len(_HATCHES) >= 14


def test_what_a_preempted_job_waits_is_waiting_not_a_slow_run(tmp_path):
    """LAS takes the GPUs from the old job: its first wait is 0, but it waits for the new one."""
    rows = ["job_id,submit_s,gpus,duration_s", "old,0,4,10000", "new,1000,4,800"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    args = ["simulate", str(tmp_path / "t.csv"), "--nodes", "1", "--gpus-per-node", "4"]
    args += ["-p", "packed", "--migration", "0", "--json", "--order"]
    done = [gpu_aware(*args, order).stdout for order in ("fifo", "las")]
    fifo, las = (json.loads(text)["runs"][0] for text in done)
    assert las["preemptions"] == 1
    assert fifo["avg_run_s"] == las["avg_run_s"] == pytest.approx(5400)
    assert fifo["avg_wait_s"] == 4500
    assert las["avg_wait_s"] == 0  # until the first start
    (line,) = plain_summary({"trace": "t", "runs": [{**fifo, "policy": "fifo"}, las]})
    assert line.endswith("; all of it from less waiting.")


RECORD = "JobID|Submit|Start|ElapsedRaw|State|AllocTRES"
DAY = 86_400
TIMES = range(87 * DAY, 87 * DAY + 5400, 600)
YOUNG = [
    RECORD,
    *(f"{i}|{at}|{at + 4}|40|COMPLETED|gres/gpu=4" for i, at in enumerate(TIMES)),
    f"99|{90 * DAY - 9}|{90 * DAY - 9}|9|RUNNING|gres/gpu=1",
]
"""Nine jobs within an hour and a half, on the 88th of 90 days."""


@pytest.fixture(scope="module")
def young(tmp_path_factory):
    return what_if(tmp_path_factory.mktemp("young"), YOUNG, "--nodes", "2", "--days", "90")


def what_if(folder, rows, *more):
    """The comparison with a history, on nodes of four GPUs."""
    (folder / "history").write_text("\n".join(rows))
    args = ["simulate", "--what-if", "--sacct", str(folder / "history"), "-p", "pal", *more]
    args += ["--processes", "1", "--gpus-per-node", "4", "--out", str(folder / "out")]
    succeeded(gpu_aware(*args))
    return load_results(folder / "out")


def drawn_by(name, head, runs):
    ax = Figure().add_subplot()
    next(draw for own, _, _, draw in PICTURES if own == name)(ax, runs, head)
    return ax


@pytest.mark.parametrize("name", ["wait", "gpus-in-use"])
def test_a_young_history_fills_its_pictures(young, name):
    ax = drawn_by(name, *young)
    assert ax.get_xlabel().endswith("the first one, min" if name == "wait" else "submission, min")
    assert 80 < ax.get_xlim()[1] < 90
    for line in ax.lines[:3]:
        times = line.get_xdata()
        assert min(times) < 8
        assert max(times) > 70
        assert len(times) > 5
    if name == "gpus-in-use":
        recorded = ax.lines[0]
        area = sum(recorded.get_ydata()) * (recorded.get_xdata()[1] - recorded.get_xdata()[0])
        assert area == pytest.approx(9 * 4 * 40 / 60, rel=0.01)


def test_times_of_the_table_are_said_as_people_say_them(young):
    head, _ = young
    page = page_text(head, [])
    for name in ("avg JCT", "gain", "slower", "median JCT", "p99 JCT", "avg wait", "makespan"):
        assert f"<th>{name}</th>" in page
    start = "<td>as recorded</td><td>9</td><td>0</td><td>0</td><td>44 s</td>"
    assert f"{start}<td>n/a</td><td>n/a</td>" in page
    hours = [{**one, "avg_jct_s": 250.2 * one["avg_jct_s"]} for one in head["runs"]]
    assert "<td>3 h 3 min</td>" in page_text({**head, "runs": hours}, [])


def seeds_head(low, mean, high, error=0.01):
    """Summary of eight seeds in which pal gains so much."""
    gain = {"low": low, "mean": mean, "high": high, "error": error}
    runs = [
        {"policy": "packed", "avg_jct_s": 100.0, "avg_run_s": 50.0, "gain": None, "each_job": None},
        {"policy": "pal", "avg_jct_s": 100.0 * (1 - mean), "avg_run_s": 50.0, "gain": gain},
    ]
    runs[1]["each_job"] = {"median": 1.0, "p5": 0.8, "p95": 1.3, "slower": 0.4}
    return {"trace": "this site", "runs": runs, "seeds": 8}


def test_where_placement_does_not_pay_it_is_said():
    (line,) = plain_summary(seeds_head(-0.012, 0.004, 0.02))
    assert line == (
        "On this site, packed is as good as pal, as far as 8 seeds tell: gain 0.4% (-1.2 to 2.0); "
        "40% of the jobs take longer than with packed."
    )
    (line,) = plain_summary(seeds_head(-0.06, 0.04, 0.09, error=0.025))
    assert "packed is as good as pal, as far as 8 seeds tell: gain 4.0%" in line
    (line,) = plain_summary(seeds_head(-0.012, 0.04, 0.09))
    assert line.startswith(
        "On this site, against packed, average completion time with pal is 4.0% shorter (gains of "
        "8 seeds: -1.2% to 9.0%; the sign is not the same in all); "
    )
    (line,) = plain_summary(seeds_head(0.01, 0.04, 0.09))
    assert "the sign" not in line
    (line,) = plain_summary(seeds_head(-0.09, -0.04, -0.01))
    assert "is 4.0% longer (gains of 8 seeds: -9.0% to -1.0%)" in line


def test_one_seed_is_told_from_certainty():
    head = {**seeds_head(0.04, 0.04, 0.04), "seeds": 1}
    assert "says nothing about chance; with --seeds 8" in plain_summary(head)[-1]


def test_the_picture_of_each_job_leaves_out_the_first_policy_and_the_record(young):
    ax = drawn_by("jct-ratio", *young)
    labels = [line.get_label() for line in ax.lines if not line.get_label().startswith("_")]
    assert labels == ["pal"]
    assert ax.get_xscale() == "log"
    assert drawn_by("jct-boxes", *young).get_yscale() == "log"


@pytest.mark.parametrize(
    ("shortest_s", "longest_s", "ticks"),
    [
        (20.0, 400_000.0, ["1 min", "10 min", "1 h", "6 h", "1 d"]),
        (100.0, 2_000.0, ["2 min", "5 min", "10 min", "20 min", "30 min"]),
        (0.002, 0.05, ["2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]),
    ],
)
def test_completion_times_stand_at_the_axis_as_people_say_them(young, shortest_s, longest_s, ticks):
    head, runs = young
    times = np.geomspace(shortest_s, longest_s, len(runs[0].columns["jct_s"]))
    shown = [replace(run, columns={**run.columns, "jct_s": times}) for run in runs]
    ax = drawn_by("jct-cdf", head, shown)
    assert [label.get_text() for label in ax.get_xticklabels()] == ticks
    assert ax.get_xlabel() == "completion time (log scale)"
    assert {label.get_text() for label in drawn_by("jct-boxes", head, shown).get_yticklabels()}


def test_an_axis_of_nearly_equal_times_has_ticks(young):
    head, runs = young
    times = np.linspace(3_600.0, 3_700.0, len(runs[0].columns["jct_s"]))
    shown = [replace(run, columns={**run.columns, "jct_s": times}) for run in runs]
    labels = [label.get_text() for label in drawn_by("jct-cdf", head, shown).get_xticklabels()]
    assert len(labels) == len(set(labels)) == 3


@pytest.mark.parametrize("most", [1.05, 1.4, 5.0, 40.0])
def test_an_axis_of_ratios_has_ticks_beside_1(young, most):
    head, runs = young
    base = runs[0].columns["jct_s"]
    ratios = np.geomspace(1 / most, most, len(base))
    first = replace(runs[0], label="packed", columns={**runs[0].columns, "jct_s": base + 1})
    columns = {**first.columns, "jct_s": (base + 1) * ratios}
    ax = drawn_by("jct-ratio", head, [first, replace(first, label="pal", columns=columns)])
    low, high = ax.get_xlim()
    assert sum(low <= tick <= high for tick in ax.get_xticks()) >= 3


@pytest.mark.parametrize("given", [[0.97, 0.98], [0.8, 0.93, 0.97, 0.98, 1.0, 1.3]])
def test_numbers_of_bars_are_not_struck_through(young, given):
    """Just below 1 they would stand on the line there."""
    head, runs = young
    shown = [
        replace(
            runs[0],
            label=str(i),
            app_class=("A",) * 3 + ("B",) * 3 + ("C",) * 3,
            columns={**runs[0].columns, "slowdown": runs[0].columns["slowdown"] * 0 + value},
        )
        for i, value in enumerate(given)
    ]
    figure = Figure(figsize=(9, 5))
    ax = figure.add_subplot()
    next(draw for own, _, _, draw in PICTURES if own == "slowdown")(ax, shown, head)
    figure.canvas.draw()
    line = ax.transData.transform((0, 1.0))[1]
    for text in ax.texts:
        box = text.get_window_extent()
        assert not box.y0 <= line <= box.y1, text.get_text()
    assert [text.get_text() for text in ax.texts[::3]] == [f"{value:.2f}" for value in given]


def test_without_matplotlib_the_extra_is_named_as_the_readme_installs(saved_results, monkeypatch):
    """The hint named a package that no registry has."""
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    for args in (
        ["report", str(saved_results)],
        ["place", "-g2", "--machine", "dgx-1-v100", "--plot", "p"],
    ):
        assert f"{sys.prefix}/bin/pip install '.[plots]'" in refusal(gpu_aware(*args))
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert "pip install '.[plots]'" in readme
