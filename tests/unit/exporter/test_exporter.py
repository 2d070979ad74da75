"""Pages of the exporter from a real store, Slurm in memory, and the selector's own counters."""

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware, refusal
from exposition import families, value
from memory_slurm import node_record
from slurm_folder import SlurmFolder, parked
from store_samples import decision, ingest, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.exporter.server import Exporter
from slurm_gpu_aware.exporter.sources import SlurmWatch
from slurm_gpu_aware.selector.round_state import CounterFile, Outcome
from slurm_gpu_aware.service import ALIVE
from slurm_gpu_aware.slurm.libslurm import CallCounts
from slurm_gpu_aware.store.database import POWER, Store, open_store, publish, put_value
from slurm_gpu_aware.store.files import counters_path, published_path
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.store.profiles import newest_spreads
from slurm_gpu_aware.store.watch_state import GpuState, Reading, WatchState, write_state

GPU = {
    "Hostname": "n1",
    "gpu": "1",
    "UUID": "GPU-n1-1",
    "modelName": "Tesla V100-SXM2-16GB",
    "slurm_index": "1",
}


def exporter_of(slurm: SlurmFolder) -> Exporter:
    config = load_config(slurm.config)
    watch = SlurmWatch(config, 15.0, lambda _timeout: slurm.client())  # type: ignore[arg-type]
    watch.ask()
    return Exporter(config, watch, 15.0)


def page_of(slurm: SlurmFolder) -> dict[str, Any]:
    return families(exporter_of(slurm).refresh().text.decode())


def by_label(page: dict[str, Any], name: str) -> dict[str, float]:
    """Value of its only label -> value."""
    return {labels[0][1]: number for labels, number in page[name].items()}


def is_up(page: dict[str, Any], source: str) -> float | None:
    return value(page, "gpu_aware_source_up", source=source)


def test_it_says_that_it_lives_while_it_waits(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause is longer than the watchdog's time where refreshes are slow or the site says so."""
    enough, refreshes, signs = threading.Event(), list[None](), list[str]()

    def sign(text: str) -> None:
        signs.append(text)
        if len(signs) == 3:
            enough.set()

    monkeypatch.setattr("slurm_gpu_aware.exporter.server.notify", sign)
    monkeypatch.setattr("slurm_gpu_aware.exporter.server._SIGN_S", 0.01)
    monkeypatch.setattr(Exporter, "refresh", lambda self: refreshes.append(None))
    exporter = exporter_of(slurm)
    exporter.start()
    assert enough.wait(60.0)
    exporter.stop()
    assert (len(refreshes), set(signs)) == (1, {ALIVE})


def fill_exported(slurm: SlurmFolder) -> None:
    """Scores, and what a limit of power leaves."""
    with open_store(slurm.store) as store:
        ingest(store, report("n1", times={0: 100.0, 1: 110.0}))
        recompute_scores(store, ("A",))
        put_value(store, POWER, '{"limit_w": 900.0, "planned_w": 700, "measured_w": null}')
        publish(store)


def test_scores_have_the_labels_of_dcgm_exporter(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    page = page_of(slurm)
    of_class = {**GPU, "class": "A"}
    assert value(page, "gpu_aware_gpu_pm_score_ratio", **of_class) == pytest.approx(110 / 105)
    assert value(page, "gpu_aware_gpu_spread_ratio", **of_class) == 0.004
    assert value(page, "gpu_aware_gpu_measured_timestamp_seconds", **of_class) == 1000.0
    assert value(page, "gpu_aware_slow_gpus") == 0
    assert value(page, "gpu_aware_power_limit_watts") == 900
    assert value(page, "gpu_aware_power_measured_watts") is None  # not 0


def test_a_gpu_that_became_slower_is_named(slurm: SlurmFolder) -> None:
    now = time.time()
    with open_store(slurm.store) as store:
        for at, last in ((now - 86_400, 100.0), (now, 112.0)):
            raw = report("n1", at)
            raw["timings"] = [
                {"index": slot, "class": "A", "value_ms": v * (1 + run / 2000)}
                for slot, v in enumerate((100.0, 100.0, 100.0, last))
                for run in range(5)
            ]
            ingest(store, raw)
        recompute_scores(store, ("A",))
        publish(store)
    page = page_of(slurm)
    assert value(page, "gpu_aware_slow_gpus") == 1
    ((labels, ratio),) = page["gpu_aware_gpu_drift_ratio"].items()
    assert dict(labels)["UUID"] == "GPU-n1-3"
    assert ratio == pytest.approx(1.12, abs=0.01)


def test_the_gpu_label_counts_as_nvml_does(slurm: SlurmFolder) -> None:
    """By PCI address; Slurm's index is a label of its own."""
    raw = report("n1", times={0: 100.0, 1: 110.0})
    raw["gpus"][0]["pci"], raw["gpus"][1]["pci"] = "00000000:c1:00.0", "00000000:0a:00.0"
    with open_store(slurm.store) as store:
        ingest(store, raw)
        recompute_scores(store, ("A",))
    page = page_of(slurm)
    labels = {**GPU, "gpu": "0", "class": "A"}
    assert value(page, "gpu_aware_gpu_pm_score_ratio", **labels) == pytest.approx(110 / 105)


def test_a_new_sweep_is_seen_and_without_one_nothing_is_read_again(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    config = load_config(slurm.config)
    exporter = Exporter(config, SlurmWatch(config, 15.0), 15.0)
    first = families(exporter.refresh().text.decode())["gpu_aware_gpu_pm_score_ratio"]
    with open_store(slurm.store) as store:
        ingest(store, report("n1", 2000.0, times={0: 100.0, 1: 130.0}))
        recompute_scores(store, ("A",))
        publish(store)
    second = families(exporter.refresh().text.decode())["gpu_aware_gpu_pm_score_ratio"]
    assert max(second.values()) == pytest.approx(130 / 115)
    assert max(first.values()) == pytest.approx(110 / 105)


def test_jobs_are_counted_by_phase_and_waits_are_of_the_parked_ones(slurm: SlurmFolder) -> None:
    now = int(time.time())
    slurm.write([parked("7", submit_time=now - 100), parked("8", submit_time=now - 7200)], ["n1"])
    with open_store(slurm.store) as store:
        for number, state in enumerate(("started", "started", "planned", "waiting", "ended")):
            Ledger(store).add_decision(decision(str(100 + number), state=state))
        publish(store)
    page = page_of(slurm)
    none = dict.fromkeys(("prepared", "released", "held", "left"), 0)
    assert by_label(page, "gpu_aware_jobs") == none | {"waiting": 2, "started": 2, "planned": 1}
    for least, waits in (("60", 0), ("300", 1), ("+Inf", 2)):
        assert value(page, "gpu_aware_parked_wait_seconds_bucket", le=least) == waits
    assert 7190 < (value(page, "gpu_aware_parked_wait_max_seconds") or 0) < 7300


def test_nodes_out_of_service_are_named_and_idle_ones_are_counted(slurm: SlurmFolder) -> None:
    away = node_record("n2", state="IDLE+DRAIN"), node_record("n3", state="DOWN")
    without = node_record("n4", gres="", features="")
    slurm.set(jobs=[], nodes=[node_record("n1"), *away, without])
    page = page_of(slurm)
    nodes = {"idle": 1, "in_use": 0, "drained": 1, "down": 1}
    assert by_label(page, "gpu_aware_nodes") == nodes
    gpus = {"free": 4, "in_use": 0, "drained": 4, "down": 4}
    assert by_label(page, "gpu_aware_gpus") == gpus
    assert value(page, "gpu_aware_node_out_of_service", Hostname="n2", state="drained") == 1
    assert value(page, "gpu_aware_node_out_of_service", Hostname="n3", state="down") == 1


def test_the_selector_counts_rounds_calls_and_placements(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1"])
    assert slurm.round() == 0
    page = page_of(slurm)
    assert value(page, "gpu_aware_rounds_total", result="succeeded") == 1
    assert value(page, "gpu_aware_rounds_total", result="failed") == 0
    assert value(page, "gpu_aware_round_duration_seconds_count") == 1
    assert value(page, "gpu_aware_placements_total") == 1
    assert is_up(page, "counters") == 1
    assert abs((value(page, "gpu_aware_round_timestamp_seconds") or 0) - time.time()) < 60
    assert abs((value(page, "gpu_aware_heartbeat_timestamp_seconds") or 0) - time.time()) < 60
    assert value(page, "gpu_aware_gate_closed") == 1
    assert stat.S_IMODE(counters_path(slurm.store).stat().st_mode) == 0o644


def test_a_round_that_fails_is_counted(slurm: SlurmFolder) -> None:
    written = CounterFile(slurm.store, CallCounts())
    written.round_done(None)
    written.round_done(Outcome(placed=["7"], took_s=2.0))
    written.write()
    page = page_of(slurm)
    assert value(page, "gpu_aware_rounds_total", result="failed") == 1
    assert value(page, "gpu_aware_round_duration_seconds_bucket", le="1") == 0
    assert value(page, "gpu_aware_round_duration_seconds_bucket", le="3") == 1


def test_updates_and_calls_are_counted_by_outcome() -> None:
    counts = CallCounts()
    assert counts.updated(5, lambda: [{"7": "no"}, {}]) == {"7": "no"}

    def silent() -> list[dict[str, str]]:
        raise SourceError("silent")

    with pytest.raises(SourceError):
        counts.updated(2, silent)
    counts.call("timeout")
    assert counts.of_updates == {"done": 4, "refused": 1, "unknown": 2}
    assert counts.of_calls == {"answered": 0, "refused": 0, "failed": 0, "timeout": 1}


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[]", "not json", "x" * 20_000, "[" * 9_000),
        '{"started_at": 1, "at": "x"}',
        '{"started_at": 1, "at": 1e400}',
        '{"started_at": 1, "at": 1, "round_buckets": [1]}',
        '{"started_at": 1, "at": 1, "round_buckets": [-1,0,0,0,0,0,0,0,0]}',
    ],
)
def test_counters_that_are_wrong_are_no_source(slurm: SlurmFolder, text: str) -> None:
    fill_exported(slurm)
    counters_path(slurm.store).write_text(text)
    page = page_of(slurm)
    assert is_up(page, "counters") == 0
    assert is_up(page, "store") == 1
    assert "gpu_aware_rounds_total" not in page


def test_counters_that_are_old_and_a_pipe_in_their_place_are_no_source(slurm: SlurmFolder) -> None:
    slurm.write([parked()], ["n1"])
    slurm.round()
    path = counters_path(slurm.store)
    path.write_text(json.dumps({**json.loads(path.read_text()), "at": time.time() - 3600}))
    assert is_up(page_of(slurm), "counters") == 0
    path.unlink()
    os.mkfifo(path)
    assert is_up(page_of(slurm), "counters") == 0


def test_without_slurm_the_store_is_exported(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    slurm.set(silent="down")
    page = page_of(slurm)
    assert is_up(page, "slurm") == 0
    assert "gpu_aware_jobs" not in page
    assert "gpu_aware_gpu_pm_score_ratio" in page


def test_an_answer_of_slurm_that_is_old_is_not_exported(slurm: SlurmFolder) -> None:
    now = [1000.0]
    config = load_config(slurm.config)
    watch = SlurmWatch(config, 15.0, lambda _t: slurm.client(), lambda: now[0])  # type: ignore[arg-type]
    watch.ask()
    assert watch.last(120.0) is not None
    slurm.set(silent="down")
    watch.ask()
    now[0] += 100
    assert watch.last(120.0) is not None  # the last one
    now[0] += 100
    assert watch.last(120.0) is None


def test_without_a_store_slurm_is_exported(slurm: SlurmFolder) -> None:
    CounterFile(slurm.store, CallCounts()).write()
    page = page_of(slurm)
    assert is_up(page, "store") == 0
    assert is_up(page, "slurm") == 1
    assert "gpu_aware_nodes" in page


def test_where_no_selector_ever_was_nothing_is_down_and_no_gate_is_open(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the rungs watch and shadow; alerts would fire for ever."""
    slurm.set(reservations=[])
    page = page_of(slurm)
    assert page["gpu_aware_source_up"] == {(("source", "slurm"),): 1.0}
    assert "gpu_aware_gate_closed" not in page
    slurm.store.write_text("this is no store")
    assert is_up(page_of(slurm), "store") == 0
    with monkeypatch.context() as other_user:
        other_user.setattr(os, "access", lambda *_: False)
        assert is_up(page_of(slurm), "store") is None
    slurm.store.unlink()
    CounterFile(slurm.store, CallCounts()).write()
    page = page_of(slurm)
    assert is_up(page, "counters") == 1
    assert value(page, "gpu_aware_gate_closed") == 0


def write_watch(slurm: SlurmFolder, *gpus: GpuState) -> Path:
    path = slurm.store.with_name("watch.json")
    write_state(path, WatchState(at=1000.0, gpus=list(gpus)))
    return path


def test_gpus_that_are_not_well_are_named(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    unmeasured = GpuState("n9", 2, "slow", reading=Reading(name="NVIDIA H100"))
    well = (GpuState("n1", 0, "well"), GpuState("n1", 2, "unknown"))
    write_watch(slurm, GpuState("n1", 1, "ill"), unmeasured, *well)
    page = page_of(slurm)
    other = {"Hostname": "n9", "gpu": "2", "UUID": "", "modelName": "NVIDIA H100"}
    assert value(page, "gpu_aware_gpu_watch_state", **GPU, state="ill") == 1
    assert value(page, "gpu_aware_gpu_watch_state", **other, slurm_index="2", state="slow") == 1
    assert len(page["gpu_aware_gpu_watch_state"]) == 2
    assert is_up(page, "watch") == 1
    assert value(page, "gpu_aware_source_timestamp_seconds", source="watch") == 1000


def test_what_watch_found_is_exported_without_a_store(slurm: SlurmFolder) -> None:
    write_watch(slurm, GpuState("n1", 1, "drifted"))
    assert len(page_of(slurm)["gpu_aware_gpu_watch_state"]) == 1


def test_a_file_of_watch_that_cannot_be_read_is_a_source_that_is_down(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    assert is_up(page_of(slurm), "watch") is None
    path = write_watch(slurm, GpuState("n1", 1, "ill"))
    exporter = exporter_of(slurm)

    def page() -> dict[str, Any]:
        return families(exporter.refresh().text.decode())

    assert "gpu_aware_gpu_watch_state" in page()
    path.write_text('{"gpus": [1]}')
    wrong = page()
    assert is_up(wrong, "watch") == 0
    assert "gpu_aware_gpu_watch_state" not in wrong
    assert "gpu_aware_gpu_pm_score_ratio" in wrong
    path.unlink()
    os.mkfifo(path)
    assert is_up(page(), "watch") == 0
    path.unlink()
    assert is_up(page(), "watch") is None


def test_a_damaged_copy_costs_the_families_of_the_store_only(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    copy = published_path(slurm.store)
    slurm.store.unlink()
    data = bytearray(copy.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    copy.write_bytes(data)
    page = page_of(slurm)
    assert (value(page, "gpu_aware_metrics_failed") or 0) > 0 or not is_up(page, "store")
    assert "gpu_aware_nodes" in page


def test_the_published_copy_is_read_not_the_store(slurm: SlurmFolder) -> None:
    fill_exported(slurm)
    with open_store(slurm.store) as store:
        store.execute("DELETE FROM gpus")
    assert value(page_of(slurm), "gpu_aware_measured_nodes") == 1


def test_the_file_for_node_exporter_is_replaced_whole(slurm: SlurmFolder, tmp_path: Path) -> None:
    fill_exported(slurm)
    target = tmp_path / "gpu-aware.prom"
    target.write_text("old")
    with target.open() as before:
        done = gpu_aware("metrics", "--textfile", str(target), config=slurm.config)
        assert (done.exit_code, before.read()) == (0, "old")
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert value(families(target.read_text()), "gpu_aware_source_up", source="slurm") == 1
    assert [p.name for p in tmp_path.iterdir() if "prom" in p.name] == ["gpu-aware.prom"]


def test_a_file_that_cannot_be_written_is_a_sentence(slurm: SlurmFolder, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "gpu-aware.prom"
    said = refusal(gpu_aware("metrics", "--textfile", str(target), config=slurm.config))
    assert f"{target}: cannot be written: No such file or directory" in said


@pytest.mark.parametrize(
    "options", [["--textfile", "x.txt"], ["--listen", "localhost:9"], ["--listen", "::1:9"]]
)
def test_wrong_options_are_refused(slurm: SlurmFolder, options: list[str]) -> None:
    assert gpu_aware("metrics", *options, config=slurm.config).exit_code != 0


def test_a_store_of_the_measured_spread(store: Store) -> None:
    ingest(store, report("n1", times={0: 100.0}))
    newer = report("n1", 2000.0, times={0: 100.0})
    newer["timings"][0]["spread"] = 0.02
    ingest(store, newer)
    assert newest_spreads(store) == {("n1", 0, "A"): 0.02}
