"""Looks of the shadow: what it stores, and that it never writes to Slurm."""

import ast
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware, succeeded, words
from memory_slurm import MemorySlurm, job_record, node_record
from slurm_folder import SlurmFolder
from store_samples import fit_models, ingest_sweep

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.shadow import store as table
from slurm_gpu_aware.features.shadow.daemon import NOT_RUNNING, TOO_SHORT, Shadow
from slurm_gpu_aware.features.shadow.losses import ShadowJob
from slurm_gpu_aware.features.shadow.metrics import LOSSES, METRICS
from slurm_gpu_aware.metric import Sample
from slurm_gpu_aware.slurm import client, reader
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.reader import SlurmReader
from slurm_gpu_aware.store.database import Store, open_store, republish
from slurm_gpu_aware.store.files import published_path

READING = {name for name in dir(SlurmReader) if not name.startswith("_")} | {"parking_licence"}
WRITING = {name for name in dir(SlurmClient) if not name.startswith("_")} - READING


class OnlyReads:
    """A Slurm whose writing calls fail the test."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self._slurm = MemorySlurm(slurm.home)
        self.written: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in READING:
            self.written.append(name)
            raise AssertionError(f"{name} may write")
        return getattr(self._slurm, name)


class Bench:
    """A shadow on a small Slurm, with a clock of its own."""

    def __init__(self, slurm: SlurmFolder) -> None:
        self.slurm, self.now = slurm, 1000.0
        self.client = OnlyReads(slurm)
        self.store: Store = open_store(slurm.store)
        self.begin()

    def begin(self) -> None:
        client: Any = self.client
        config = load_config(self.slurm.config)
        self.shadow = Shadow(config, client, self.store, lambda: self.now)

    def look(self, now: float, *jobs: dict[str, Any]) -> dict[str, ShadowJob]:
        """Look at Slurm with these jobs; all stored starts."""
        self.now = now
        self.slurm.set(jobs=list(jobs))
        self.shadow.look()
        return {job.job_id: job for job in table.jobs_since(self.store, 0.0)}


@pytest.fixture
def shadow_bench(slurm: SlurmFolder) -> Bench:
    nodes = [node_record(name, gres="gpu:v100:4") for name in ("n1", "n2")]
    slurm.set(nodes=nodes, jobs=[], reservations=[])
    return Bench(slurm)


def waiting_job(number: int, gpus: int = 1, **fields: Any) -> dict[str, Any]:
    usual = {"reason": "Resources", "tres_per_node": f"gres/gpu:{gpus}"}
    return job_record(job_id=number, **{**usual, **fields})


def running_job(
    number: int, at: int, slots: list[int], node: str = "n1", **f: Any
) -> dict[str, Any]:
    usual = {"state": "RUNNING", "start_time": at, "nodes": node, "slots": slots}
    return waiting_job(number, len(slots), **{**usual, "end_time": at + 3600, **f})


def ended(number: int, at: int, end: int, slots: list[int], node: str = "n1") -> dict[str, Any]:
    return running_job(number, at, slots, node, state="COMPLETED", end_time=end)


def test_the_reading_half_has_no_call_that_writes() -> None:
    assert {
        *("update_jobs", "submit_held", "cancel_job", "release_jobs", "requeue_job"),
        *("create_reservation", "move_reservation", "delete_reservation", "drain_node"),
    } <= WRITING
    assert calls_of(reader) == {"aware_settings", "aware_job", "aware_"}  # aware_ + kind of records
    assert {"aware_update_job", "aware_create_reservation"} <= calls_of(client)


def calls_of(module: Any) -> set[str]:
    """Functions of our C code that a module names."""
    tree = ast.walk(ast.parse(Path(module.__file__).read_text()))
    texts = [n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    tree = ast.walk(ast.parse(Path(module.__file__).read_text()))
    names = [n.attr for n in tree if isinstance(n, ast.Attribute)]
    return {one for one in (*texts, *names) if one.startswith("aware_") and " " not in one}


def test_a_start_is_compared_on_the_site_before_it(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0, running_job(1, 900, [0]), waiting_job(2))
    found = shadow_bench.look(1002.0, running_job(1, 900, [0]), running_job(2, 1001, [0], "n2"))
    assert found.keys() == {"2"}  # what ran before the shadow is not its business
    sets = found["2"].sets
    assert sets.given.gpus == (("n2", (0,)),)
    assert sets.given.broken == ("n2",)
    assert sets.ours.gpus[0][0] == "n1"
    assert found["2"].needless == ("n2",)
    assert shadow_bench.client.written == []


def test_its_requests_to_slurm_only_read(shadow_bench: Bench) -> None:
    shadow_bench.slurm.forget_calls()
    shadow_bench.look(1000.0)
    shadow_bench.look(1002.0, running_job(1, 1001, [0]), waiting_job(2, 4))
    shadow_bench.look(1004.0, running_job(1, 1001, [0]), waiting_job(2, 4))
    kinds = {call[0] for call in shadow_bench.slurm.calls}
    assert kinds <= {"jobs", "nodes", "partitions", "reservations", "settings", "topology"}
    assert "jobs" in kinds
    assert shadow_bench.client.written == []


def test_the_wait_of_a_whole_node_job_is_charged(shadow_bench: Bench) -> None:
    one, two = running_job(1, 900, [0]), running_job(2, 1001, [0], "n2")
    shadow_bench.look(1000.0, one)
    shadow_bench.look(1002.0, one, two)
    shadow_bench.look(1012.0, one, two, waiting_job(3, 4))
    found = shadow_bench.look(1042.0, one, two, waiting_job(3, 4))["2"]
    assert (found.waited_s, found.waiting_job) == (40.0, "3")
    found = shadow_bench.look(1072.0, one, two, waiting_job(3, 4, reason="Dependency"))["2"]
    assert found.waited_s == 40.0  # it waits for something else


def test_ends_are_noted(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0)
    assert shadow_bench.look(1002.0, running_job(1, 1001, [0]))["1"].ended_at is None
    assert shadow_bench.look(1060.0, ended(1, 1001, 1050, [0]))["1"].ended_at == 1050.0
    shadow_bench.look(1062.0, running_job(2, 1061, [0]))
    # Slurm has forgotten it: the last look
    assert shadow_bench.look(1064.0)["2"].ended_at == 1062.0


def test_a_job_that_ended_between_two_looks_is_counted(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0, ended(1, 900, 990, [0]))
    found = shadow_bench.look(1010.0, ended(1, 900, 990, [0]), ended(2, 1001, 1003, [0]))
    assert {job.job_id: job.reason for job in found.values()} == {"2": TOO_SHORT}


def test_a_restart_goes_on_and_names_what_it_has_not_seen(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0)
    shadow_bench.look(1002.0, running_job(1, 1001, [0]))
    shadow_bench.begin()
    jobs = [running_job(1, 1001, [0]), running_job(2, 1100, [1]), ended(3, 1050, 1060, [2])]
    found = shadow_bench.look(1200.0, *jobs)
    assert found["1"].compared
    assert {found[job].reason for job in ("2", "3")} == {NOT_RUNNING}
    found = shadow_bench.look(1202.0, ended(1, 1001, 1201, [0]), *jobs[1:])
    assert found["1"].ended_at == 1201.0
    assert len(found) == 3
    watches = [(w.since_at, w.until_at) for w in table.watches_since(shadow_bench.store, 0.0)]
    assert watches == [(1000.0, 1002.0), (1200.0, 1202.0)]


def test_a_look_that_fails_loses_no_start(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0)
    shadow_bench.slurm.set(silent="Slurm is silent")
    with pytest.raises(SourceError):
        shadow_bench.shadow.look()
    shadow_bench.slurm.set(silent="")
    assert shadow_bench.look(1010.0, running_job(1, 1005, [0]))["1"].compared


def test_a_form_that_is_not_compared_has_its_reason(shadow_bench: Bench) -> None:
    shadow_bench.look(1000.0)
    odd = running_job(1, 1001, [0], tres_per_node="", tres_per_socket="gres/gpu:1")
    found = shadow_bench.look(1002.0, odd)["1"]
    assert found.sets.ours is None
    assert "bound to sockets" in found.reason


def test_old_starts_go(shadow_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow_bench.look(1000.0)
    for number in range(5):
        shadow_bench.look(1002.0 + number, running_job(number + 1, 1001 + number, [0]))
    for before, most, left in ((1003.0, table.MOST, [1003, 1004, 1005]), (0.0, 2, [1004, 1005])):
        monkeypatch.setattr(table, "MOST", most)
        table.prune(shadow_bench.store, before)
        assert [job.started_at for job in table.jobs_since(shadow_bench.store, 0.0)] == left


def test_the_copy_for_readers_is_closed_where_slurm_hides_jobs(shadow_bench: Bench) -> None:
    slurm = shadow_bench.slurm
    copy = published_path(slurm.store)
    for setting, mode in (("none", 0o644), ("jobs", 0o640)):
        slurm.set(settings={**slurm.get("settings"), "PrivateData": setting})
        shadow_bench.begin()
        shadow_bench.look(1000.0)
        assert copy.stat().st_mode & 0o777 == mode
    republish(shadow_bench.store)
    assert copy.stat().st_mode & 0o777 == 0o640


Lines = Callable[..., str]


@pytest.fixture
def log_lines(shadow_bench: Bench) -> Lines:
    """What ``report --shadow`` prints."""
    asked = "report", "--shadow", "--days", "36500"
    return lambda *options: words(*asked, *options, config=shadow_bench.slurm.config)


def shadow_page(bench: Bench, folder: Path) -> str:
    """The section of ``gpu-aware page``."""
    succeeded(gpu_aware("page", str(folder), config=bench.slurm.config))
    return (folder / "shadow.html").read_text()


def test_the_report(shadow_bench: Bench, log_lines: Lines, tmp_path: Path) -> None:
    assert "has not run" in log_lines()
    shadow_bench.look(1000.0, running_job(1, 900, [0]))
    shadow_bench.look(1002.0, running_job(1, 900, [0]), running_job(2, 1001, [0], "n2"))
    text = log_lines()
    assert "2 broke up n2; n1:1 was free" in text
    assert "sacct -j 2" in text
    assert "1 of 1 compared jobs have no scores" in text
    values = json.loads(log_lines("--json"))
    assert values["total"]["nodes"]["jobs"] == 1
    assert values["total"]["time_s"] is None
    with shadow_bench.store.write():
        moved = f"started_at_unix + {time.time() - 1100}"
        shadow_bench.store.execute(f"UPDATE shadow_jobs SET started_at_unix = {moved}")
    page = shadow_page(shadow_bench, tmp_path / "pages")
    assert "broke up n2; n1:1 was free" in page


def test_it_says_when_there_is_nothing_to_gain(shadow_bench: Bench, log_lines: Lines) -> None:
    measure(shadow_bench.store)
    first = running_job(1, 900, [0])
    shadow_bench.look(1000.0, first)
    shadow_bench.look(1002.0, first, running_job(2, 1001, [1], comment="class=B"))
    assert "There is nothing to gain" in log_lines()


def test_what_a_user_writes_does_no_harm_to_the_page(
    shadow_bench: Bench, log_lines: Lines, tmp_path: Path
) -> None:
    shadow_bench.look(1000.0)
    bad = "<img src=x>\x1b[31m"
    jobs = running_job(1, 1001, [0], features=bad), running_job(2, 1001, [1], comment=bad)
    shadow_bench.look(1002.0, *jobs)
    page = shadow_page(shadow_bench, tmp_path / "pages")
    assert "<img" not in page
    assert "\x1b" not in page + log_lines() + log_lines("--json")


def measure(store: Store) -> None:
    """GPU 0 of each node is 25% slower than the others; bridges join 0-1 and 2-3."""
    with store.write():
        for node in ("n1", "n2"):
            store.execute("INSERT INTO nodes (node, taken_at_unix) VALUES (?, 1)", (node,))
            for slot in range(4):
                where = (node, slot)
                store.execute("INSERT INTO gpus (node, slot, model) VALUES (?, ?, 'v100')", where)
                score = 1.25 if slot == 0 else 1.0
                store.execute(
                    "INSERT INTO scores (node, slot, class, value_ms, raw, binned, bin, outlier,"
                    " taken_at_unix) VALUES (?, ?, 'B', 1, ?, ?, 0, 0, 1)",
                    (*where, score, score),
                )
            for a, b in ((0, 1), (2, 3)):
                store.execute("INSERT INTO links VALUES (?, ?, ?, 'NV2', 50)", (node, a, b))


def test_scores_and_links_of_the_store_count(shadow_bench: Bench, log_lines: Lines) -> None:
    measure(shadow_bench.store)
    shadow_bench.look(1000.0)
    jobs = [running_job(1, 1001, [0, 2], comment="class=B,bw=high")]
    sets = shadow_bench.look(1002.0, *jobs)["1"].sets
    assert (sets.given.score, sets.given.direct) == (1.25, False)
    assert (sets.ours.score, sets.ours.direct) == (1.0, True)
    assert sets.ours.gpus[0][1] == (2, 3)
    shadow_bench.look(1101.0, ended(1, 1001, 1101, [0, 2]))
    total = json.loads(log_lines("--json"))["total"]
    assert total["time_s"] == pytest.approx(20.0)
    assert total["energy_j"] is None
    assert (total["unlinked"], total["slow"]["jobs"]) == (1, 1)
    assert total["slow"]["examples"][0]["loss"].startswith("25% slower on n1:0,2 than on n")
    metrics = exported(shadow_bench.store, 1102.0)
    assert metrics.pop("lost_seconds") == {("gpu",): pytest.approx(20.0)}
    assert metrics.pop("lost_jobs") == {
        **{("gpu", kind): 1.0 for kind in ("links", "slow")},
        ("gpu", "nodes"): float(total["nodes"]["jobs"]),
    }
    assert metrics == {
        "started_jobs": {("gpu",): 1.0},
        "compared_jobs": {("gpu",): 1.0},
        "waited_seconds": {("gpu",): 0.0},
        "lost_joules": {},
    }
    assert set(map(len, exported(shadow_bench.store, 99_999.0).values())) == {0}


def test_the_day_has_its_part_of_a_run_that_began_before(shadow_bench: Bench) -> None:
    """Of a long job each day has what it lost in this day, and the day of its start its start."""
    measure(shadow_bench.store)
    shadow_bench.look(1000.0)
    job = running_job(1, 1001, [0, 2], comment="class=B,bw=high")
    shadow_bench.look(1002.0, job)
    day_s = 86_400.0
    lost = []
    for day in (1, 2, 3):
        at = 1001.0 + day * day_s
        shadow_bench.look(at, job)
        found = exported(shadow_bench.store, at)
        lost.append(found["lost_seconds"][("gpu",)])
        assert found["started_jobs"] == ({("gpu",): 1.0} if day == 1 else {})
    assert lost == pytest.approx([0.2 * day_s] * 3)
    ends_at = 1001.0 + 3.5 * day_s
    shadow_bench.look(ends_at, ended(1, 1001, int(ends_at), [0, 2]))
    for until, share in ((ends_at, 1.0), (ends_at + day_s / 4, 0.75)):
        shadow_bench.look(until)
        found = exported(shadow_bench.store, until)["lost_seconds"][("gpu",)]
        assert found == pytest.approx(share * 0.2 * day_s, abs=1.0)


def exported(store: Store, now: float) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> labels -> value."""
    day = LOSSES.read(store, now)
    return {
        metric.name.removeprefix("gpu_aware_day_shadow_"): {
            sample.labels: sample.value
            for sample in metric.samples(day)
            if isinstance(sample, Sample)
        }
        for metric in METRICS
    }


def test_what_clocks_would_save_follows_from_models_and_bound(
    shadow_bench: Bench, log_lines: Lines
) -> None:
    for node in ("n1", "n2"):
        ingest_sweep(shadow_bench.store, range(900, 1531, 70), node, dynamic_w=0.04)
    fit_models(shadow_bench.slurm.store)
    shadow_bench.slurm.configure("[energy]\nslowdown = 0.1")
    shadow_bench.begin()
    shadow_bench.look(1000.0)
    asked = {"comment": "class=A"}, {"comment": "class=A,freq=max"}
    jobs = [running_job(n, 1001, [n], **more) for n, more in enumerate(asked)]
    found = shadow_bench.look(1002.0, *jobs)
    saves = found["0"].saves
    assert 0.05 < saves < 0.2
    assert found["1"].saves == 0.0
    shadow_bench.look(1101.0, ended(0, 1001, 1101, [0]))
    total = json.loads(log_lines("--json"))["total"]["clocks"]
    assert 0.0 < total["saved_j"] < total["spent_j"]
    assert total["saved_j"] == pytest.approx(100.0 * saves * (found["0"].power_w or 0.0))


def test_where_only_nodes_are_chosen_slurms_gpus_on_ours_count(shadow_bench: Bench) -> None:
    """On a free node Slurm would give the same two GPUs, so only the broken node is a loss."""
    measure(shadow_bench.store)
    shadow_bench.slurm.configure('[placement]\ngpus = "nodes"')
    shadow_bench.begin()
    other = running_job(1, 900, [1, 3], "n2")
    shadow_bench.look(1000.0, other)
    job = running_job(2, 1001, [0, 2], comment="class=B,bw=high")
    sets = shadow_bench.look(1002.0, other, job)["2"].sets
    assert sets.ours.gpus == (("n2", (0, 2)),)
    assert (sets.given.score, sets.ours.score) == (1.25, 1.25)
    assert (sets.given.direct, sets.ours.direct) == (False, False)
    assert (sets.given.broken, sets.ours.broken) == (("n1",), ())


def test_two_starts_of_one_look_do_not_get_the_same_gpus(shadow_bench: Bench) -> None:
    measure(shadow_bench.store)
    shadow_bench.look(1000.0)
    found = shadow_bench.look(1002.0, *(running_job(n + 1, 1001 + n, [n]) for n in range(2)))
    first, second = (found[str(n)].sets.ours for n in (1, 2))
    assert first is not None
    assert ("n1", (0,)) not in second.gpus  # the first job has it when the second one starts
