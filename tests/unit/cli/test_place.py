"""place: the table, JSON, comparison, the picture, and honest refusals."""

import json
import re
from pathlib import Path

import pytest
from commands import gpu_aware, refusal, succeeded
from store_samples import ingest, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import Run, put_timings

DGX = ["--machine", "dgx-1-v100"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A store with two nodes of four GPUs; GPU 3 of n2 is the fastest, GPU 0 of n1 the slowest."""
    times = {
        "n1": {0: 140.0, 1: 100.0, 2: 100.0, 3: 100.0},
        "n2": {0: 100.0, 1: 100.0, 2: 100.0, 3: 80.0},
    }
    with open_store(tmp_path / "store.db") as store:
        for node, values in times.items():
            ingest(store, report(node, 1000.0, values))
        recompute_scores(store)
    file = tmp_path / "config.toml"
    file.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    return file


def answers(config: Path, *args: str, code: int = 0) -> list[dict]:
    done = gpu_aware("place", *args, "--json", config=config)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)["answers"]


def test_the_fastest_gpu_of_the_profile(config: Path):
    (found,) = answers(config, "-g", "1", "-c", "A")
    assert found["place"] == {"n2": [3]}
    assert found["slowdown"] < 1.0


def test_busy_gpus_are_left_alone(config: Path):
    (found,) = answers(config, "-g", "1", "-c", "A", "--busy", "n2:0,3")
    assert found["place"] != {"n2": [3]}


def test_compare_asks_each_policy_once(config: Path):
    found = answers(config, "-g", "2", "--compare", "packed,pm-first,packed")
    assert [a["policy"] for a in found] == ["eft", "packed", "pm-first"]


def test_two_nodes_get_the_same_indices(config: Path):
    (found,) = answers(config, "-g", "4", "-N", "2", "-c", "A")
    assert set(found["place"]) == {"n1", "n2"}
    assert found["place"]["n1"] == found["place"]["n2"]
    assert found["level"] == "cluster"


def test_bandwidths_of_a_known_machine(config: Path):
    """MAPA, section 2.2: three GPUs of a DGX-1V ring with 125 GB/s."""
    (found,) = answers(config, "-g", "3", "--busy", "n1:0", *DGX)
    assert found["place"] == {"n1": [1, 2, 3]}
    assert (found["agg_gbps"], found["eff_gbps"]) == (125.0, 25.0)


def test_the_table_fits_and_says_why(config: Path):
    done = gpu_aware("place", "-g", "2", "--compare", "packed", *DGX, config=config)
    assert max(len(x) for x in done.stdout.splitlines()) <= 100
    assert "packed: GPUs close together, on the fullest node with room\n" in done.stdout


def test_nothing_fits_is_exit_1(config: Path):
    done = gpu_aware("place", "-g", "99", config=config)
    assert done.exit_code == 1
    assert done.stderr == "Nothing fits: 99 GPUs on 2 nodes with 8 GPUs, 8 of them free.\n"
    assert "eft: needs 99 GPUs; the nodes it may use have 8 GPUs" in flat(done.stdout)


MINSKY = ["--machine", "ibm-minsky-4xp100", "--machines", "2"]
APART = ["-g", "4", *MINSKY, "--busy", "n1:0,1", "--busy", "n2:0,1"]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_postponed_job_is_not_called_impossible(config: Path):
    asked = [*APART, "--policy", "topo-aware-p", "--compare", "packed"]
    done = gpu_aware("place", *asked, config=config)
    assert done.exit_code == 1
    assert "Nothing fits" not in done.stderr
    assert "nothing fits" not in done.stdout
    assert "Postponed: 4 GPUs on 2 nodes with 8 GPUs, 4 of them free." in done.stderr
    told = "topo-aware-p: the policy waits for better GPUs than the free ones"
    assert f"{told} (utility 0.00, it asks for 0.50 now)" in flat(done.stdout)
    assert "n1: 2,3; n2: 2,3" in done.stdout
    waits, packed = answers(config, *asked, code=1)
    assert (waits["place"], waits["postponed"]) == (None, True)
    assert waits["reason"].startswith("the policy waits for better GPUs")
    assert packed["place"] == {"n1": [2, 3], "n2": [2, 3]}


WAITS = ["-g", "1", "-c", "A", "--run-time", "8h"]
"""The fastest GPU is 3 of n2, the next ones are a fifth slower."""


def test_a_wait_for_better_gpus_says_what_was_weighed(config: Path):
    asked = [*WAITS, "--busy", "n2:3@40m"]
    done = gpu_aware("place", *asked, "--compare", "pal", config=config)
    assert done.exit_code == 1
    told = r"eft: expected at 20\d\d-\d\d-\d\d \d\d:\d\d on n2 GPU 3 \((0\.\d\d)\); it ends"
    told += r" (\d+) min (?:\d+ s )?sooner than now on n\d GPU \d \((\d\.\d\d)\)"
    found = re.search(told, flat(done.stdout))
    assert found, done.stdout
    there, sooner_min, here = float(found[1]), int(found[2]), float(found[3])
    assert sooner_min == pytest.approx(8 * 60 * (here - there) - 40, abs=5)
    assert done.stderr == "Postponed: 1 GPU on 2 nodes with 8 GPUs, 7 of them free.\n"
    eft, pal = answers(config, *asked, "--compare", "pal", code=1)
    assert (eft["place"], eft["postponed"]) == (None, True)
    assert pal["place"] is not None
    assert f"pal: {pal['words']['why']}" in flat(done.stdout)


@pytest.mark.parametrize(
    "asked",
    [
        [*WAITS, "--busy", "n2:3"],  # nothing is known of its end
        [*WAITS, "--busy", "n2:3@5h"],  # later than the job may wait
        [*WAITS[:4], "--busy", "n2:3@40m"],  # nothing is known of the run time
    ],
)
def test_no_wait_without_an_end_and_a_run_time(config: Path, asked: list[str]):
    (found,) = answers(config, *asked)
    assert found["place"] is not None


def test_without_a_place_the_reason_is_told(config: Path):
    busy = ["--busy", "n1:0,1", "--busy", "n2:2,3"]
    asked = ["-g", "4", *MINSKY, *busy, "--policy", "pal"]
    done = gpu_aware("place", *asked, config=config)
    assert done.exit_code == 1
    reason = "no 2 nodes have the same 2 GPU indices free, as Slurm needs"
    assert done.stderr == "Nothing fits: 4 GPUs on 2 nodes with 8 GPUs, 4 of them free.\n"
    assert f"pal: {reason}" in flat(done.stdout)
    (found,) = answers(config, *asked, code=1)
    assert (found["place"], found["postponed"]) == (None, False)
    assert found["reason"].startswith(reason)


def test_another_policys_refusal_is_told_beside_a_place(config: Path):
    policies = ["--policy", "packed", "--compare", "topo-aware-p"]
    done = succeeded(gpu_aware("place", *APART, *policies, config=config))
    assert "postponed" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--policy", "best"], "unknown policy 'best'; known:"),
        (["-c", "Z"], "class 'Z' is not one of the site's: A, B, C"),
        (["--machine", "cray"], "unknown machine 'cray'; known:"),
        (["--pattern", "star"], "pattern 'star' is unknown; valid:"),
        (["--busy", "n9:0"], "no node 'n9'; known: n1, n2"),
        (["--busy", "n1:7"], "n1 has no GPU 7; it has 0, 1, 2, 3"),
        (["--busy", "n1"], "expected NODE:0,3 or NODE:0,3@END"),
        (["--busy", "n1:0@soon"], "--busy: 'soon' is not a time like 18:30 or a duration like 90m"),
        (["--run-time", "8"], "--run-time: '8' is not a duration such as 90m or 8h"),
        (["-N", "3"], "2 GPUs cannot be spread evenly over 3 nodes"),
    ],
)
def test_wrong_requests_name_what_is_valid(config: Path, args: list[str], text: str):
    done = gpu_aware("place", "-g", "2", *args, config=config)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert text in done.stderr


def test_without_gpus_it_is_wrong_usage(config: Path):
    assert gpu_aware("place", config=config).exit_code == 2


@pytest.mark.parametrize("name", ["place.png", "place.svg"])
def test_the_picture_is_written(config: Path, tmp_path: Path, name: str):
    plot = ["--plot", str(tmp_path / name), "--compare", "random", *DGX]
    succeeded(gpu_aware("place", "-g", "2", *plot, config=config))
    head = (tmp_path / name).read_bytes()[:200]
    assert head.startswith(b"\x89PNG") or b"<?xml" in head


def test_a_picture_that_cannot_be_written(config: Path, tmp_path: Path):
    plot = ["--plot", str(tmp_path / "no" / "x.png"), *DGX]
    assert "cannot be written" in refusal(gpu_aware("place", "-g", "2", *plot, config=config))


def test_gpus_that_no_probe_has_seen_are_left_out_and_told(config: Path):
    """Times imported for GPU 9 of n1 made place offer n1:9."""
    rows = [Run("n1", 9, "A", 2000.0, 10.0), Run("n9", 0, "A", 2000.0, 10.0)]
    with open_store(config.parent / "store.db") as store:
        put_timings(store, rows)
        recompute_scores(store)
    done = gpu_aware("place", "-g", "1", "--class", "A", "--json", config=config)
    answer = json.loads(done.stdout)
    assert answer["answers"][0]["place"] == {"n2": [3]}
    assert answer["cluster"]["gpus"] == 8
    assert done.stderr == "Left out, because no sweep has seen them: n1:9, n9:0.\n"
