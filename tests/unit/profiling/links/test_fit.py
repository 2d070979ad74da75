"""``gpu-aware-profile classify`` and ``fit-effbw``: real files, real program functions."""

import json
import tomllib
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from store_samples import ingest, profile_of, report

from slurm_gpu_aware.admission.profile_arrays import profile_arrays
from slurm_gpu_aware.model.hardware_graph import Collective, HardwareGraph
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import put_collectives
from slurm_gpu_aware.topology.bandwidth import BOTTLENECK, eq2, eq2_model
from slurm_gpu_aware.topology.link_mixes import link_mixes
from slurm_gpu_aware.topology.machines import machine
from slurm_gpu_aware.topology.matching import fitted_ring, match
from slurm_gpu_aware.topology.patterns import Pattern

KNOWN = """\
application,dram,peak_fu
resnet50,35,78
vgg19,30,85
bert,55,48
gpt2,60,45
pagerank,72,8
"""
NCU = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","gemm","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","30"\n'
    '"0","gemm","sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active","%","80"\n'
)
DCGM = """\
#Entity   DRAMA   TENSO   FP64A   FP32A   FP16A
ID
GPU 0     0.700   0.000   0.000   0.100   0.000
GPU 0     0.740   0.000   0.000   0.060   0.000
"""
RINGS = [(2, 0, 0), (0, 2, 0), (0, 0, 2), (2, 1, 0), (1, 2, 0), (3, 0, 0), (0, 3, 0), (1, 1, 1)]
RINGS += [(0, 0, 3), (4, 0, 0), (2, 2, 0), (0, 4, 0), (2, 1, 1), (1, 1, 2), (0, 2, 2), (3, 1, 1)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text('[site]\nclasses = ["A", "B", "C"]\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(tmp_path / "config.toml"))
    for name, text in (("known.csv", KNOWN), ("gemm.csv", NCU), ("graph.txt", DCGM)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_counters_of_both_tools_go_to_the_nearest_class(files: Path) -> None:
    argv = ("classify", "--applications", "known.csv", "gemm.csv", "graph.txt", "--json")
    answer = json.loads(succeeded(gpu_aware_profile(*argv)).stdout)
    got = {a["application"]: a["class"] for a in answer["applications"]}
    classes = {"resnet50": "A", "vgg19": "A", "bert": "B", "gpt2": "B", "pagerank": "C"}
    assert got == classes | {"gemm": "A", "graph": "C"}
    graph = answer["applications"][-1]
    assert (graph["dram"], graph["peak_fu"]) == (72.0, 8.0)
    assert graph["distance"]["C"] == 0.0
    assert graph["distance"]["A"] == pytest.approx(((72 - 32.5) ** 2 + (8 - 81.5) ** 2) ** 0.5)
    assert [c["class"] for c in answer["centres"]] == ["A", "B", "C"]


def test_saved_centres_classify_as_the_fit_did(files: Path) -> None:
    argv = ("classify", "--applications", "known.csv", "--write-centres", "c.csv")
    succeeded(gpu_aware_profile(*argv))
    done = succeeded(gpu_aware_profile("classify", "--centres", "c.csv", "-", text=NCU))
    row = next(line for line in done.stdout.splitlines() if line.startswith("stdin"))
    assert row.split()[:3] == ["stdin", "30.0", "80.0"]
    assert row.split()[-1] == "A"


APPLICATIONS = "application,dram,peak_fu\n"
OF_FIT = "fit-effbw -"
OF_MACHINE = "fit-effbw - --machine"


@pytest.mark.parametrize(
    ("argv", "text", "code", "sentence"),
    [
        ("classify --applications known.csv --centres known.csv", "", 2, "one of --applications"),
        ("classify gemm.csv", "", 1, "no centres of the classes are known; give --centres"),
        ("classify --save-centres", "", 2, "new centres come from --applications or --centres"),
        ("classify --centres known.csv", "", 2, "name a FILE"),
        ("classify --centres known.csv gemm.csv", "", 1, "known.csv: no column 'class'"),
        ("classify --applications -", f"{APPLICATIONS}a,1,2\n", 1, "3 classes need"),
        ("classify --applications -", f"{APPLICATIONS}a,1,200\n", 1, "line 2: utilisation must be"),
        ("classify --applications -", f"{APPLICATIONS}a,1,2\na,2,3\n", 1, "occurs twice"),
        ("classify --applications -", APPLICATIONS, 1, "stdin: no row"),
        ("classify --applications known.csv known.csv", "", 1, "no Nsight Compute table"),
        (OF_FIT, "x,y,z,gbps\n1,0,0,10\n", 1, "at least two"),
        (OF_FIT, "x,y,z\n1,0,0\n", 1, "no column 'gbps'"),
        (OF_FIT, "x,y,z,gbps\n1,0,0,fast\n", 1, "line 2: gbps is 'fast': not a number"),
        (OF_FIT, "x,y,z,gbps\n-1,0,0,4\n", 1, "line 2: x is -1: expected 0 to 10000"),
        (OF_FIT, "x,y,z,gbps\n1,0,0,nan\n", 1, "line 2: gbps is 'nan'"),
        (OF_FIT, "x,y,z,gbps\n1,0\n", 1, "line 2: 2 cells, expected 4"),
        (f"{OF_MACHINE} toaster", "gpus,gbps\n0 1,2\n", 1, "'toaster' is not known; known: dgx-1"),
        (f"{OF_MACHINE} dgx-1-v100", "gpus,gbps\n0 9,2\n", 1, "line 2: '0 9' is not two or more"),
        ("fit-effbw", "", 2, "give one of FILE and --measured"),
        ("fit-effbw --measured known.csv", "", 2, "give one of FILE and --measured"),
        ("fit-effbw --model a100 known.csv", "", 2, "--model and --save go with --measured"),
        ("fit-effbw --save known.csv", "", 2, "--model and --save go with --measured"),
        ("fit-effbw --measured --machine dgx-2", "", 2, "--machine with FILE"),
        ("fit-effbw --measured --store store.db", "", 1, "no all-reduce was measured: 'gpu-aware-"),
    ],
)
def test_what_is_wrong_is_said(files: Path, argv: str, text: str, code: int, sentence: str) -> None:
    open_store(files / "store.db").close()
    done = gpu_aware_profile(*argv.split(), text=text)
    assert sentence in refusal(done, code)
    assert done.stdout == ""


def rings_csv(rings: list[tuple[int, int, int]]) -> str:
    rows = [f"{x},{y},{z},{float(eq2(x, y, z)):.6f}" for x, y, z in rings]
    return "\n".join(["# all-reduce, GB/s", "x,y,z,gbps", *rows, ""])


def test_a_fit_gives_back_what_was_measured(files: Path) -> None:
    done = succeeded(gpu_aware_profile("fit-effbw", "-", "--json", text=rings_csv(RINGS)))
    answer = json.loads(done.stdout)
    assert answer["samples"] == len(RINGS)
    assert answer["mae_gbps"] == pytest.approx(answer["published_mae_gbps"], abs=1e-3)
    assert len(answer["coefficients"]) == 14
    model = eq2_model(answer["effbw"])
    for ring in RINGS:
        assert float(eq2(*ring, model)) == pytest.approx(float(eq2(*ring)), abs=1e-3)


def test_what_is_printed_is_what_the_policy_takes(files: Path) -> None:
    done = succeeded(gpu_aware_profile("fit-effbw", "-", text=rings_csv(RINGS[:9])))
    sections = tomllib.loads(done.stdout[done.stdout.index("[policies") :])["policies"]
    assert set(sections) == {"pal+mapa", "mapa-preserve"}
    for policy, options in sections.items():
        assert make_policy(policy, options).options.model.name == "refit"
    assert "terms are independent in these samples" in done.stderr


def test_links_are_counted_on_a_known_machine(files: Path) -> None:
    pair = fitted_ring(machine("dgx-1-v100"), (0, 3))
    rows = "gpus,gbps\n0 3,40\n0 1,20\n0 1 4,11\n0 2 3,22\n"
    argv = ("fit-effbw", "-", "--machine", "dgx-1-v100", "--json")
    model = eq2_model(json.loads(succeeded(gpu_aware_profile(*argv, text=rows)).stdout)["effbw"])
    assert float(eq2(*pair, model)) == pytest.approx(40.0, abs=1e-3)


def stored(
    path: Path,
    machine_name: str,
    gbps: Callable[[HardwareGraph, tuple[int, ...]], float],
    taken_at: float = 1000.0,
    **more: str,
) -> None:
    """A store with the mixes of a machine, measured on two nodes. ``more``: node -> model."""
    graph = machine(machine_name)
    mixes = [mix.gpus for mix in link_mixes(graph, range(2, 9))]
    with open_store(path) as store:
        for node, model in {"n1": "v100", "n2": "v100", **more}.items():
            raw = report(node, times=dict.fromkeys(range(graph.n), 1.0), taken_at=taken_at)
            for gpu in raw["gpus"]:
                gpu["model"] = model
            raw["links"] = [
                {"a": a, "b": b, "class": graph.classes[a][b], "gbps": graph.gbps.item(a, b)}
                for a, b in combinations(range(graph.n), 2)
            ]
            raw["collectives"] = [
                {"gpus": list(gpus), "operation": "all_reduce", "gbps": gbps(graph, gpus)}
                for gpus in mixes
            ]
            ingest(store, raw)


def by_eq2(graph: HardwareGraph, gpus: tuple[int, ...]) -> float:
    return 100.0 + float(eq2(*fitted_ring(graph, gpus)))


def by_slowest_link(graph: HardwareGraph, gpus: tuple[int, ...]) -> float:
    """With an error of up to 2%, which no twin shares."""
    slowest = match(graph, gpus, Pattern("ring"), BOTTLENECK).eff_gbps
    return slowest * (0.8 + 0.0001 * (hash(gpus) % 160))


def fit_measured(*options: str) -> Result:
    return gpu_aware_profile("fit-effbw", "--measured", "--store", "store.db", *options)


def test_measured_rings_that_follow_eq_2_are_fitted_by_it(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_eq2)
    answer = json.loads(fit_measured("--json").stdout)
    assert (answer["samples"], answer["recommended"]) == (112, "refit")
    assert answer["left_out_rmse_gbps"] < answer["bottleneck"]["left_out_rmse_gbps"]
    assert answer["share_of_best"] == pytest.approx(1.0)
    model = eq2_model(answer["effbw"])
    ring = fitted_ring(machine("dgx-1-v100"), (0, 1, 2, 3))
    assert float(eq2(*ring, model)) == pytest.approx(100.0 + float(eq2(*ring)), abs=1.0)
    text = fit_measured().stdout
    sections = tomllib.loads(text[text.index("[policies") :])["policies"]
    assert set(sections) == {"pal+mapa", "mapa-preserve"}


def test_where_the_slowest_link_decides_no_line_is_printed(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_slowest_link)
    done = succeeded(fit_measured())
    assert "[policies" not in done.stdout
    assert "the bottleneck model, which is the default, is at least as good" in done.stderr
    answer = json.loads(fit_measured("--json").stdout)
    assert answer["bottleneck"]["share_of_slowest_link"] == pytest.approx(0.808, abs=0.01)
    assert answer["bottleneck"]["left_out_rmse_gbps"] < 0.5 < answer["left_out_rmse_gbps"]


def test_behind_a_switch_there_is_nothing_to_fit(files: Path) -> None:
    stored(files / "store.db", "dgx-a100", lambda graph, gpus: 230.0 + len(gpus))
    answer = json.loads(fit_measured("--json").stdout)
    assert answer["all_sets_alike"]
    assert answer["recommended"] == "bottleneck"
    assert answer["rank"] == 3
    assert "no set is better than another" in " ".join(fit_measured().stderr.split())


def test_each_model_has_a_fit_of_its_own(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_eq2, n3="a100")
    said = refusal(fit_measured())
    assert "several GPU models were measured (a100, v100); choose one by --model" in said
    assert json.loads(fit_measured("--model", "a100", "--json").stdout)["samples"] == 56
    done = fit_measured("--model", "h100")
    assert "no all-reduce was measured on model 'h100'; measured: a100, v100" in done.stderr


def test_a_saved_fit_counts_for_its_model_only(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_eq2, n3="a100")
    done = fit_measured("--model", "v100", "--save")
    assert "stored in store.db: EffBW of v100 is this fit" in done.stderr
    profile = profile_of(files / "store.db")
    answer = json.loads(fit_measured("--model", "v100", "--json").stdout)
    assert profile.effbw == {"v100": tuple(answer["effbw"])}
    graphs = profile_arrays(profile, ("n1", "n3"), (8, 8), ("A",)).graphs
    assert [graph and graph.effbw for graph in graphs] == [profile.effbw["v100"], None]

    # Measured anew, the slowest link decides: the fit no longer counts.
    stored(files / "store.db", "dgx-1-v100", by_slowest_link, taken_at=2000.0)
    done = fit_measured("--model", "v100", "--save")
    assert "removed from store.db: the earlier fit of v100" in done.stderr
    assert profile_of(files / "store.db").effbw == {}


def test_a_saved_fit_is_forgotten_by_name(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_eq2)
    fit_measured("--save")
    forget = ("forget", "--store", "store.db", "--effbw")
    assert "no EffBW of GPU model 'h100' is stored" in gpu_aware_profile(*forget, "h100").stderr
    assert "forgot EffBW of v100" in gpu_aware_profile(*forget, "v100").stderr
    assert profile_of(files / "store.db").effbw == {}


def test_sets_whose_links_or_model_are_not_known_are_left_out(files: Path) -> None:
    stored(files / "store.db", "dgx-1-v100", by_eq2)
    with open_store(files / "store.db") as store:
        raw = report("n3", times=dict.fromkeys(range(4), 1.0))
        raw["gpus"][1]["model"] = "a100"
        raw["links"] = raw["links"][:1]  # of GPUs 0 and 1
        raw["collectives"] = [
            {"gpus": gpus, "operation": "all_reduce", "gbps": 1.0} for gpus in ([0, 1], [2, 3])
        ]
        ingest(store, raw)
        imported = [Collective("n1", (0, 9), "all_reduce", 2000.0, 1.0)]  # no GPU 9 was seen
        put_collectives(store, imported, source="import")
    assert json.loads(fit_measured("--json").stdout)["samples"] == 112
