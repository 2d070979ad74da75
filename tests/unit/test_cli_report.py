"""``gpu-aware report``: the page, its pictures, and its sentences."""

import json
import re

import pytest
from click.testing import CliRunner

from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.simulator.recorded import RECORDED
from slurm_gpu_aware.simulator.report import plain_summary


def run(*args):
    return CliRunner().invoke(cli, list(args))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("results") / "out"
    args = "simulate --synthetic 30 --nodes 2 --gpus-per-node 4 -p packed -p pal --processes 1"
    done = run(*args.split(), "--out", str(made))
    assert done.exit_code == 0, done.stderr
    head = json.loads((made / "summary.json").read_text())
    (made / "summary.json").write_text(json.dumps({**head, "trace": "<script>alert(1)</script>"}))
    return made


def test_the_page_holds_everything_and_escapes_names(folder):
    done = run("report", str(folder), "--json")
    assert done.exit_code == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert len(files) == 6
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
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
    done = run("report", str(tmp_path))
    assert done.exit_code == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def head(*runs):
    keys = ("policy", "avg_jct_s", "avg_run_s")
    return {"trace": "the last 90 days", "runs": [dict(zip(keys, r, strict=True)) for r in runs]}


def test_the_summary_says_where_the_gain_comes_from():
    (line,) = plain_summary(head((RECORDED, 1000.0, 600.0), ("pal", 900.0, 575.0)))
    assert line == (
        "On the last 90 days, average completion time with pal would have been 10.0% shorter; "
        "75% of it from less waiting, the rest from faster runs."
    )
    lines = plain_summary(
        head(("packed", 100.0, 50.0), ("a", 110.0, 60.0), ("b", 90.0, 60.0), ("c", 90.0, 30.0))
    )
    assert lines[0].endswith("with a is 10.0% longer.")
    assert lines[1].endswith("all of it from less waiting, runs took longer.")
    assert lines[2].endswith("all of it from faster runs, jobs waited longer.")


def test_what_a_preempted_job_waits_is_waiting_not_a_slow_run(tmp_path):
    """LAS takes the GPUs from the old job: its first wait is 0, but it waits for the new one."""
    rows = ["job_id,submit_s,gpus,duration_s", "old,0,4,10000", "new,1000,4,800"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    args = ["simulate", str(tmp_path / "t.csv"), "--nodes", "1", "--gpus-per-node", "4"]
    args += ["-p", "packed", "--migration", "0", "--json"]
    fifo, las = (
        json.loads(run(*args, "--order", order).stdout)["runs"][0] for order in ("fifo", "las")
    )
    assert las["preemptions"] == 1
    assert fifo["avg_run_s"] == las["avg_run_s"] == pytest.approx(5400)
    assert fifo["avg_wait_s"] == 4500
    assert las["avg_wait_s"] == 0  # until the first start
    (line,) = plain_summary({"trace": "t", "runs": [{**fifo, "policy": "fifo"}, las]})
    assert "100% of it from less waiting" in line
