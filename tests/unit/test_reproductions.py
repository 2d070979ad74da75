"""The scripts that reproduce papers: tiny runs on synthetic data, and what is not there."""

import re
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slurm_gpu_aware.features.energy.stage import EXACT
from slurm_gpu_aware.features.models.performance_model import PerformanceSample
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, read_csv

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks" / "reproduce").glob("*.py"))


@pytest.fixture(scope="module")
def scripts():
    """The scripts as modules; they import each other by bare names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks" / "reproduce")
        yield SimpleNamespace(**{name: import_module(name) for name in NAMES})
    for name in NAMES:
        del sys.modules[name]


@pytest.fixture
def partial(tmp_path, monkeypatch):
    """A folder of data of which nearly everything is missing."""
    folder = tmp_path / "traces" / "sia-philly" / "pal"
    folder.mkdir(parents=True)
    (folder / "workload-1.csv").write_text("job_id,submit_s,gpus,duration_s\n")
    monkeypatch.setenv("GPU_AWARE_SHARED", str(tmp_path))
    return tmp_path


def test_a_part_of_the_data_is_as_good_as_none(scripts, partial, capsys):
    assert scripts.common.shared("traces/sia-philly/pal/workload-1.csv") == partial
    assert scripts.common.shared("traces/sia-philly/pal/workload-1.csv", "no/such.csv") is None
    assert f"{partial}/no/such.csv is not there: synthetic data" in capsys.readouterr().err


def test_pal_on_synthetic_data(scripts, partial, monkeypatch):
    monkeypatch.setattr(scripts.pal_synergy, "NODES", 4)
    tiny = scripts.pal_bench.Size(1, 2, (1.0, 3.0), (8,), 2, (8,), 8, ("fifo",), 8, 12)
    text = scripts.pal.section(tiny, 1)
    assert "synthetic data of the same shape" in text
    for words in (
        *("1 of 16", "no variability (control)", "fifo, 8 jobs/h"),
        *("pal+mapa:non-sticky, EASY backfill", "las, 8 jobs/h, a move costs 60 s"),
        "PAL, non-sticky, as published",
    ):
        assert words in text
    assert "What the gain rests on: 2 other draws" in text
    control = next(line for line in text.splitlines() if line.startswith("| no variability"))
    assert control.endswith(f"| 1.00 |{4 * ' 0.0% (0.0% to 0.0%) |'}")


def test_eft_on_synthetic_data(scripts, partial, monkeypatch):
    monkeypatch.setattr(scripts.eft, "SYNERGY_NODES", 4)
    text = scripts.eft.section(scripts.eft.Count(1, 1, 1, (8,), 1, 6, 30, more_draws=1), 1)
    assert "synthetic data of the same shape" in text
    assert "(a part of the runs)" in text
    for row in ("Sia-Philly | eft:moves", "Sia-Philly, other times + EASY | pal", "Synergy-like"):
        assert f"| {row} | " in text
    others = text.partition("Other gains of eft over packed:")[2]
    for known in ("run times", "earlier runs", "time limits"):
        assert f"| Sia-Philly + EASY | {known} | Longhorn, medians | " in others
    assert "nan" not in text


def test_performance_models_on_synthetic_data(scripts):
    text = scripts.powerflow_models.section(None)
    assert "synthetic data of the same shape" in text
    for words in ("| bert | 5 |", "| A100, energy | 1 |", "| 6 clocks |", "median error"):
        assert words in text
    assert "nan" not in text


def test_what_limits_the_prediction_of_step_times(scripts):
    """On two GPUs the times are a line with one fall; on one GPU there is no synchronisation."""

    def samples(*times, nodes=1, gpus=2):
        return [
            PerformanceSample(gpus, nodes, batch, 1410.0, time_s)
            for batch, time_s in zip((1.0, 2.0, 4.0), times, strict=True)
        ]

    limits = scripts.powerflow_limits
    assert limits.roughness(samples(1.0, 2.0, 4.0)) == (0.0, 0.0)
    assert limits.roughness(samples(2.0, 1.0, 2.0)) == (1.0, 0.5)
    steps, computing = samples(2.0, 3.0, 5.0), samples(1.9, 2.9, 4.6)
    assert limits.sync_range(steps, computing) == pytest.approx(4.0)
    assert np.isnan(limits.sync_range(samples(1.0, 2.0, 3.0, gpus=1), samples(1.0, 2.0, 3.0)))
    spread = samples(1.0, 2.0, 4.0, nodes=2, gpus=8) + samples(1.0, 1.0, 1.0, nodes=4, gpus=8)
    names = ("yolov3/dgx", "imagenet/azure", "ncf/azure")
    assert limits.node_spread(spread) == pytest.approx((0.41 + 0.29 + 1.0 + 0.5) / 6, abs=0.01)
    assert limits.node_spread(samples(1.0, 2.0, 4.0)) == 0.0
    errors = dict.fromkeys(names, 0.2) | {names[2]: 0.8}
    rough = dict.fromkeys(names, (0.0, 0.0)) | {names[0]: (0.1, 0.0)}
    said = " ".join(limits.reasons(dict.fromkeys(names, spread), rough, errors))
    assert "in 1 of these 3 sets" in said
    assert "in 1 others" in said
    assert "Neither is so in 1: ncf/azure (80.0%)." in said
    assert "up to 4.0 times as long" in said
    assert len(list(limits.reasons({}, {}, {}))) == 1


def test_the_draw_like_the_authors_is_none_of_the_others(scripts):
    assert scripts.pal_tables.other_seeds(20, 2) == [0, 1, *range(3, 21)]
    assert scripts.pal_tables.other_seeds(20, 99) == list(range(20))
    assert scripts.pal_bench.FULL.draws >= 20


def test_mapa_with_few_jobs(scripts, monkeypatch):
    monkeypatch.setattr(scripts.mapa, "JOBS", 8)
    monkeypatch.setattr(scripts.mapa, "MACHINES", ("mapa-dgx-v", "mapa-summit"))
    text = scripts.mapa.section(range(1), 1, composed=True)
    assert "one job per second" in text
    for machine in ("mapa-dgx-v", "mapa-summit"):
        assert f"| {machine}, pal+mapa, EASY backfill |" in text


def test_topology_aware_on_synthetic_data(scripts, partial, monkeypatch):
    monkeypatch.setattr(scripts.topo, "SCENARIO_2", (8, 2))
    text = scripts.topo.section(scripts.topo.Size(((6, 2),), second=True), 1)
    assert "synthetic data of the same shape" in text
    assert "synthetic-6: 6 jobs, 2 machines" in text
    assert "Scenario 2: 8 jobs, 2 machines, arrivals 100 times as fast" in text
    assert "made up" in text


def test_powerflow_against_exhaustive_search(scripts):
    text = scripts.powerflow_sizes.section(12)
    for row in ("`features/power/powerflow.py`", "Algorithm 1, gain divided by energy"):
        assert text.count(f"| {row} | ") == 2
    assert "nan" not in text
    assert "-" not in text.replace("---", "").replace("--:", "")  # nothing is below the optimum


def test_sts_on_a_tiny_cluster(scripts, partial, monkeypatch):
    monkeypatch.setattr(scripts.sts_instances, "JOBS_PER_NODE", 2)
    text = scripts.sts.section(scripts.sts.Size((2, 1), ((2, 1), (3, 1)), (2, 1), (2, 1), 2), 1)
    assert "synthetic data of the same shape" in text
    for words in (
        *("| STS | 1.00 / 1.00 |", "| avgDP |", "(published: 29%)", "| 3 | poisson high | 2 |"),
        *("| epochs: as measured", "| `eft:sts` |", "| limit 1.5 times, GPUs differ |"),
    ):
        assert words in text
    assert "jobs that got fewer, in all runs: 0" in " ".join(text.split())
    assert "nan" not in text


def made_jobs(scripts, nodes, arrivals="poisson high", **setting):
    """Jobs of the paper's networks on nodes of K80."""
    made = scripts.sts_instances
    own = made.Setting(**setting)
    rng = np.random.default_rng(5)
    return made.instance(made.paper_networks(), ("K80",), nodes, arrivals, rng, own).jobs


def due_jobs(scripts, count):
    """Jobs of which none runs, on nodes of four GPUs."""
    job = scripts.sts_optimum.DueJob
    return [
        job(str(n), j.due_s - j.submit_s, j.late_cost, j.work, j.speeds, movable=False)
        for n, j in enumerate(made_jobs(scripts, 2)[:count])
    ]


def test_jobs_with_due_dates_arrive_at_the_rate(scripts):
    """A quarter of the rate: four times the time between them, the same jobs otherwise."""
    ways = (("poisson high", 1.0), ("poisson high", 0.25), ("poisson low", 1.0))
    made = [made_jobs(scripts, 4, arrivals, rate=rate) for arrivals, rate in ways]
    for high, quarter, low in zip(*made, strict=True):
        assert quarter.submit_s == pytest.approx(4 * high.submit_s)
        assert low.submit_s == pytest.approx(4 * high.submit_s)
        assert quarter.due_s - quarter.submit_s == pytest.approx(high.due_s - high.submit_s)


def test_the_integer_programme_finds_the_least_cost(scripts):
    """Against all choices of a size or of waiting, on one node."""
    exact = scripts.sts_optimum
    nodes = [scripts.sts_optimum.DueNode("K80", 8)]
    jobs = due_jobs(scripts, 3)
    costs = [
        [(0, exact.cost_of_waiting(job, {"K80"}, 0.0, 600.0))]
        + [(k, exact.cost_of_size(job, "K80", k, 0.0)) for k in range(1, 9)]
        for job in jobs
    ]
    least = min(
        sum(cost for _, cost in chosen)
        for chosen in product(*costs)
        if sum(gpus for gpus, _ in chosen) <= 8
    )
    assert exact.least_cost(jobs, nodes, 0.0, 600.0) == pytest.approx(least)
    assert exact.heuristic_cost(jobs, nodes, 0.0, 600.0) >= least * (1 - 1e-9)


def test_baselines_keep_to_the_gpus_there_are(scripts):
    nodes = [scripts.sts_optimum.DueNode("K80", 8), scripts.sts_optimum.DueNode("K80", 4)]
    jobs = due_jobs(scripts, 20)
    for name, make in scripts.sts_runs.MADE.items():
        shares, _ = make()(jobs, nodes, 0.0, 600.0)
        used = [sum(s.gpus for s in shares.values() if s.node == n) for n in range(2)]
        assert used[0] <= 8, name
        assert 0 < used[1] <= 4, name


def test_edf_chooses_a_size_once(scripts):
    """Shortly before the due date of the first job all its work is left, and GPUs are free."""
    job, nodes = due_jobs(scripts, 1)[0], [scripts.sts_optimum.DueNode("K80", 8)]
    found = {}
    for name in ("EDF", scripts.sts_runs.REVISES):
        schedule = scripts.sts_runs.MADE[name]()
        first = schedule([job], nodes, 0.0, 600.0)[0][job.job_id]
        held = replace(job, held=first)
        found[name] = first, schedule([held], nodes, 0.99 * job.due, 600.0)[0][job.job_id]
    (first, later), (anew, revised) = found.values()
    assert first == later == anew
    assert revised.gpus == 8 > first.gpus


def test_equal_energy_takes_our_best_run_that_needs_no_more(scripts):
    """A run with more energy does not count, nor one that has the energy and is slower."""
    point, best = scripts.powerflow.Point, scripts.powerflow.at_equal_energy
    theirs = point(100.0, 50.0, 40.0)
    ours = [point(80.0, 40.0, 38.0), point(50.0, 50.0, 49.0), point(40.0, 51.0, 50.0)]
    assert best(ours, theirs, lambda p: p.energy_kwh) == 2.0
    assert best(ours, theirs, lambda p: p.jobs_kwh) == 1.25
    assert best(ours[2:], theirs, lambda p: p.energy_kwh) is None


def test_powerflow_needs_the_measured_data(scripts, partial, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["powerflow.py"])
    with pytest.raises(SystemExit, match="needs the measured data"):
        scripts.powerflow.main()


@pytest.fixture
def powerflow_data(scripts, monkeypatch):
    """Measured data; the models are the measured tables themselves."""
    data = scripts.common.shared(*scripts.powerflow_bench.NEEDED)
    if data is None:
        pytest.skip("no measured data")
    monkeypatch.setattr(scripts.powerflow, "fitted", lambda tables, seed: tables)
    return data


@pytest.mark.shared
def test_powerflow_with_few_jobs(scripts, powerflow_data):
    text = scripts.powerflow.section(
        scripts.powerflow.Count(1, (0.8,), (0.6, 1.0), 8), powerflow_data, 1
    )
    assert "(a part of the runs)" in text
    for row in ("Tiresias + Zeus | 1.62", "PowerFlow, fitted models", "eft + PowerFlow | 0.6"):
        assert f"| {row} | " in text
    assert "nan" not in text


@pytest.mark.shared
def test_baselines_at_lower_clocks_with_few_jobs(scripts, powerflow_data):
    clocks = scripts.powerflow_clocks
    count = scripts.powerflow.Count(1, (0.8,), (0.6, 1.0), 8)
    text = clocks.section(count, scripts.powerflow.Bench(powerflow_data, count, 1))
    for row in ("Gandiva | 100%", "AFS | 65%", "| 0.6 |"):
        assert row in text
    assert "nan" not in text


@pytest.mark.shared
def test_a_lower_clock_leaves_the_work_of_a_job(scripts, powerflow_data):
    """Its time is longer by what its table says for its GPUs, and all lower clocks stay."""
    bench = scripts.powerflow_bench
    jobs = bench.trace(powerflow_data, bench.oracle(powerflow_data), bench.Load(0.8, 5), 0)
    lower = scripts.powerflow_clocks.at_clock(jobs, 0.75)
    for job, slow in zip(jobs.jobs, lower.jobs, strict=True):
        row, column = job.table.row(job.gpus), len(slow.table.clocks_mhz) - 1
        assert slow.table.clocks_mhz.tolist() == job.table.clocks_mhz[: column + 1].tolist()
        most = 0.75 * job.table.clocks_mhz[-1]
        assert slow.table.clocks_mhz[-1] <= most < job.table.clocks_mhz[column + 1]
        work = [one.duration_s / one.table.time_s[row, -1] for one in (job, slow)]
        assert work[1] == pytest.approx(work[0])
        assert slow.duration_s > job.duration_s
    (first, *_), (measured, *_) = jobs.jobs, scripts.powerflow_clocks.profiled(jobs).jobs
    assert measured.duration_s == first.duration_s + 120.0


@pytest.mark.shared
def test_moves_of_powerflow_with_few_jobs(scripts, powerflow_data):
    count = scripts.powerflow.Count(1, (3.0,), (1.0,), 20)
    text = scripts.powerflow_moves.section(count, powerflow_data, 1)
    assert "(a part of the runs)" in text
    rows = ("they grow (`shrink = false`)", "they grow and shrink", "demand 3, eta 1")
    rows += ("default limits", "`again_s = 0`", "all of these", "PowerFlow, placed by eft")
    for row in rows:
        assert f"| {row} | " in text
    assert "nan" not in text


ALIBABA = "job_id,submit_s,start_s,end_s,duration_s,num_gpu,gpu_milli,gpu_spec,qos,phase"


def converted(scripts, file):
    left_out = Counter()
    return list(scripts.convert.convert(file, left_out)), left_out


def test_alibabas_tasks_are_jobs_where_they_have_whole_gpus_and_an_end(scripts, tmp_path):
    file = tmp_path / "pods.csv"
    rows = [
        "a,0,5,105,100,1,1000,,LS,Failed",
        "b,0,5,105,100,0,0,,LS,Succeeded",
        "c,0,5,105,100,1,460,,LS,Succeeded",
        "d,0,,105,,2,1000,,BE,Pending",
        "e,3,5,900,895,8,1000,,BE,Running",
        "f,3,5,899,894,8,1000,,BE,Running",
        "g,3,5,900,895,2,1000,,BE,Succeeded",
    ]
    file.write_text("\n".join([ALIBABA, *rows]) + "\n")
    jobs, left_out = converted(scripts, file)
    found = [(j[0], j[2], j[3]) for j in jobs]
    assert found == [("a", "1", "100"), ("f", "8", "894"), ("g", "2", "895")]
    reasons = ("no GPU", "a share of one GPU", "never started")
    assert left_out == dict.fromkeys((*reasons, "still running at the end of the trace"), 1)


def test_the_file_that_alibaba_publishes_is_read(scripts, tmp_path):
    file = tmp_path / "openb_pod_list_default.csv"
    file.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time\n"
        "pod-0,12000,16384,1,1000,,LS,Running,0,12537496,0\n"
        "pod-1,88000,327680,8,1000,,LS,Succeeded,9437497,10769854,9437500.0\n"
        "pod-2,88000,327680,8,1000,,LS,Pending,9437497,,\n"
    )
    jobs, left_out = converted(scripts, file)
    assert jobs == [("pod-1", "9437497", "8", "1332354", "", "", "")]
    assert left_out == {"still running at the end of the trace": 1, "never started": 1}


@pytest.mark.parametrize(
    "text",
    [
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,1,0,6,v,1,3\n",
        "2,ring,0,100,1,vgg\nx\n",
        "name,num_gpu,gpu_milli\na,1,1000\n",
        "name,num_gpu,gpu_milli,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "a,1,1000,Running,x,5,3\n",
    ],
)
def test_another_trace_is_refused_in_one_sentence(scripts, tmp_path, monkeypatch, capsys, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["convert.py", str(file)])
    with pytest.raises(SystemExit, match=r"Error: trace\.csv: "):
        scripts.convert.main()
    assert capsys.readouterr().out == ""


def test_a_converted_job_file_of_mapa_is_a_trace(scripts, tmp_path, monkeypatch, capsys):
    file = tmp_path / "jobs.txt"
    file.write_text("2,ring,0,100,1,vgg\n4,clique,5,50,0,gmm\n3,star,6,50,0,x\n")
    monkeypatch.setattr(sys, "argv", ["convert.py", str(file)])
    scripts.convert.main()
    trace = read_csv("t", text=capsys.readouterr().out)
    first, second, third = trace.jobs
    assert (first.gpus, first.pattern, first.bandwidth_sensitive) == (2, "ring", True)
    assert (second.submit_s, second.duration_s, second.pattern) == (5, 50, "all-to-all")
    assert (third.pattern, third.model) == ("0-1,0-2", "x")
    assert trace.bad_rows == ()


@pytest.mark.shared
def test_every_task_of_the_shared_trace_of_alibaba_is_counted(scripts):
    data = scripts.common.shared("traces/alibaba/openb_2023_pods.csv")
    if data is None:
        pytest.skip("no measured data here")
    jobs, left_out = converted(scripts, data / "traces" / "alibaba" / "openb_2023_pods.csv")
    assert len(jobs) + left_out.total() == 8152


def test_a_section_replaces_the_one_before(scripts, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("# Page\n", encoding="utf-8")
    monkeypatch.setattr(scripts.common, "PAGE", page)
    scripts.common.finish("pal", "one", write=True)
    scripts.common.finish("topo", "two", write=True)
    scripts.common.finish("pal", "three", write=True)
    text = page.read_text(encoding="utf-8")
    assert "one" not in text
    assert text.index("three") < text.index("two")


def test_every_remark_on_the_page_is_made_by_a_script():
    """Else it would not follow the numbers when these change."""
    page = (ROOT / "benchmarks" / "reproductions.md").read_text(encoding="utf-8")
    made = re.findall(r"<!-- (\w+): made by .*? -->.*?<!-- end -->", page, re.DOTALL)
    assert made == [
        *("pal", "eft", "mapa", "topo", "powerflow_sizes", "powerflow_models", "sts", "powerflow"),
        *("powerflow_moves", "powerflow_clocks", "when_it_pays", "queue_order"),
        *("queue_order_accounts", "cheats", "energy"),
    ]
    rest = re.sub(r"<!-- \w+: made by .*?<!-- end -->", "", page, flags=re.DOTALL)
    assert not re.search(r"\d", rest)


def test_what_an_order_costs_is_its_worst_column(scripts):
    gains = {"a": ("9.0%", "8.0%", "7.0%", "6.0%", "-0.9%", "5.0%", "-9.0%")}
    gains["b"] = ("19.0%", "-3.0%", "7.0%", "6.0%", "-40.0%", "5.0%", "0.0%")
    rows = [
        (load, "medians", "times", case, *(f"{cell} ± ?" for cell in cells))
        for load in ("calm", "full")
        for case, cells in gains.items()
    ]
    rows[2] = ("full", *rows[2][1:4], "4.0% ± 1.0%", *rows[2][5:])
    _, found, remark = scripts.queue_order.costs_of(rows)
    assert "| a | 9.0% | 4.0% | -0.9% | longest wait, calm | 4.0% |" in found
    assert "| b | 19.0% | 19.0% | -40.0% | longest wait, calm | -3.0% |" in found
    assert "only a makes no column more than 1% worse" in " ".join(remark.split())


def test_a_part_of_a_trace_asks_for_its_share_of_the_gpus(scripts):
    accounts = scripts.queue_order_accounts
    jobs = [TraceJob(str(n), 50.0 + n, 1 + n % 40, 1000.0 * n) for n in range(1, 60)]
    found = accounts.part_of(Trace.of("all", jobs), 3, 64).jobs
    assert [job.job_id for job in found] == [j.job_id for j in jobs[3:] if j.gpus <= 32]
    assert found[0].submit_s == 0.0
    asked = sum(job.gpus * job.duration_s for job in found)
    assert asked / (64 * found[-1].submit_s) == pytest.approx(accounts.FULL)


def test_each_way_of_cheating_does_the_work_of_the_job(scripts):
    cheats = scripts.cheats
    job = cheats.workload(cheats.Count(1, 1), 1)[0]
    split, (renamed,), killed = (cheat(job) for cheat in cheats.CHEATS.values())
    assert renamed == replace(job, name=renamed.name)
    assert renamed.name != job.name
    extra_s = 3 * cheats.RESTART_S
    assert sum(part.duration_s for part in split) == pytest.approx(job.duration_s + extra_s)
    ran = [min(part.duration_s, part.time_limit_s) for part in killed]
    assert sum(ran) == pytest.approx(job.duration_s + extra_s)
    assert [part.duration_s > part.time_limit_s for part in killed] == [True] * 3 + [False]


def test_parts_follow_one_another_and_the_table_has_each_cheat(scripts):
    cheats = scripts.cheats
    jobs = cheats.workload(cheats.Count(1, 30), 1)
    one = cheats.Play(jobs, cheats.splits, "expected=1")
    cheats.play([one], 1)
    chains = [chain for chain in one.chains if len(chain) > 1]
    assert chains
    for chain in chains:
        assert chain[0].submit_s < chain[1].submit_s < chain[2].submit_s
    alone_s = np.mean([sum(part.duration_s for part in chain) for chain in chains])
    assert one.completion_s(cheat=True) >= alone_s
    text = cheats.section(cheats.Count(1, 12), 1)
    assert text.count("| understates |") == text.count("| renames |") == len(cheats.ORDERS)


def test_when_it_pays_on_a_few_jobs(scripts, partial, monkeypatch):
    pays = scripts.when_it_pays
    monkeypatch.setattr(pays, "JOBS", 12)
    monkeypatch.setattr(pays, "NODES", 2)
    text = pays.section(range(2), 1, "pal")
    assert "synthetic data of the same shape" in text
    for words in ("| variability |", "| load |", "| jobs of several GPUs |", "| job mix |"):
        assert words in text
    control = next(line for line in text.splitlines() if line.startswith("| none"))
    assert control.split("|")[2:4] == [" 0.0% ", " 1.00 "]
    alone = next(line for line in text.splitlines() if line.startswith("| 0% |"))
    assert alone.split("|")[6] == "  "


def test_a_trace_has_the_load_that_was_asked_for(scripts):
    pays = scripts.when_it_pays
    case = pays.replace(pays.BASE, load=0.7, several=0.5)
    jobs = pays.trace_of(case, 3).jobs
    span = jobs[-1].submit_s - jobs[0].submit_s
    work = sum(job.gpus * job.duration_s for job in jobs)
    assert work / (span * 64) == pytest.approx(0.7)
    assert max(job.duration_s for job in jobs) <= pays.LONGEST_S
    assert 0.4 < sum(job.gpus > 1 for job in jobs) / len(jobs) < 0.6


def test_what_the_best_setting_saves_counts_each_job_by_its_energy(scripts):
    """Of 100 J a quarter within 10%, of 300 J nothing; between limits all is linear."""
    energy, two = scripts.energy, np.array([900, 1400])
    tables = {"A": ([1.05, 1.0], [75 / 1.05, 100.0]), "B": ([1.5, 1.0], [1.0, 300.0])}
    true = {
        name: energy.SizeTable(np.array([1]), two, *(np.array([values]) for values in table))
        for name, table in tables.items()
    }
    jobs = [SimpleNamespace(app_class=name, gpus=1, duration_s=10.0) for name in true]
    saved = [energy._possible(true, SimpleNamespace(jobs=jobs), bound) for bound in (0.01, 0.1)]
    assert saved == pytest.approx([0.0, 25 / 400])
    limits, times = np.array([300.0, 200.0, 300.0]), np.array([2.0, 1.4, 1.0])
    series = scripts.energy_cards.Series("s", "a100", two[[0, 1, 1]], limits, times, 100 * times)
    assert series.at(1400, 250) == pytest.approx((1.2, 120.0))
    assert series.at(1400, 0) == pytest.approx((1.0, 100.0))


def test_a_setting_is_chosen_from_a_third_of_those_measured(scripts):
    """A card whose time is half memory: the best within 10% is found without a miss."""
    cards = scripts.energy_cards
    clocks = np.arange(900.0, 1501.0, 25.0)
    time_s = 0.5 + 0.5 * 1500.0 / clocks
    watts = 80.0 + 220.0 * (clocks / 1500.0) ** 3
    limits = np.full(len(clocks), cards.UNLIMITED_W)
    series = cards.Series("half", "a100", clocks, limits, time_s, time_s * watts)
    chosen = cards.judged(series, 0)
    for bound, one in zip(cards.BOUNDS, chosen, strict=True):
        assert one.slower <= bound + EXACT
        assert one.saved > 0.7 * one.possible > 0
