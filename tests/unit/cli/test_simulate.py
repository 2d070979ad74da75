"""``gpu-aware simulate``: what it prints, writes and refuses."""

import csv
import json

import pytest
from commands import gpu_aware, refusal, succeeded

from slurm_gpu_aware.cli.simulate import simulate
from slurm_gpu_aware.cli.simulation import gather
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.simulator.history import UNSUPPORTED
from slurm_gpu_aware.simulator.report import plain_summary

SITE = ["--nodes", "2", "--gpus-per-node", "4"]


@pytest.fixture
def trace(tmp_path):
    rows = ["job_id,submit_s,gpus,duration_s,class,kind"]
    rows += [f"{i},{i * 10},{(1, 2, 4)[i % 3]},{100 + i},{'ABC'[i % 3]},C" for i in range(12)]
    rows += ["bad,x,1,1,A,C", "giant,0,99,10,A,C"]
    return str(write_lines(tmp_path / "t.csv", *rows))


def run(*args):
    return gpu_aware("simulate", *map(str, args))


def output_of(*args):
    """The JSON of a simulation that succeeds."""
    return json.loads(succeeded(run(*args, "--json")).stdout)


def write_lines(file, *lines):
    file.write_text("\n".join(lines) + "\n")
    return file


def jobs_in(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def start_order(file):
    """Jobs in the order of their starts."""
    return [row["job_id"] for row in sorted(jobs_in(file), key=lambda row: float(row["start_s"]))]


def test_json_has_a_run_per_policy_in_order(trace):
    policies = ["-p", "packed", "-p", "pal", "-p", "pal:non-sticky"]
    done = succeeded(run(trace, *SITE, *policies, "--json"))
    output = json.loads(done.stdout)
    assert [r["policy"] for r in output["runs"]] == ["packed", "pal", "pal:non-sticky"]
    for one in output["runs"]:
        assert one["jobs"] == 12
        assert one["infeasible"] == 1
        assert one["avg_jct_s"] > 0
        assert 0 < one["utilization"] <= 1
        assert one["placement_ms"]["max"] >= one["placement_ms"]["median"] > 0
    assert output["runs"][0]["ratio_to_first"]["avg_jct_s"] == 1.0
    assert "line 14: submit_s is 'x': not a number" in done.stderr
    assert "1 bad row left out" in done.stderr
    assert "giant" in done.stderr
    assert output["input"]["bad_rows"][0]["line"] == 14


def test_processes_do_not_change_the_outcome(trace):
    args = [trace, *SITE, "-p", "random", "-p", "pal", "--round", "50", "--order", "las"]
    outputs = [output_of(*args, "--processes", n) for n in (1, 2)]
    for output in outputs:
        for one in output["runs"]:
            del one["placement_ms"]
    assert outputs[0] == outputs[1]


def test_fair_shares_order_the_queue_as_the_file_says(tmp_path):
    rows = [f"{i},{i},8,100,{'yx'[i < 3]},lab" for i in range(4)]
    jobs = write_lines(tmp_path / "t.csv", "job_id,submit_s,gpus,duration_s,user,account", *rows)
    shares = tmp_path / "shares.txt"
    shares.write_text(
        "PriorityType = priority/multifactor\nPriorityWeightFairShare = 1000\n"
        "PriorityMaxAge = 7-0:0:0\nPriorityDecayHalfLife = 7-0:0:0\nPriorityCalcPeriod = 00:01:00\n"
        "PriorityWeightQOS = 5\nAccount|User|RawShares|RawUsage\nroot|||0\n lab||1|0\n"
        "  lab|x|1|0\n"
    )
    args = [jobs, *SITE, "-p", "packed", "--fairshare", shares, "--json", "--out"]
    done = succeeded(run(*args, tmp_path / "out"))
    assert "PriorityWeightQOS: counts as far as the column priority has it" in done.stderr
    assert json.loads(done.stdout)["settings"]["order"] == "multifactor"
    files = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"][0]["files"]
    assert start_order(tmp_path / "out" / files["jobs"]) == ["0", "3", "1", "2"]
    for order in (["--order", "fifo"], ["-p", "packed:non-sticky"]):
        assert run(*args, tmp_path / "o", *order).exit_code != 0
    shares.write_text("nothing")
    assert "with priority/multifactor" in run(*args, tmp_path / "o").stderr


def test_the_table_names_policies_and_cluster(trace):
    done = succeeded(run(trace, *SITE, "-p", "packed"))
    assert "2 nodes with 4 GPUs" in done.stdout
    assert "packed" in done.stdout


def test_in_nodes_mode_slurm_chooses_the_gpus_on_our_nodes(tmp_path, monkeypatch):
    """The node without the slow GPU is ours; its pair without a bridge is Slurm's."""
    rows = ["1,0,2,100,A,high", "2,1,2,100,A,high", "3,2,1,100,A,low"]
    jobs = write_lines(tmp_path / "t.csv", "job_id,submit_s,gpus,duration_s,class,bw", *rows)
    times = [f"{gpu},a{n},{150 if (n, gpu) == (0, 1) else 100}" for n in (0, 1) for gpu in range(8)]
    write_lines(tmp_path / "v.csv", "gpu,node,value_ms", *times)
    config = tmp_path / "config.toml"
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(config))
    given = [jobs, "--nodes", "2", "--machine", "h100-nvl-8", "--draw", "nodes"]
    given += ["--variability", f"A={tmp_path}/v.csv", "--bandwidth-share", "0.5"]

    def seconds(gpus):
        config.write_text(f'[placement]\ngpus = "{gpus}"\n')
        output = output_of(*given, "-p", "slurm", "-p", "eft")
        return output["cluster"], [one["avg_jct_s"] for one in output["runs"]]

    exact, nodes = seconds("exact"), seconds("nodes")
    assert nodes[0] == f"{exact[0]}, of which Slurm chooses the GPUs"
    (slurm, ours), (slurm_too, fewer) = exact[1], nodes[1]
    assert slurm_too == slurm
    assert ours < fewer < slurm


def test_out_has_every_job_once(trace, tmp_path):
    folder = tmp_path / "out"
    succeeded(run(trace, *SITE, "-p", "packed", "-p", "packed:non-sticky", "--out", folder))
    summary = json.loads((folder / "summary.json").read_text())
    for one in summary["runs"]:
        rows = jobs_in(folder / one["files"]["jobs"])
        assert sorted(r["job_id"] for r in rows) == sorted([*map(str, range(12)), "giant"])
        jct = [float(r["jct_s"]) for r in rows if r["jct_s"]]
        assert sum(jct) / len(jct) == pytest.approx(one["avg_jct_s"], abs=0.01)
        assert [r["infeasible"] != "" for r in rows if r["job_id"] == "giant"] == [True]


def test_variability_slows_jobs_and_the_other_class_column_counts(trace, tmp_path):
    rows = [f"{i},n,{100 + i % 2 * 50}" for i in range(8)]
    times = write_lines(tmp_path / "c.csv", "gpu,node,value_ms", *rows)
    args, scores = [trace, *SITE, "-p", "pal"], ["--variability", f"C={times}"]
    (plain,) = output_of(*args)["runs"]
    (slow,) = output_of(*args, *scores, "--class-column", "kind")["runs"]
    (off,) = output_of(*args, *scores, "--no-variability-effect")["runs"]
    assert plain["avg_slowdown"] == off["avg_slowdown"] == 1.0
    assert slow["avg_slowdown"] > 1.0


def test_classes_of_jobs_and_scores_that_do_not_meet_are_said(trace, tmp_path):
    rows = [f"{i},n,{100 + i}" for i in range(8)]
    times = write_lines(tmp_path / "c.csv", "gpu,node,value_ms", *rows)
    scores = ["--variability", f"A={times}", "--variability", f"C={times}"]
    args = [trace, *SITE, "-p", "pal", *scores]
    said = run(*args).stderr
    assert "t: class B (4 jobs) has no scores" in said
    assert "--variability A" not in said
    said = run(*args, "--class-column", "kind").stderr
    assert "has no scores" not in said
    assert "--variability A: no job is of this class; another column?" in said
    assert "scores" not in run(*args, "--no-variability-effect").stderr


def test_the_live_history_is_read_in_unix_seconds(tmp_path, monkeypatch):
    """Also where the caller's environment asks Slurm for another form, and with any comment."""
    sacct = tmp_path / "sacct"
    sacct.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--duplicates*) ;; *) exit 3 ;; esac\n'
        'test "$SLURM_TIME_FORMAT" = %s || exit 4\n'
        "printf 'JobID|Submit|Start|ElapsedRaw|State|AllocTRES|Comment\\n'\n"
        "at=$(($(date +%s) - 500))\n"
        'printf "1|$at|$at|100|COMPLETED|gres/gpu=4|a\\rb\\377\\n"\n'
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    output = output_of("--sacct", "live", *SITE, "-p", "pal")
    assert (output["input"]["jobs"], output["input"]["bad_rows"]) == (1, [])


def test_a_site_without_accounting_gets_the_line_to_add(tmp_path, monkeypatch):
    sacct = tmp_path / "sacct"
    sacct.write_text("#!/bin/sh\necho Slurm accounting storage is disabled >&2\nexit 1\n")
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for option in ("--what-if", "--sacct=live"):
        said = refusal(run(option, *SITE, "-p", "pal"))
        assert "storage is disabled: sacct tells nothing" in said
        assert "add AccountingStorageType=accounting_storage/slurmdbd and" in said


def test_a_history_without_gpus_says_why(tmp_path):
    """On stderr and in the JSON; with a job that has some, nothing."""
    history = tmp_path / "history"
    rows = [f"{i}|1000||1000|50|COMPLETED|cpu=4|60|" for i in range(3)]
    said = "no job has GPUs in accounting: AccountingStorageTRES in slurm.conf has no gres/gpu"
    for args in (("--what-if", "--sacct"), ("--sacct",), ()):
        write_lines(history, HISTORY, *rows)
        assert f"history: {said}" in refusal(run(*args, history, *SITE, "-p", "pal"))
    write_lines(history, HISTORY, *rows, "9|1000||1000|50|FAILED|gres/gpu=4||")
    done = run(history, *SITE, "-p", "pal", "--json")
    assert said not in done.stderr
    told = json.loads(done.stdout)["input"]["missing"]
    assert told[0] == (
        "TimelimitRaw is not known of 1 of 1 jobs: these jobs count as without time limit"
    )
    assert told[-1] == "add to sacct's --format: User,JobName,Account,ReqTRES,NodeList,Comment"


HISTORY = "JobID|Submit|Eligible|Start|ElapsedRaw|State|AllocTRES|TimelimitRaw|Priority"


ONE_BY_ONE = [f"{i}|{1000 + i}||{1100 + 50 * i}|50|COMPLETED|gres/gpu=4||" for i in range(4)]


def what_if(tmp_path, rows, *args):
    """The JSON of a comparison with this history on two nodes of four GPUs, and stderr."""
    past = ["--what-if", "--sacct", write_lines(tmp_path / "history", HISTORY, *rows)]
    done = succeeded(run(*past, *SITE, *args, "--json", "--out", tmp_path / "out"))
    return json.loads(done.stdout), done.stderr


def test_what_if_compares_with_the_record(tmp_path):
    output, _ = what_if(tmp_path, ONE_BY_ONE, "-p", "pal")
    recorded, slurm, ours = output["runs"]
    assert recorded["policy"] == "as recorded"
    assert recorded["avg_wait_s"] == pytest.approx(100 + 49 * 1.5)
    assert ours["avg_wait_s"] == pytest.approx((0 + 0 + 48 + 48) / 4)
    assert output["limits"]
    # the model starts jobs sooner than Slurm did, whatever the policy: that is no gain of ours
    assert (slurm["policy"], slurm["avg_wait_s"]) == ("slurm", ours["avg_wait_s"])
    assert ours["ratio_to_first"]["avg_jct_s"] == slurm["ratio_to_first"]["avg_jct_s"] == 1.0
    assert recorded["ratio_to_first"]["avg_jct_s"] > 2
    same, _, calibration = plain_summary(output)
    assert "would have been the same as with slurm, Slurm's own placement; 0%" in same
    assert "66.9% shorter than Slurm recorded; that difference is the model's" in calibration


def test_a_job_that_ended_at_once_is_compared(tmp_path):
    """Of whole seconds, the next job on its GPUs starts with it: no reason to doubt the record."""
    rows = [f"{i}|1000||1000|{run}|FAILED|gres/gpu=8||" for i, run in enumerate((0, 0, 50))]
    output, _ = what_if(tmp_path, rows, "-p", "pal")
    recorded, slurm, ours = output["runs"]
    assert output["input"]["jobs"] == 3
    assert {run["jobs"] for run in (recorded, slurm, ours)} == {3}
    assert recorded["utilization"] == pytest.approx(1.0)
    assert ours["avg_jct_s"] == pytest.approx(1.5 * 50 / 3, rel=0.01)  # on two nodes


def test_the_record_is_no_gain_in_the_table(tmp_path):
    """What the model leaves out is told apart from what a policy gains, here as in the report."""
    history = write_lines(tmp_path / "history", HISTORY, *ONE_BY_ONE)
    done = succeeded(run("--what-if", "--sacct", history, *SITE, "-p", "pal"))
    last = {line.split("  ")[0]: line.split()[-1] for line in done.stdout.splitlines() if line}
    assert (last["as recorded"], last["slurm"], last["pal"]) == ("-", "+0.0%", "+0.0%")
    said = " ".join(done.stdout.split())
    assert "Calibration: simulated with slurm, average completion time is 66.9%" in said
    assert said.endswith("that difference is the model's, not a gain.")


def test_what_live_is_left_to_slurm_is_not_called_impossible(tmp_path):
    """35 (-N2 --gpus=3) ran, on GPUs that no GRES line can name: Slurm placed it, now as then."""
    rows = [
        "34|1000||1000|50|COMPLETED|gres/gpu=2|||||",
        "35|1000||1000|100|COMPLETED|gres/gpu=3|||node=2|2|n[1-2]",
        "36|1010||1100|100|COMPLETED|gres/gpu=8|||node=2|2|n[1-2]",
    ]
    history = write_lines(tmp_path / "history", HISTORY + "|ReqTRES|NNodes|NodeList", *rows)
    args = ["--what-if", "--sacct", history, *SITE, "-p", "pal"]
    done = succeeded(run(*args, "--json"))
    output = json.loads(done.stdout)
    assert [(one["jobs"], one["infeasible"]) for one in output["runs"]] == [(2, 0)] * 3
    assert output["input"]["skipped"] == {UNSUPPORTED: 1}
    assert output["input"]["background"] == 1
    assert [one["avg_wait_s"] for one in output["runs"]] == [45.0] * 3  # 36 waits for 35, too
    assert "1 job left out: unsupported" in done.stderr
    assert "never ran" not in done.stderr
    freely = output_of(*args, "--any-indices")
    assert (freely["runs"][1]["jobs"], freely["input"]["background"]) == (3, 0)


@pytest.mark.parametrize("policies", [["packed"], ["packed", "pal"]])
def test_progress_ends_at_the_end(trace, policies):
    """Also with a job that never ran."""
    named = [word for policy in policies for word in ("-p", policy)]
    done = run(trace, *SITE, *named)
    assert "giant" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("simulating")]
    assert lines[-1] == f"simulating 13 jobs: {', '.join(f'{p} 100%' for p in policies)}"


def test_what_no_placement_could_shorten_is_in_no_run(tmp_path):
    """No job competes; 2 waited for 1 (afterok) and 3 for the next day (--begin)."""
    rows = [
        "1|1000|1000|1000|3600|COMPLETED|gres/gpu=1||",
        "2|1000|4600|4600|100|COMPLETED|gres/gpu=1||",
        "3|1000|87400|87400|100|COMPLETED|gres/gpu=1||",
    ]
    output, _ = what_if(tmp_path, rows, "-p", "pal+mapa")
    assert [one["avg_jct_s"] for one in output["runs"]] == [pytest.approx(3800 / 3)] * 3


def test_jobs_that_still_run_hold_their_gpus(tmp_path):
    """9 has half of the GPUs from the start on: 2 can have the other half when 1 is done."""
    rows = [
        "1|1000|1000|1000|1000|COMPLETED|gres/gpu=4||",
        "9|1000|1000|1000|1300|RUNNING|gres/gpu=4|60|",
        "2|1060|1060|2000|100|COMPLETED|gres/gpu=4||",
    ]
    output, said = what_if(tmp_path, rows, "-p", "pal")
    assert [one["jobs"] for one in output["runs"]] == [2, 2, 2]
    assert {one["avg_wait_s"] for one in output["runs"]} == {470.0}
    assert {round(one["utilization"], 6) for one in output["runs"]} == {1.0}
    assert output["input"]["background"] == 1
    assert "1 job holds its recorded GPUs" in said


def test_a_file_can_be_cut_to_its_last_days(tmp_path):
    """1 runs 100 s into the last three days, 2 waits then, 4 has ended before."""
    day = 86_400
    spans = {1: (1, 1, 2 * day + 100), 2: (2, 2 * day + 100, 50), 3: (5 * day - 50,) * 2 + (50,)}
    spans[4] = (1, 1, 10)
    rows = [f"{i}|{a}||{b}|{run}|COMPLETED|gres/gpu=4||" for i, (a, b, run) in spans.items()]
    output, said = what_if(tmp_path, rows, "-p", "pal", "--days", "3")
    assert output["input"]["background"] == 1
    assert {one["jobs"] for one in output["runs"]} == {2}
    recorded, ours, _ = output["runs"]
    assert (recorded["avg_wait_s"], ours["avg_wait_s"]) == (50.0, 0.0)
    assert "2 jobs left out: started before the requested days" in said


def test_backfill_knows_of_recorded_jobs_what_slurm_knew(tmp_path):
    """1 has no limit, so nothing tells when the GPUs for 2 are there: 3 may take the idle ones.
    Had it the limit of 1.5 times its run, 3 would reach past that and wait."""
    rows = [
        "1|1000||1000|1000|COMPLETED|gres/gpu=4|UNLIMITED|",
        "2|1001||2000|100|COMPLETED|gres/gpu=8|60|",
        "3|1002||2100|3000|COMPLETED|gres/gpu=4|60|",
    ]
    output, _ = what_if(tmp_path, rows, "-p", "packed", "--backfill")
    assert output["runs"][1]["avg_wait_s"] == pytest.approx((0 + 3001 + 0) / 3)


def test_what_if_serves_by_the_recorded_priority(tmp_path):
    rows = [
        "1|1000||1000|100|COMPLETED|gres/gpu=8|10|5",
        "2|1001||1600|500|COMPLETED|gres/gpu=8|10|1",
        "3|1002||1100|500|COMPLETED|gres/gpu=8|10|2",
    ]
    for args, order in (([], ["1", "3", "2"]), (["--order", "fifo"], ["1", "2", "3"])):
        what_if(tmp_path, rows, "--no-locality-effect", *args)
        jobs = tmp_path / "out" / "jobs-slurm.csv"
        assert sorted(float(row["start_s"]) for row in jobs_in(jobs)) == [0, 100, 600]
        assert start_order(jobs) == order


CAPACITY = "[policies.topo-aware-p]\nminimal_utility = 0.9\n"


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    """Two jobs of two GPUs that take 70 s alone and 140 s beside each other, and their profile."""
    jobs = "job_id,submit_s,gpus,duration_s,model,nodes\n0,0,2,70,net/4,1\n1,1,2,70,net/4,1\n"
    (tmp_path / "jobs.csv").write_text(jobs)
    both = {"intra-socket": 70.0, "inter-socket": 0}
    beside = {"net": {"4": {"num_gpus": {"2": 140.0}}}}
    profile = {
        "solo": {"net": {"4": {"num_gpus": {"2": both}}}},
        "collocation": {"net": {"4": {"num_gpus": {"2": beside}}}},
    }
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    (tmp_path / "config.toml").write_text(CAPACITY)
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(tmp_path / "config.toml"))
    files = [str(tmp_path / "jobs.csv"), "--profile", str(tmp_path / "profile.json")]
    files += ["--interference", "--interference-scope", "machine"]
    return [*files, "--machine", "ibm-minsky-4xp100", "--no-backfill"]


def runs_of(*args):
    return {one["policy"]: one for one in output_of(*args)["runs"]}


def test_the_profile_reaches_the_policies_that_place_by_it(noisy):
    runs = runs_of(*noisy, "--nodes", "2", "-p", "lowest-index", "-p", "topo-aware")
    assert runs["lowest-index"]["avg_slowdown"] > 1.5
    assert runs["topo-aware"]["avg_slowdown"] == 1.0


def test_jobs_on_two_sockets_do_not_interfere_by_default(noisy):
    by_socket = [arg for arg in noisy if arg not in ("--interference-scope", "machine")]
    runs = runs_of(*by_socket, "--nodes", "1", "-p", "lowest-index")
    assert runs["lowest-index"]["avg_slowdown"] == 1.0


def test_the_sites_options_of_a_policy_hold_here_too(noisy, tmp_path):
    """Without weight on interference no job is disturbed enough to wait."""
    (tmp_path / "config.toml").write_text(f"{CAPACITY}weights = [0.5, 0.0, 0.5]\n")
    runs = runs_of(*noisy, "--nodes", "1", "-p", "topo-aware-p")
    assert runs["topo-aware-p"]["avg_wait_s"] == 0.0


def test_topo_aware_p_waits_where_topo_aware_disturbs(noisy):
    runs = runs_of(*noisy, "--nodes", "1", "-p", "topo-aware", "-p", "topo-aware-p")
    assert runs["topo-aware"]["avg_wait_s"] == 0.0
    assert runs["topo-aware"]["avg_slowdown"] > 1.5
    assert runs["topo-aware-p"]["avg_wait_s"] == pytest.approx(69 / 2)
    assert runs["topo-aware-p"]["avg_slowdown"] == 1.0


def test_runs_are_compared_over_the_jobs_that_ended_in_all_of_them(tmp_path):
    """A job too large for the cluster ended in the record only; it must not make it look slow."""
    rows = ["1|1000|1000|100|COMPLETED|gres/gpu=4", "2|1000|9000|9000|COMPLETED|gres/gpu=64"]
    history = write_lines(tmp_path / "h", "JobID|Submit|Start|ElapsedRaw|State|AllocTRES", *rows)
    args = ["--what-if", "--sacct", history, *SITE, "-p", "pal"]
    output = output_of(*args)
    past, _, ours = output["runs"]
    assert output["compared_jobs"] == 1
    assert (past["jobs"], ours["jobs"], ours["infeasible"]) == (2, 1, 1)
    assert past["utilization"] == ours["utilization"] == 0.5
    assert past["avg_jct_s"] == ours["avg_jct_s"] == 100.0
    assert ours["ratio_to_first"]["makespan_s"] == 1.0
    assert output["input"]["recorded"] == {"unknown": 2}
    done = run(*args)
    assert "times are those of the 1 job that ended in every run" in done.stdout
    assert "2 ran on nodes that the record does not name or this cluster" in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([*SITE], "give one source of jobs"),
        (["TRACE", *SITE, "--synthetic", "3"], "give one source of jobs"),
        (["TRACE", *SITE, "-p", "pal2"], "unknown policy 'pal2'"),
        (["TRACE", *SITE, "-p", "pal:often"], "expected NAME"),
        (["TRACE", *SITE, "--order", "lifo"], "unknown order 'lifo'; known: fifo"),
        (["TRACE", "--nodes", "2"], "a node has 1 to 64 GPUs"),
        (["TRACE", "--machine", "dgx-2"], "need --nodes"),
        (["TRACE", *SITE, "--variability", "A"], "expected CLASS=FILE.csv"),
        (["TRACE", *SITE, "--what-if"], "use it with --sacct"),
        (["TRACE", *SITE, "--interference"], "needs --profile"),
        (["TRACE", *SITE, "--class-column", "no"], "no column 'no'"),
        (["/nonexistent.csv", *SITE], "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(trace, args, reason):
    done = run(*[trace if a == "TRACE" else a for a in args])
    assert reason in refusal(done)
    assert ("Traceback" in done.stderr, done.stdout) == (False, "")


def test_an_empty_trace_is_said(tmp_path):
    trace = write_lines(tmp_path / "t.csv", "job_id,submit_s,gpus,duration_s")
    assert "no usable job" in refusal(run(trace, *SITE))


def test_seeds_draw_anew_and_give_means_with_ranges(tmp_path):
    args = ["--synthetic", 12, "--nodes", 1, "--gpus-per-node", 4, "-p", "packed", "-p", "pal"]
    output = output_of(*args, "--seeds", 3, "--seed", 5, "--processes", 1)
    alone = [output_of(*args, "--seed", seed)["runs"] for seed in (5, 6, 7)]
    assert output["seeds"] == 3
    for position, summary in enumerate(output["runs"]):
        values = [runs[position]["avg_jct_s"] for runs in alone]
        assert len(set(values)) == 3
        assert summary["avg_jct_s"] == pytest.approx(sum(values) / 3)
        assert summary["range"]["avg_jct_s"] == pytest.approx([min(values), max(values)])
    table = run(*args, "--seeds", "2", "--processes", "1").stdout
    assert "means over 2 seeds; below each, the lowest and the highest" in table
    assert "packed is as good as pal, as far as 2 seeds tell: gain 0.0%" in " ".join(table.split())


def test_seeds_that_would_be_alike_are_refused(trace):
    done = run(trace, "--nodes", "1", "--gpus-per-node", "4", "--seeds", "2")
    assert done.exit_code != 0
    assert "neither is given" in done.stderr


@pytest.mark.parametrize(
    ("option", "settings"),
    [((), (45.0, {"A": 200.0})), (("--migration", "10"), (10.0, {}))],
)
def test_a_restart_costs_what_the_configuration_says(tmp_path, trace, option, settings):
    file = tmp_path / "config.toml"
    file.write_text("[moves]\nrestart_s = 45.0\n[classes.A]\nrestart_s = 200.0\n")
    params = simulate.make_context("simulate", [trace, *SITE, *option]).params
    (one, _) = gather(load_config(file), params).settings
    assert (one.migration_s, one.class_restart_s) == settings
