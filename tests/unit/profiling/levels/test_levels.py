"""Times per locality level: import, show, export; what placement and simulator do with them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands import gpu_aware, gpu_aware_profile, refusal, succeeded
from slurm_folder import SlurmFolder, parked
from store_samples import ingest, profile_of, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.selector.daemon import run
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import level_times
from slurm_gpu_aware.store.profiles import load_profile

HEAD = "class,level,value_ms\n"
GOOD = HEAD + "A,socket,100\nA,socket,104\nA,node,132.6\nA,cluster,204\nB,node,10\nB,cluster,10.5\n"


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes; on each, GPUs 1 and 3 are 1.2 times slower for A. Sockets are 0,1 and 2,3."""
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(config))
    monkeypatch.setenv("COLUMNS", "100")
    fill_store(tmp_path / "store.db")
    return tmp_path


def fill_store(path: Path) -> None:
    with open_store(path) as store:
        for node in ("n1", "n2"):
            ingest(store, report(node, 1000.0, {0: 100.0, 1: 120.0, 2: 100.0, 3: 120.0}))
        recompute_scores(store)


def done(*args: str, text: str | None = None) -> Result:
    return succeeded(gpu_aware_profile(*args, text=text))


def configure(site: Path, text: str) -> None:
    (site / "config.toml").write_text(f'[store]\npath = "{site}/store.db"\n{text}')


def test_import_then_show(two_nodes: Path) -> None:
    said = done("import", "-", text=GOOD).stderr
    assert said == f"imported 6 level times of classes A, B into {two_nodes}/store.db\n"
    lines = done("show", "--levels").stdout.splitlines()
    assert [" ".join(line.split()) for line in lines if "--" not in line] == [
        "class level model ms runs ratio L from",
        "A socket - 102 2 1.0000 1.0000 measured",
        "A node - 132.6 1 1.3000 1.3000 measured",
        "A cluster - 204 1 2.0000 2.0000 measured",
        "B socket - - - - 1.0000 as node",
        "B node - 10 1 1.0000 1.0000 measured",
        "B cluster - 10.5 1 1.0500 1.0500 measured",
        "C socket - - - - 1.0000 as node",
        "C node - - - - 1.0000 -",
        "C cluster - - - - 1.5000 default",
    ]
    whole = done("show").stdout
    assert "Locality penalties:" in whole
    assert "default" not in whole, "classes without a measurement are shown with --levels only"


def test_show_as_json_and_csv_says_the_same(two_nodes: Path) -> None:
    assert "Locality" not in done("show").stdout
    done("import", "-", text=GOOD)
    records = json.loads(done("show", "--levels", "--json").stdout)["penalties"]
    assert json.loads(done("show", "--json").stdout)["penalties"] == records
    table = list(csv.DictReader(io.StringIO(done("show", "--levels", "--csv").stdout)))
    assert table == [{k: "" if v is None else str(v) for k, v in r.items()} for r in records]
    only = json.loads(done("show", "--levels", "--json", "--class", "B").stdout)["penalties"]
    assert only == [record for record in records if record["class"] == "B"]


@pytest.mark.parametrize("model", ["", ",a100"])
def test_export_and_import_are_inverse(two_nodes: Path, model: str) -> None:
    lines = [f"{line}{model}" for line in GOOD.splitlines()[1:]]
    head = f"class,level,value_ms{',model' if model else ''}"
    done("import", "-", text="\n".join([head, *lines, ""]))
    exported = done("export", "--levels").stdout
    assert exported.splitlines()[1] == f"A,socket,100.0,{model[1:]}"
    done("import", "-", "--store", str(two_nodes / "other.db"), text=exported)
    with open_store(two_nodes / "store.db") as one, open_store(two_nodes / "other.db") as two:
        assert level_times(one) == level_times(two)
        assert load_profile(one).level_ratios == load_profile(two).level_ratios
    everything = json.loads(done("export", "--json").stdout)
    assert len(everything["level_times"]) == 6
    assert "level" not in done("export").stdout


def test_an_import_replaces_what_there_was_of_its_classes_only(two_nodes: Path) -> None:
    done("import", "-", text=GOOD)
    done("import", "-", "--class", "A", text="level,value_ms\nnode,1\ncluster,1.4\n")
    found = profile_of(two_nodes / "store.db")
    assert found.level_ratios["A"] == {"node": 1.0, "cluster": 1.4}
    assert found.level_ratios["B"] == {"node": 1.0, "cluster": 1.05}
    assert found.scores.keys() == {"A"}, "timings of GPUs are as they were"


BAD = {
    "A,spine,1": "level 'spine' is not one of nvlink, socket, node, switch, rack, row, cluster",
    "Q,node,1": "class 'Q' is not one of A, B, C",
    "A,node,0": "value_ms must be a time of 1e-06 to 1e+12 ms, not 0.0",
    "A,node,-1": "value_ms must be a time of 1e-06 to 1e+12 ms, not -1.0",
    "A,node,inf": "value_ms is 'inf': not a finite number",
    "A,node,nan": "value_ms is 'nan': not a finite number",
    "A,node,fast": "value_ms is 'fast': not a number",
    "A,,1": "level is empty",
    "A,switch,1\nA,cluster,2": "class A was timed at switch, cluster only; time it inside a node, "
    "too (nvlink, socket, node), on the same number of GPUs: it is the reference",
    "C,row,1\nC,row,2": "class C was timed at row only; time it inside a node",
    "C,node,1\nC,node,2": "class C was timed at node only; time it at a looser level, too: switch,"
    " rack, row, cluster",
}


@pytest.mark.parametrize("rows", BAD)
def test_bad_rows_are_refused_with_what_is_valid(two_nodes: Path, rows: str) -> None:
    result = gpu_aware_profile("import", "-", text=f"{HEAD}{rows}\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"stdin: line 2: {BAD[rows]}") or BAD[rows] in result.stderr
    assert "nothing was imported" in result.stderr
    with open_store(two_nodes / "store.db") as store:
        assert level_times(store) == []


def test_models_of_a_class_begin_at_the_same_level(two_nodes: Path) -> None:
    rows = "A,node,1,v100\nA,cluster,2,v100\nA,socket,1,a100\nA,cluster,2,a100\n"
    assert "class A on v100 was timed at node, cluster, and at socket on another model" in refusal(
        gpu_aware_profile("import", "-", text=f"class,level,value_ms,model\n{rows}")
    )


def test_skip_bad_leaves_out_rows_and_classes_that_cannot_be_compared(two_nodes: Path) -> None:
    result = gpu_aware_profile("import", "-", "--skip-bad", text=GOOD + "A,node,x\nC,row,3\n")
    assert result.exit_code == 3
    assert "line 8: value_ms is 'x': not a number" in result.stderr
    assert "line 9: class C was timed at row only" in result.stderr
    assert profile_of(two_nodes / "store.db").level_ratios.keys() == {"A", "B"}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("show --levels --summary", 2, "--levels goes with neither"),
        ("show --levels --node n1", 2, "--levels goes with neither"),
        ("show --levels --class Z", 1, "class 'Z' is not one of A, B, C"),
        ("export --levels --json", 2, "--json exports everything"),
    ],
)
def test_wrong_use(two_nodes: Path, args: str, code: int, words: str) -> None:
    assert words in refusal(gpu_aware_profile(*args.split()), code)


def test_a_file_that_is_neither_names_both_kinds(two_nodes: Path) -> None:
    said = refusal(gpu_aware_profile("import", "-", text="class,lvl,value_ms\nA,node,1\n"))
    assert "expected gpu,node,class,value_ms (or class,level,value_ms" in said


def test_import_tells_where_the_configuration_wins(two_nodes: Path) -> None:
    configure(two_nodes, "[placement.levels]\ncluster = 1.5\n")
    said = done("import", "-", text=GOOD + "C,node,5\nC,switch,4\nC,cluster,6\n").stderr
    assert "class A, level cluster: 2 was measured, 1.5 counts (configured)" in said
    assert "class C, level switch: 0.8 was measured, 1 counts (measured, not below node)" in said
    assert "level node" not in said


def place_json(*args: str) -> Any:
    return json.loads(succeeded(gpu_aware("place", *args, "--json")).stdout)["answers"][0]


def test_place_goes_by_a_measured_penalty_and_says_so(two_nodes: Path) -> None:
    """Two fast GPUs lie on different sockets: 0.909 x 1.3 is more than 1.091 on one socket."""
    before = place_json("-g", "2", "-c", "A")
    assert list(before["place"].values()) == [[0, 2]]
    done("import", "-", text=GOOD)
    after = place_json("-g", "2", "-c", "A")
    assert list(after["place"].values()) == [[0, 1]]
    assert after["level"] == "socket"
    spread = place_json("-g", "8", "-c", "A")
    assert spread["why"]["chosen"]["penalty_from"] == "measured"
    assert spread["slowdown"] == pytest.approx(2 * spread["score"])
    other = place_json("-g", "8", "-c", "C")
    assert other["why"]["chosen"]["penalty_from"] == "default"
    assert other["slowdown"] == pytest.approx(1.5 * other["score"])
    configure(two_nodes, "[placement.levels]\nsocket = 1.0\nnode = 1.05\n")
    fixed = place_json("-g", "2", "-c", "A")
    assert list(fixed["place"].values()) == [[0, 2]]
    assert fixed["why"]["chosen"]["penalty_from"] == "configured"
    assert fixed["slowdown"] == pytest.approx(1.05 * fixed["score"])


TOPOLOGY = (
    "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n1\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n2\n"
    "SwitchName=r0 Level=1 LinkSpeed=1 Nodes=n[1-2] Switches=s[0-1]\n"
)


def simulate(site: Path, *args: str) -> tuple[dict[str, Any], str]:
    trace = site / "trace.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s,class\n1,0,8,100,A\n2,1000,8,100,C\n")
    result = succeeded(gpu_aware("simulate", str(trace), "-p", "pal", "--json", *args))
    return json.loads(result.stdout), result.stderr


def test_simulated_jobs_on_the_stores_cluster_run_at_measured_penalties(
    two_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 GPUs span both nodes, which share a rack. V is 1.2 / 1.1 for A; C has no scores."""
    done("import", "-", text=f"{HEAD}A,node,10\nA,rack,14\nA,cluster,20\n")
    (two_nodes / "controller").mkdir()
    slurm = SlurmFolder(two_nodes / "controller")
    slurm.serve(monkeypatch)
    slurm.set(silent="Unable to contact slurm controller")
    answer, said = simulate(two_nodes)
    assert "The levels of the network are left out" in said
    assert answer["site"]["levels"] == {"node": 1.0, "cluster": 1.5}
    assert answer["site"]["levels_by_class"] == {"A": {"node": 1.0, "cluster": 2.0}}
    assert answer["runs"][0]["avg_slowdown"] == pytest.approx((2.0 * 12 / 11 + 1.5) / 2)
    slurm.set(silent="", topology=TOPOLOGY)
    answer, said = simulate(two_nodes)
    assert "left out" not in said
    assert answer["site"]["levels"] == {"node": 1.0, "rack": 1.5, "cluster": 1.5}
    assert answer["runs"][0]["avg_slowdown"] == pytest.approx((1.4 * 12 / 11 + 1.5) / 2)
    answer, _ = simulate(two_nodes, "--locality-penalty", "1.2")
    assert answer["runs"][0]["avg_slowdown"] == pytest.approx((1.2 * 12 / 11 + 1.2) / 2)


def test_a_locality_penalty_below_that_of_a_tighter_level_is_refused(two_nodes: Path) -> None:
    configure(two_nodes, "[placement.levels]\nrack = 1.4\n")
    trace = two_nodes / "trace.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\n1,0,8,100\n")
    args = ["simulate", str(trace), "--locality-penalty", "1.2"]
    said = refusal(gpu_aware(*args))
    assert "--locality-penalty 1.2 is less than placement.levels.rack (1.4)" in said


def test_the_selector_plans_with_a_measured_penalty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same job, before and after the import, and where the configuration says otherwise."""
    slurm = SlurmFolder(tmp_path)
    slurm.serve(monkeypatch)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # those are the test runner's
    fill_store(slurm.store)

    def slots() -> list[int]:
        slurm.write([parked(comment="class=A")], nodes=["n1", "n2"])
        assert run(str(slurm.config), once=True) == 0
        decision = slurm.ledger("7")[-1]
        assert decision.asked["class"] == "A"
        return list(decision.slots[0])

    assert slots() == [0, 2]
    done("import", "-", "--store", str(slurm.store), text=GOOD)
    assert slots() == [0, 1]
    assert slurm.ledger("7")[-1].why["chosen"]["penalty_from"] == "measured"
    with slurm.config.open("a") as file:
        file.write("[placement.levels]\nsocket = 1.0\nnode = 1.05\n")
    assert slots() == [0, 2]
