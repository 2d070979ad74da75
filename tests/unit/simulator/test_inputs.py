"""Clusters with drawn scores, and jobs from the other kinds of files."""

import os
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.sacct_trace import read_trace
from slurm_gpu_aware.simulator.simulated_site import (
    draw_scores,
    read_timings,
    stored_site,
    synthetic_site,
    with_scores,
)
from slurm_gpu_aware.simulator.trace import poisson_trace

SHARED = Path(
    os.environ.get("GPU_AWARE_SHARED", Path(__file__).parents[3].parent / "shared" / "data")
)


def timings(tmp_path, nodes=6, width=4, name="a", runs=1):
    rows = ["gpu,node,value_ms"]
    for node in range(nodes):
        for gpu in range(width):
            value = 100 + 10 * node + gpu
            rows += [f"{gpu},n{node},{value + 1000 * run}" for run in range(runs)]
    file = tmp_path / f"{name}.csv"
    file.write_text("\n".join(rows) + "\n")
    return read_timings(file)


def test_gpus_are_drawn_once_each_and_the_same_for_all_classes(tmp_path):
    profile = {"A": timings(tmp_path), "C": timings(tmp_path, name="c")}
    exists = np.ones((5, 4), dtype=bool)
    draw = draw_scores(profile, exists, "gpus", seed=3)
    assert len(np.unique(draw.scores["A"])) == 20
    np.testing.assert_array_equal(draw.scores["A"], draw.scores["C"])
    again = draw_scores(profile, exists, "gpus", seed=3)
    np.testing.assert_array_equal(draw.scores["A"], again.scores["A"])
    other = draw_scores(profile, exists, "gpus", seed=4)
    assert (draw.scores["A"] != other.scores["A"]).any()


def test_whole_nodes_keep_their_gpus_together(tmp_path):
    scores = draw_scores({"A": timings(tmp_path)}, np.ones((5, 4), bool), "nodes").scores["A"]
    median = 126.5  # of 100..103, 110..113, ... 150..153
    times = np.rint(scores * median).astype(int)
    assert sorted(times[:, 0] % 10) == [0] * 5
    assert (times - times[:, :1] == [0, 1, 2, 3]).all()


def test_scores_are_relative_to_the_median_of_medians(tmp_path):
    profile = {"A": timings(tmp_path, nodes=1, width=3, runs=3)}
    scores = draw_scores(profile, np.ones((1, 3), bool), "gpus").scores["A"]
    assert sorted(scores[0]) == pytest.approx([1100 / 1101, 1, 1102 / 1101])


def test_single_runs_may_be_drawn_many_times(tmp_path):
    profile = {"A": timings(tmp_path, nodes=1, width=2, runs=2)}
    scores = draw_scores(profile, np.ones((10, 4), bool), "runs").scores["A"]
    median = (600 + 601) / 2
    known = np.array([100, 101, 1100, 1101]) / median
    assert np.isclose(scores[..., None], known).any(axis=-1).all()
    assert len(np.unique(scores)) > 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("gpus", "24 GPUs are too few to draw 28"),
        ("nodes", "fewer than 7 nodes with 4 GPUs"),
        ("dice", "unknown draw 'dice'; known: gpus, nodes, repeat, runs"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, how, reason):
    with pytest.raises(SourceError, match=reason):
        draw_scores({"A": timings(tmp_path)}, np.ones((7, 4), bool), how)


def test_bad_timing_rows_have_line_numbers(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("gpu,node,value_ms\n0,n1,5\n1,n1,fast\n,n1,5\n2,n1,-1\n")
    assert [row.line for row in read_timings(file).bad_rows] == [3, 4, 5]
    file.write_text("gpu,node\n0,n1\n")
    with pytest.raises(SourceError, match="no column 'value_ms'"):
        read_timings(file)


def test_the_planner_sees_bins_and_jobs_the_truth(tmp_path):
    base = synthetic_site(5, 4, penalties={"node": 1.0, "cluster": 1.7})
    site = with_scores(base, draw_scores({"A": timings(tmp_path)}, base.cluster.exists))
    assert len(np.unique(site.cluster.score("A"))) < len(np.unique(site.truth["A"])) == 20
    assert site.as_json()["scores"]["A"]["bins"] == len(np.unique(site.cluster.score("A")))
    assert site.cluster.levels[-1].penalty == 1.7


def test_clusters_are_checked():
    assert synthetic_site(2, machine_name="dgx-1-v100").cluster.shape == (2, 8)
    for wrong in ({"machine_name": "dgx-9"}, {"gpus_per_node": 65}, {}):
        with pytest.raises(SourceError):
            synthetic_site(2, **wrong)
    with pytest.raises(SourceError, match="has 8 GPUs, not 4"):
        synthetic_site(2, 4, machine_name="dgx-1-v100")


def test_the_stores_raw_scores_are_the_truth():
    cluster = synthetic_site(2, 2).cluster
    site = stored_site(cluster, {"A": {("n2", 1): 1.2, ("gone", 0): 9.0, ("n1", 7): 9.0}})
    assert site.truth["A"].tolist() == [[1.0, 1.0], [1.0, 1.2]]


def test_synthetic_traces_depend_on_their_seed_alone():
    first = poisson_trace(2000, 30.0, seed=1)
    assert first.jobs == poisson_trace(2000, 30.0, seed=1).jobs
    assert first.jobs != poisson_trace(2000, 30.0, seed=2).jobs
    gaps = np.diff([job.submit_s for job in first.jobs])
    assert gaps.mean() == pytest.approx(120, rel=0.1)
    assert gaps.std() == pytest.approx(120, rel=0.1)  # exponential
    assert {job.app_class for job in first.jobs} == set("ABC")
    with pytest.raises(SourceError):
        poisson_trace(10, 1e-9)


def test_a_trace_without_run_times_is_told_so(tmp_path):
    file = tmp_path / "sia.csv"
    file.write_text("job_id,name,submit_s,gpus,batch_size,model\n0,c,107,6,2048,cifar10\n")
    with pytest.raises(SourceError, match="jobs without run times cannot be simulated"):
        read_trace(file)


@pytest.mark.shared
def test_every_kind_of_shared_trace_is_read_or_refused_with_a_sentence():
    traces = SHARED / "traces"
    if not traces.is_dir():
        pytest.skip("no measured data here")
    seen = {}
    alike = {f"synergy-like-{rate}.csv" for rate in (6, 8, 10, 12, 14)}  # one of six is enough
    for file in sorted(traces.glob("**/*.csv")):
        kind = file.parent.name
        if file.name in alike or kind == "alibaba":
            continue
        if kind.startswith("sia"):
            with pytest.raises(SourceError, match="without run times"):
                read_trace(file)
            continue
        trace = read_trace(file, class_column="class_code" if kind == "pal" else "class")
        assert trace.bad_rows == ()
        seen.setdefault(kind, []).append((len(trace.jobs), sum(trace.skipped.values())))
    assert seen["pal"] == [(160, 0)] * 8
    assert seen["philly"] == [(82_247, 0), (4000, 0)]


def test_sacct_files_are_recognised(tmp_path):
    file = tmp_path / "history"
    file.write_text(
        "JobID|Submit|Start|ElapsedRaw|State|AllocTRES\n1|10|20|30|COMPLETED|gres/gpu=2"
    )
    (job,) = read_trace(file).jobs
    assert (job.gpus, job.recorded_start_s, job.duration_s) == (2, 10.0, 30.0)
    with pytest.raises(SourceError, match="cannot be read"):
        read_trace(tmp_path / "none")
