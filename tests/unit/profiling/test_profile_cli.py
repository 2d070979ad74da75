"""``gpu-aware-profile`` show, import, export, rescore: exit codes, streams, effect on disk."""

import csv
import io
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from command_server import run_command
from commands import gpu_aware_profile, refusal, succeeded
from store_samples import ingest, profile_of, report

from gpu_aware_profile.cli import cli
from gpu_aware_profile.store_writer import newest_timings, recompute_scores
from slurm_gpu_aware.store.database import open_store

Run = Callable[..., subprocess.CompletedProcess[str]]

HEAD = "gpu,node,class,value_ms\n"
GOOD = f"{HEAD}0,n1,A,100\n1,n1,A,101.5\n2,n1,A,200\n0,n1,C,50\n"
BAD_ROWS = {
    "x,n1,A,1": "neither an index",
    "-1,n1,A,1": "neither an index",
    "٣,n1,A,1": "neither an index",
    "64,n1,A,1": "neither an index",
    "0,n1;rm,A,1": "'n1;rm' is not a node name",
    "0,n1,Q,1": "class 'Q' is not one of A, B, C",
    "0,n1,../A,1": "class '../A' is not one of A, B, C",
    "0,n1,A": "3 cells, expected 4",
    "0,n1,A,fast": "value_ms is 'fast': not a number",
    "0,n1,A,nan": "not a finite number",
    "0,n1,A,inf": "not a finite number",
    f"0,n1,A,{'9' * 200}": "value_ms must be a time of 1e-06 to 1e+12 ms",
    "0,n1,A,1e308": "value_ms must be a time of 1e-06 to 1e+12 ms",
    "0,n1,A,1e-320": "value_ms must be a time of 1e-06 to 1e+12 ms",
    "0,n1,A,-1": "value_ms must be a time of 1e-06 to 1e+12 ms",
    "0,n1,A,0": "value_ms must be a time of 1e-06 to 1e+12 ms",
}
BAD = GOOD + "".join(f"{row}\n" for row in BAD_ROWS)


LOST = {"index": 3, "call": "nvmlDeviceGetHandleByIndex", "error": "lost"}


@pytest.fixture
def profile_in(tmp_path: Path) -> Run:
    """Run the program in ``tmp_path`` with the store ``store.db`` there."""
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')

    def call(*args: str, text: str = "", columns: int = 80) -> subprocess.CompletedProcess[str]:
        own = {"COLUMNS": str(columns), "GPU_AWARE_CONFIG": str(config)}
        argv = [str(tmp_path), "gpu-aware-profile", *args]
        done = run_command(argv, {**os.environ, **own}, text=text, folder=tmp_path)
        assert "Traceback" not in done.stderr
        return done

    return call


def test_import_then_show(profile_in: Run, tmp_path: Path) -> None:
    done = profile_in("import", "-", text=GOOD)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"imported 4 timings of 3 GPUs into {tmp_path}/store.db\n"
    shown = succeeded(profile_in("show"))
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert " ".join(lines[0].split()) == "class model GPUs bins outliers best worst spread age"
    assert lines[2].split()[:7] == ["A", "-", "3", "2", "0", "0.985", "1.970"]
    rows = [line.split() for line in lines if line.startswith("A ")][1:]
    assert [row[2] for row in rows] == ["0", "1", "2"]  # best first
    assert all(len(line) <= 80 for line in lines)


def test_show_json_and_csv_agree_with_the_store(profile_in: Run, tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        ingest(store, report("n1", times={0: 100.0, 1: 100.0, 2: 130.0}, errors=[LOST]))
        recompute_scores(store)
    answer = json.loads(profile_in("show", "--json").stdout)
    assert answer["summary"][0]["class"] == "A"
    assert answer["summary"][0]["worst"] == 1.3
    assert {g["node"] for g in answer["gpus"]} == {"n1"}
    assert [(g["gpu"], g["pm_score"]) for g in answer["gpus"]] == [(0, 1.0), (1, 1.0), (2, 1.3)]
    fault = {"node": "n1", "gpu": 3, "call": LOST["call"], "error": "lost"}
    assert answer["faults"] == [fault]
    table = list(csv.DictReader(io.StringIO(profile_in("show", "--csv").stdout)))
    assert [{k: str(v) for k, v in g.items()} for g in answer["gpus"]] == table
    assert "gpus" not in json.loads(profile_in("show", "--summary", "--json").stdout)
    assert "lost" in profile_in("show").stdout


def test_show_can_be_narrowed(profile_in: Run) -> None:
    profile_in("import", "-", text=GOOD.replace("2,n1", "2,n2"))
    only = json.loads(profile_in("show", "--json", "--class", "A", "--node", "n2").stdout)
    assert [(g["node"], g["class"]) for g in only["gpus"]] == [("n2", "A")]
    by_node = json.loads(profile_in("show", "--json", "--sort", "node").stdout)
    shown = [f"{g['node']}:{g['gpu']} {g['class']}" for g in by_node["gpus"]]
    assert shown == ["n1:0 A", "n1:0 C", "n1:1 A", "n2:2 A"]
    missing = profile_in("show", "--class", "Z")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "Error: no scores of class 'Z'; known: A, C\n"


def test_bad_rows_are_named_and_nothing_is_imported(profile_in: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(BAD)
    done = profile_in("import", "bad.csv")
    assert (done.returncode, done.stdout) == (1, "")
    *said, last = done.stderr.splitlines()
    for number, (line, why) in enumerate(zip(said, BAD_ROWS.values(), strict=True), 6):
        assert line.startswith(f"bad.csv: line {number}: ")
        assert why in line
    assert last.startswith("Error: 16 bad rows, nothing was imported")
    with open_store(tmp_path / "store.db") as store:
        assert newest_timings(store) == []


def test_skip_bad_imports_the_rest_and_says_so(profile_in: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(BAD)
    done = profile_in("import", "bad.csv", "--skip-bad")
    assert done.returncode == 3
    assert "imported 4 timings" in done.stderr
    assert "line 14: value_ms is 'fast': not a number" in done.stderr
    assert set(profile_of(tmp_path / "store.db").scores) == {"A", "C"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "stdin: it is empty"),
        ("gpu,node,value_ms\n0,n1,1\n", "no column 'class'.*--class NAME"),
        ("gpu,gpu,node,class,value_ms\n", "column 'gpu' occurs twice"),
        ("gpu,node,class,value_ms\n", "no row to import"),
        ('gpu,node,class,value_ms\n"0,n1,A,1\n', "not CSV"),
        ("gpu,node,class,value_ms\n0,n1,A,\0\n", "NUL"),
    ],
)
def test_files_that_are_no_timings_are_refused(profile_in: Run, text: str, reason: str) -> None:
    done = profile_in("import", "-", text=text)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert re.search(reason, done.stderr)


def test_binary_files_are_refused(profile_in: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(HEAD.encode() + b"0,n\xff1,A,1\n")
    assert "not UTF-8" in refusal(profile_in("import", "x.csv"))


def test_a_file_without_a_class_column_and_from_a_spreadsheet(
    profile_in: Run, tmp_path: Path
) -> None:
    text = "\ufeffnode,extra,gpu,value_ms\r\nn1,?,0,100\r\n\r\nn1,?,1,120\r\n"
    succeeded(profile_in("import", "-", "--class", "B", "--taken-at", "1234.5", text=text))
    with open_store(tmp_path / "store.db") as store:
        found = [(t.slot, t.app_class, t.value_ms) for t in newest_timings(store)]
    assert found == [(0, "B", 100.0), (1, "B", 120.0)]
    assert profile_of(tmp_path / "store.db").taken_at == {"n1": 1234.5}


def test_export_and_import_are_inverse(profile_in: Run, tmp_path: Path) -> None:
    profile_in("import", "-", text=GOOD.replace("101.5", "101.50000000000001"))
    exported = profile_in("export").stdout
    profile_in("import", "-", "--store", "other.db", text=exported)
    one, two = (profile_of(tmp_path / name) for name in ("store.db", "other.db"))
    assert one.raw_scores == two.raw_scores
    assert profile_in("export", "--store", "other.db").stdout == exported
    assert profile_in("export", "out.csv").stdout == ""
    assert (tmp_path / "out.csv").read_text() == exported


def test_export_json_holds_the_whole_profile(profile_in: Run, tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        raw = report()
        raw["nics"] = [{"name": "mlx5_0", "pci": "0000:1a:00.0"}]
        raw["bandwidths"] = [{"a": 0, "b": 1, "ab_gbps": 47.0}]
        raw["collectives"] = [{"gpus": [0, 1], "operation": "all_reduce", "gbps": 44.0}]
        ingest(store, raw)
        recompute_scores(store)
    answer = json.loads(profile_in("export", "--json").stdout)
    assert (answer["nics"][0]["node"], answer["nics"][0]["name"]) == ("n1", "mlx5_0")
    assert (answer["bandwidths"][0]["node"], answer["bandwidths"][0]["ab_gbps"]) == ("n1", 47.0)
    assert (answer["collectives"][0]["gpus"], answer["collectives"][0]["gbps"]) == ([0, 1], 44.0)
    counts = {"nodes": 1, "gpus": 4, "links": 6, "timings": 4, "scores": 4}
    assert {name: len(answer[name]) for name in counts} == counts


def test_rescore_with_one_median_for_all_models(profile_in: Run, tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        ingest(store, report("n1", times={0: 100.0}))
        fast = report("n2", times={0: 50.0})
        fast["gpus"][0]["model"] = "a100"
        ingest(store, fast)
        recompute_scores(store)
    for reference, scores in (("model", [1.0, 1.0]), ("cluster", [2 / 3, 4 / 3])):
        succeeded(profile_in("rescore", "--reference", reference))
        answer = json.loads(profile_in("show", "--json").stdout)
        assert [g["pm_score"] for g in answer["gpus"]] == pytest.approx(scores)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("show",), 1, "or makes the store with 'gpu-aware-profile sweep'"),
        (("show", "--json", "--csv"), 2, "give one of --json and --csv"),
        (("show", "--summary", "--csv"), 2, "--summary has no CSV form"),
        (("show", "--sort", "age"), 2, "is not one of"),
        (("import", "nowhere.csv"), 2, "nowhere.csv"),
        (("rescore", "--reference", "rack"), 2, "is not one of"),
        (("frobnicate",), 2, "No such command"),
        (("show", "--config", "nowhere.toml"), 1, "nowhere.toml: cannot be read"),
    ],
)
def test_wrong_use_ends_in_one_sentence(
    profile_in: Run, args: tuple[str, ...], code: int, words: str
) -> None:
    done = profile_in(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_an_empty_store_shows_what_to_do(profile_in: Run, tmp_path: Path) -> None:
    open_store(tmp_path / "store.db").close()
    done = succeeded(profile_in("show"))
    assert "gpu-aware-profile sweep" in done.stderr
    assert json.loads(profile_in("show", "--json").stdout)["gpus"] == []


def test_every_own_command_has_help_with_an_example() -> None:
    for name in ("show", "import", "export", "rescore", "forget"):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help is not None
        assert f"gpu-aware-profile {name}" in command.help


SWEPT = f"{HEAD}0,n1,A,100\n9,n1,A,100\n0,n9,A,100\n"


def sweep(path: Path) -> None:
    with open_store(path) as store:
        for node in ("n1", "n2"):
            ingest(store, report(node, times={0: 100.0, 1: 100.0}))
        recompute_scores(store)


FOUR = {(node, slot) for node in ("n1", "n2") for slot in (0, 1)}


def test_a_wrong_line_of_an_import_becomes_no_hardware(profile_in: Run, tmp_path: Path) -> None:
    """Rows for GPUs that no sweep had seen silently added GPUs and nodes."""
    sweep(tmp_path / "store.db")
    assert refusal(profile_in("import", "-", text=SWEPT)).splitlines() == [
        "stdin: line 3: no sweep has seen GPU 9 of node n1, only 0, 1; sweep first, or give"
        " --new-gpus",
        "stdin: line 4: no sweep has seen node n9, only n1, n2; sweep first, or give --new-gpus",
        "Error: 2 bad rows, nothing was imported; correct the file or give --skip-bad",
    ]
    assert profile_of(tmp_path / "store.db").gpus.keys() == FOUR
    assert profile_in("import", "-", "--skip-bad", text=SWEPT).returncode == 3
    assert profile_of(tmp_path / "store.db").gpus.keys() == FOUR
    done = succeeded(profile_in("import", "-", "--new-gpus", text=SWEPT))
    assert " ".join(done.stderr.split()).endswith(
        "store.db note: place, setup and simulations of the store's cluster omit these GPUs"
        " until a sweep has seen them: n1:9, n9:0."
    )
    assert profile_of(tmp_path / "store.db").gpus.keys() == FOUR | {("n1", 9), ("n9", 0)}


def test_times_of_a_gpu_that_a_sweep_failed_to_read_are_taken(
    profile_in: Run, tmp_path: Path
) -> None:
    with open_store(tmp_path / "store.db") as store:
        ingest(store, report("n1", errors=[LOST], times={0: 100.0}))
    succeeded(profile_in("import", "-", text=f"{HEAD}3,n1,A,100\n"))


def test_forget_removes_and_scores_again(profile_in: Run, tmp_path: Path) -> None:
    sweep(tmp_path / "store.db")
    slow = SWEPT.replace("n9,A,100", "n9,A,300").replace("9,n1,A,100", "9,n1,A,300")
    profile_in("import", "-", "--new-gpus", text=slow)
    unknown = refusal(profile_in("forget", "n1:9", "n7"))
    assert unknown == "Error: no node 'n7' in the store; known: n1, n2, n9\n"
    assert ("n1", 9) in profile_of(tmp_path / "store.db").gpus  # all or nothing
    assert "no GPU 5 of node n1 in the store; known: 0, 1, 9" in profile_in("forget", "n1:5").stderr
    said = succeeded(profile_in("forget", "n1:9", "n9:0")).stderr
    assert said == f"forgot 2 GPUs in {tmp_path}/store.db\n"
    profile = profile_of(tmp_path / "store.db")
    assert set(profile.gpus) == FOUR
    assert set(profile.taken_at) == {"n1", "n2"}
    assert set(profile.scores["A"]) == FOUR
    succeeded(profile_in("forget", "n2"))
    profile = profile_of(tmp_path / "store.db")
    assert (set(profile.gpus), set(profile.links)) == ({("n1", 0), ("n1", 1)}, {"n1"})


def test_forget_level_times_of_a_class(profile_in: Run, tmp_path: Path) -> None:
    levels = "class,level,value_ms\n" + "".join(
        f"{name},{level},{ms}\n" for name in "AC" for level, ms in (("node", 100), ("cluster", 150))
    )
    assert profile_in("import", "-", text=levels).stderr == (
        f"imported 4 level times of classes A, C into {tmp_path}/store.db\n"
    )
    said = succeeded(profile_in("forget", "--levels", "C")).stderr
    assert said == f"forgot 2 level times of C in {tmp_path}/store.db\n"
    left = profile_in("export", "--levels").stdout.split()[1:]
    assert left == ["A,node,100.0,", "A,cluster,150.0,"]
    again = profile_in("forget", "--levels", "C")
    assert again.stderr == "Error: no level times of class 'C'; known: A\n"


@pytest.mark.parametrize(
    ("args", "code"), [((), 2), (("n1:x",), 2), (("n1:0:1",), 2), (("n1",), 1)]
)
def test_forget_wants_a_gpu_and_makes_no_store(
    profile_in: Run, tmp_path: Path, args: tuple[str, ...], code: int
) -> None:
    refusal(profile_in("forget", *args), code)
    assert not (tmp_path / "store.db").exists()


def test_the_pattern_of_an_application_is_told_with_the_comment_to_type(tmp_path):
    line = (
        "n1:42:43 [0] NCCL INFO AllReduce: 800 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
    )
    (tmp_path / "app.log").write_text(f"step 1\n{line}\nL\xf6ss\n", encoding="latin-1")
    done = succeeded(gpu_aware_profile("pattern", str(tmp_path / "app.log")))
    assert "pattern: ring (by the algorithms that NCCL took, in bytes)" in done.stdout
    assert "traffic: ring 100%" in done.stdout
    assert "--comment=pattern=ring" in done.stdout
    done = gpu_aware_profile("pattern", "--json", "-", text=f"{line}\n".encode())
    assert json.loads(done.stdout)["comment"] == "pattern=ring"
    done = gpu_aware_profile("pattern", "-", text=b"step 1\n")
    assert done.exit_code != 0
