"""explain, queue and status on a real store file."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_server import run_command
from commands import refusal, succeeded
from memory_slurm import opened
from slurm_folder import SlurmFolder, parked, run_by_slurm
from store_samples import decision

from slurm_gpu_aware.cli.explain import explain_text
from slurm_gpu_aware.cli.job_text import asked_text, event_text
from slurm_gpu_aware.features.energy.declared import SlowGpus
from slurm_gpu_aware.store.database import open_store, publish
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.ledger import EVENT_KINDS, Decision, Ledger, RoundRecord

NOW = 1_790_000_000.0
WHY = {
    "summary": "the first cell with two free GPUs is L 1.0 x V 1.07",
    "cells": [
        {"level": "node", "L": 1.0, "V": 1.0, "product": 1.0, "result": "no set"},
        {"level": "node", "L": 1.0, "V": 1.07, "product": 1.07, "result": "chosen"},
    ],
    "candidates": [{"nodes": ["n1"], "slots": [[s, s + 1]], "left": s} for s in range(20)],
    "ties": 2,
}


STARTED = {
    "submitted_at": NOW,
    "decided_at": NOW + 1,
    "asked": {
        "gpus": 2,
        "class": "A",
        "model": None,
        "min_nodes": 1,
        "max_nodes": 1,
        "time_limit_s": 3600,
        "comment": "class=A",
    },
    "nodes": ["n1"],
    "slots": [[1, 3]],
    "score": 1.07,
    "level": "node",
    "slowdown": 1.07,
    "clock_mhz": 1380,
    "why": WHY,
    "took_ms": 1.25,
    "state": "started",
}


@contextmanager
def own_ledger(config: Path) -> Iterator[Ledger]:
    with open_store(config.parent / "store" / "store.db") as store:
        yield Ledger(store)


def explained(**answer: Any) -> str:
    """The text of an answer on job 7."""
    usual = {"job_id": "7", "waiting": None, "decisions": [], "events": [], "tasks": []}
    return explain_text({**usual, "slurm": None, **answer})


def started_job(job_id: str, **changes: object) -> Decision:
    return decision(job_id, **{**STARTED, **changes})


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A configuration with a filled store, and no Slurm in reach; returns the config file."""
    store_path = tmp_path / "store" / "store.db"
    with open_store(store_path) as store:
        ledger = Ledger(store)
        ledger.add_event("7", "parked", {"by": "filter"}, NOW)
        ledger.add_decision(started_job("7", state="waiting", nodes=["n4"], slots=[[0, 1]]))
        ledger.add_decision(started_job("7"))
        ledger.add_event("7", "started", {"node": "n1"}, NOW + 2)
        preempts = {"preempts": {"victims": ["3", "4"], "number": 1}}
        of_bob = {"user": "bob", "exact": False, "victims": ["3", "4"], "why": preempts}
        ledger.add_decision(started_job("20_1", **of_bob))
        ledger.add_decision(started_job("20_2", user="bob", state="ended"))
        ledger.add_event("9", "parked", {}, NOW)
        waits = {"job_id": "8", "reason": "no 4 free GPUs", "shadow_start_s": NOW + 600}
        ledger.add_round(RoundRecord(NOW + 3, 2.5, 2, 1, 1, "submit", {"waiting": [waits]}))
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{store_path}"\n')
    return config


def gpu_aware(config: Path, *args: str, columns: int = 100) -> subprocess.CompletedProcess[str]:
    silent = config.parent / "silent"
    silent.mkdir(exist_ok=True)
    with opened(silent) as state:
        state["silent"] = "Unable to contact slurm controller"
    own = {"PATH": "/nonexistent", "COLUMNS": str(columns), "TZ": "UTC"}
    argv = [str(silent), "gpu-aware", "--config", str(config), *args]
    done = run_command(argv, {**os.environ, **own})
    assert "Traceback" not in done.stderr
    return done


def test_a_placed_job_is_explained_in_a_users_words(filled: Path):
    """No keys of accounts, tables of the policy, or records of ours."""
    with own_ledger(filled) as ledger:
        record = "gpuaware/1;tn=gres/gpu:2;sel=prepared:0:1"
        fields = {"ReqNodeList": "n1", "TresFreq": "gpu:1380", "AdminComment": record}
        ledger.add_event("7", "prepared", fields, NOW + 1)
    said = gpu_aware(filled, "explain", "7").stdout
    for text in (
        "asked      2 GPUs on one node, at most 1 h, comment class=A",
        "chosen     n1: 1,3",
        "class      A",
        "slowdown   7% longer than on median GPUs of one node predicted, by its slowest GPU",
        "clock      1380 MHz",
        "why        the first cell with two free GPUs",
        "given n1",
        "n4: 0,1",
    ):
        assert text in said, said
    assert not re.search(r"[a-z_]+=(?!A)|ties|left|no set|gpuaware|Candidates", said), said
    told = gpu_aware(filled, "explain", "7", "--details").stdout
    assert "ReqNodeList=n1, TresFreq=gpu:1380" in told
    assert "gpuaware/1" not in told


def test_slurm_chooses_the_gpus_of_a_node(filled: Path):
    with own_ledger(filled) as ledger:
        ledger.add_decision(started_job("71", exact=False))
        ledger.add_decision(
            started_job("72", exact=False, asked={**STARTED["asked"], "exclusive": True})
        )
    said = " ".join(gpu_aware(filled, "explain", "71").stdout.split())
    assert "chosen n1 (Slurm chooses the GPUs)" in said
    assert "at most 7% longer" in said
    assert "by the slowest GPU that Slurm may choose" in said
    (plain,) = json.loads(gpu_aware(filled, "explain", "71", "--json").stdout)["decisions"]
    assert (plain["nodes"], plain["slots"], plain["gpus_per_node"]) == (["n1"], None, [2])
    told = " ".join(gpu_aware(filled, "explain", "71", "--details").stdout.split())
    assert "V 1.070, of the slowest GPU that Slurm may choose" in told
    whole = " ".join(gpu_aware(filled, "explain", "72").stdout.split())
    assert "7% longer" in whole
    assert "at most 7% longer" not in whole


@pytest.mark.parametrize(
    ("event", "clock"),
    [
        ({"error": "no clock is set on a node with shards"}, "default on n1, 1380 MHz was not set"),
        ({"error": "busy", "during": "reset"}, "1380 MHz"),
        ({"error": "late", "call": "orders"}, "1380 MHz"),  # the clock of its prolog holds
        ({"error": "late", "seq": 4}, "1380 MHz"),
    ],
)
def test_a_refused_clock_is_not_shown_as_set(filled: Path, event: dict[str, object], clock: str):
    with own_ledger(filled) as ledger:
        ledger.add_event("7", "clock_failed", {"node": "n1", **event}, NOW - 60)
    assert "clock      1380 MHz\n" in gpu_aware(filled, "explain", "7").stdout  # of an earlier run
    with own_ledger(filled) as ledger:
        ledger.add_event("7", "clock_failed", {"node": "n1", **event}, NOW + 2)
    said = gpu_aware(filled, "explain", "7").stdout
    assert f"clock      {clock}" in said, said
    assert str(event["error"]) in said


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_every_event_has_words(kind: str):
    for detail in ({}, {"why": "x"}, {"gpus": 3, "nodes": None, "why": "y"}):
        assert re.fullmatch(r"[^=;{}_]+", event_text(kind, detail)), event_text(kind, detail)


def test_a_placed_job_tells_everything(filled: Path):
    done = succeeded(gpu_aware(filled, "explain", "7", "--details"))
    for text in (
        "Job 7: started",
        "gpus=2, class=A",
        "planned in",
        "n1: 1,3",
        "1380 MHz",
        "1 (level node)",
        "1.070, of its slowest GPU",
        "the first cell with two free GPUs",
        "no set",
        "Earlier placements",
        "n4: 0,1",
        "1.070  waiting",
        "by=filter",
        "... and 8 more",
    ):
        assert text in done.stdout


@pytest.mark.parametrize("columns", [80, 100])
def test_lines_fit_the_terminal(filled: Path, columns: int):
    for args in (["explain", "7"], ["explain", "8"], ["queue"], ["status"]):
        done = gpu_aware(filled, *args, columns=columns)
        assert max(len(line) for line in done.stdout.splitlines()) <= columns


def test_gpus_that_are_too_slow_for_a_lower_clock_are_told_once(filled: Path):
    """Their account is left out, as a sentence says it."""
    slow = {"slower": 0.045, "allowed": 0.05}
    with own_ledger(filled) as ledger:
        ledger.add_decision(started_job("21", clock_mhz=None, why=WHY | {SlowGpus.key: slow}))
    told = gpu_aware(filled, "explain", "21", "--details").stdout
    assert "Account of the policy" in told
    sentence = "no: its GPUs are 4.5% slower than the median, so no lower clock keeps within 5%"
    assert " ".join(told.split()).count(sentence) == 1
    assert not re.search(r"slow.gpus|allowed", told, re.IGNORECASE), told


def test_explain_json_is_the_ledgers_record(filled: Path):
    answer = json.loads(gpu_aware(filled, "explain", "7", "--json").stdout)
    assert answer["state"] == "started"
    assert [d["slots"] for d in answer["decisions"]] == [[[0, 1]], [[1, 3]]]
    assert answer["decisions"][1]["why"]["cells"][1]["result"] == "chosen"
    assert [d["words"] for d in answer["decisions"]] == 2 * [{"why": WHY["summary"]}]
    assert [e["kind"] for e in answer["events"]] == ["parked", "started"]


@pytest.mark.parametrize(
    ("policy", "why", "lines"),
    [
        (
            "eft",
            {
                "reserved": {"job_id": "9", "gpus": "n1 GPU 3"},
                "waits_until": {"until_s": NOW},
                "preempts": {"victims": ["3", "4"], "number": 1},
            },
            [
                "why        free, but reserved for job 9: n1 GPU 3; by choice it waits until"
                " 2026-09-21 14:13 at most",
                "           (longest_wait_s); preempts 1 of 3, 4 (Slurm chooses)",
            ],
        ),
        (
            "shards",
            {"shards": {"shards": 2, "total": 4}, "woken": {"nodes": ["n1"]}},
            [
                "why        the first with shards of this GPU: 2 of 4",
                "woken up   n1",
            ],
        ),
        (
            "of-another-release",
            {"rule": {"policy": "pm-first"}, "utility": {"utility": 0.9}},
            ["why        the fastest free GPUs, however far apart; the highest utility, 0.90"],
        ),
    ],
)
def test_a_fresh_program_knows_all_facts(
    filled: Path, policy: str, why: dict[str, object], lines: list[str]
) -> None:
    """Whatever the policy of the job: nothing has loaded their modules before."""
    with own_ledger(filled) as ledger:
        ledger.add_decision(started_job("30", state="ended", policy=policy, why=why))
    done = _run_script(_EXPLAIN, filled)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-len(lines) :] == lines


_EXPLAIN = """
import os, sys, time
os.environ |= {"COLUMNS": "100", "TZ": "UTC"}
time.tzset()
from slurm_gpu_aware.cli.main import cli
cli.main(["--config", sys.argv[1], "explain", "30"], standalone_mode=False)
"""


def test_a_parked_job_tells_why_it_waits(filled: Path):
    done = succeeded(gpu_aware(filled, "explain", "8"))
    assert "Job 8: waiting" in done.stdout
    assert "Why it waits: no 4 free GPUs" in done.stdout
    assert "2026-09-21 14:23:20 at the latest" in done.stdout


@pytest.mark.parametrize("earlier", [False, True])
def test_a_job_whose_placing_failed_is_parked(filled: Path, earlier: bool):
    with own_ledger(filled) as ledger:
        for job_id, at in (("8", NOW + 4), ("10", NOW + 4)):
            prepared = {"state": "prepared", "decided_at": at - 60 * earlier}
            number = ledger.add_decision(started_job(job_id, **prepared))
            failed = {"step": "prepare", "why": "Slurm refused TresPerNode"}
            ledger.set_outcome(number, "waiting", NOW + 5, failed)
    waits = json.loads(gpu_aware(filled, "explain", "8", "--json").stdout)
    assert waits["state"] == "waiting"
    assert waits["waiting"]["reason"] == "no 4 free GPUs"
    told = gpu_aware(filled, "explain", "10").stdout
    assert "Job 10: waiting" in told
    assert "It could not be placed: Slurm refused TresPerNode. The next round" in told


def test_a_job_placed_since_the_copy_was_made_is_not_called_foreign(slurm: SlurmFolder):
    slurm.write([parked()], ["n1"])
    slurm.round()
    assert slurm.ledger("7") != []
    slurm.store.unlink()  # as a copy that is older than the placing
    open_store(slurm.store).close()
    published_path(slurm.store).unlink()
    asked = ["gpu-aware", "--config", str(slurm.config), "explain", "7"]
    done = slurm.run(*asked, environment={"TZ": "UTC"})
    assert done.stdout.startswith("Job 7: released\n")
    assert "Try again in" in done.stdout


@pytest.mark.parametrize(("ago_s", "state"), [(1, "not recorded yet"), (600, "left to Slurm")])
def test_a_job_started_since_the_copy_was_made_is_not_called_foreign(
    slurm: SlurmFolder, ago_s: int, state: str
):
    """The record of a job that we placed is removed at its start."""
    slurm.write([parked()], ["n1"])
    slurm.round()
    slurm.store.unlink()  # only the copy is left, as for an ordinary user
    start = int(time.time()) - ago_s
    slurm.write([run_by_slurm("9", slots=[0], start_time=start)], ["n1"])
    done = slurm.run("gpu-aware", "--config", str(slurm.config), "explain", "9")
    assert done.stdout.startswith(f"Job 9: {state}\n"), done.stdout
    assert ("Try again in a" in done.stdout) == (ago_s == 1)


@pytest.mark.parametrize("ago_s", [1, 600])
def test_a_job_cancelled_while_it_waited_has_not_started(slurm: SlurmFolder, ago_s: int):
    slurm.write([parked(reason="JobHeldUser")], ["n1"])
    slurm.round()
    end = int(time.time()) - ago_s  # Slurm gives it a start, too
    slurm.write([parked(state="CANCELLED", reason="JobHeldUser", start_time=end)], ["n1"])
    done = slurm.run("gpu-aware", "--config", str(slurm.config), "explain", "7")
    assert done.stdout.startswith("Job 7: ended\n"), done.stdout
    assert "It ended while it waited (state CANCELLED" in done.stdout


def test_an_inexact_placement_names_nodes_and_victims(filled: Path):
    done = gpu_aware(filled, "explain", "20_1")
    assert "n1 (Slurm chooses the GPUs)" in done.stdout
    (line,) = re.findall(r".*preempts.*", done.stdout)
    assert line == "why        preempts 1 of 3, 4 (Slurm chooses)"


def test_an_array_id_names_its_tasks(filled: Path):
    done = succeeded(gpu_aware(filled, "explain", "20"))
    assert "20_1, 20_2" in done.stdout


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ({"left_to_slurm": "reservation half holds only a part"}, "reservation half holds only a"),
        (None, "it was released by hand"),
    ],
)
def test_a_job_left_to_slurm_tells_why(detail: dict[str, str] | None, told: str):
    events = [{"at": NOW, "kind": "parked", "detail": {"user": "alice"}}]
    if detail:
        events.append({"at": NOW + 1, "kind": "released", "detail": detail})
    here = {"state": "PENDING", "reason": "Resources", "parked": False}
    (_, paragraph, _) = explained(state="left", events=events, slurm=here).split("\n\n")
    why = " ".join(paragraph.split())
    assert told in why
    assert ("selector was away" in why) == (detail is None)


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ({"mhz": [1530, 900], "power_w": [250.4, 99.6]}, "model: 250 W at 1530 MHz, 100 W at 900"),
        ({"error": "the job ended first"}, "model: the job ended first."),
        ({}, "its nodes know no energy"),
        ({"mhz": 5, "power_w": "many"}, "has tried its clocks"),  # of another release
    ],
)
def test_a_job_that_tried_clocks_tells_what_was_found(detail: dict[str, object], told: str):
    events = [{"at": NOW, "kind": "explored", "detail": detail}]
    assert told in " ".join(explained(state="ended", events=events).split())


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({"max_nodes": 1}, "4 GPUs on one node"),
        ({"min_nodes": 2, "max_nodes": 2}, "4 GPUs on 2 nodes"),
        ({}, "4 GPUs"),  # --gpus=4 may spread over several nodes
        ({"min_nodes": 1, "max_nodes": 2}, "4 GPUs"),
    ],
)
def test_the_nodes_of_a_request_are_told_where_it_says_how_many(nodes: dict[str, int], told: str):
    record = {"user": "alice", "submitted_at": NOW, "asked": {"gpus": 4, **nodes}}
    assert dict(asked_text(record))["asked"] == told


def test_an_unknown_job_is_exit_1(filled: Path):
    done = gpu_aware(filled, "explain", "4711")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "The ledger does not know job 4711, and Slurm was not asked." in said
    assert "Slurm does not answer: " in done.stderr


@pytest.mark.parametrize("bad", ["abc", "7;id", "7_", "-1x", "7_[x]", "7_[]", "../7"])
def test_a_bad_job_id_is_wrong_usage(filled: Path, bad: str):
    assert "job id" in refusal(gpu_aware(filled, "explain", "--", bad), 2)


def test_queue_without_slurm_shows_the_last_round(filled: Path):
    done = succeeded(gpu_aware(filled, "queue"))
    assert "Slurm does not answer" in done.stderr
    assert "no 4 free GPUs" in done.stdout
    assert "n1: 1,3" in done.stdout
    assert "20_2" not in done.stdout


def test_queue_of_one_user(filled: Path):
    answer = json.loads(gpu_aware(filled, "queue", "--user", "bob", "--json").stdout)
    assert [p["job_id"] for p in answer["placed"]] == ["20_1"]


def test_status_without_slurm_shows_what_was_recorded(filled: Path):
    done = succeeded(gpu_aware(filled, "status"))
    assert "last recorded round" in done.stdout
    assert "Slurm does not answer" in done.stdout
    assert "submit" in done.stdout
    assert "none: all GPUs count as equal" in done.stdout


def test_status_json(filled: Path):
    answer = json.loads(gpu_aware(filled, "status", "--json").stdout)
    assert answer["parked"] == 1
    assert answer["placed"]["started"] == 2
    assert answer["gate"] is None


def test_without_a_store_one_line_says_what_to_do(tmp_path: Path):
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/gone/store.db"\n')
    done = gpu_aware(config, "queue")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "use this command on the controller" in done.stderr
    assert "an administrator sets store.published" in done.stderr


def test_another_host_reads_the_shared_copy(filled: Path, tmp_path: Path):
    """No store is there; the copy lies on a folder that SQLite must not write to or lock."""
    with open_store(filled.parent / "store" / "store.db") as store:
        publish(store)
        (tmp_path / "shared").mkdir()
        published_path(store.path).replace(tmp_path / "shared" / "s.db")
    config = tmp_path / "other.toml"
    shared = tmp_path / "shared" / "s.db"
    config.write_text(f'[store]\npath = "{tmp_path}/gone/store.db"\npublished = "{shared}"\n')
    assert "Job 7: " in gpu_aware(config, "explain", "7").stdout
    assert "From the selector's public copy" in gpu_aware(config, "queue").stderr
    assert [file.name for file in shared.parent.iterdir()] == ["s.db"]
    shared.unlink()
    said = refusal(gpu_aware(config, "queue"))
    assert f"there is no {shared} on this host: the selector writes it" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (False, "an administrator starts the selector"),
        (True, "store.public.db: only user root and group root may read it"),
    ],
    ids=["before the first start of the selector", "PrivateData"],
)
def test_a_user_who_can_read_nothing_is_told_where_to_ask(copy: bool, words: str):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        open_store(folder / "store.db").close()
        if copy:
            (folder / "store.public.db").touch(mode=0o600)
        config = folder / "config.toml"
        config.write_text(f'[store]\npath = "{folder}/store.db"\n')
        done = _run_script(_OPEN_AS_NOBODY, config)
    assert words in done.stdout
    assert "mode" not in done.stdout


def _run_script(script: str, config: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", script, str(config)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


_OPEN_AS_NOBODY = """
import os, sys
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.features.energy.declared import SlowGpus
from slurm_gpu_aware.store.database import open_for_reading
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    open_for_reading(load_config(sys.argv[1]).store)
except Exception as exc:
    print(exc)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_an_ordinary_user_reads_the_published_copy(filled: Path):
    """The live file of a WAL store cannot be opened by a user who may not write beside it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with open_store(filled.parent / "store" / "store.db") as store:
            publish(store)
            shutil.move(published_path(store.path), folder / "store.public.db")
        (folder / "store.db").touch(mode=0o600)
        config = folder / "config.toml"
        config.write_text(f'[store]\npath = "{folder}/store.db"\n')
        done = _run_script(_AS_NOBODY, config)
    assert done.stderr == ""
    assert done.stdout.startswith("2 store.public.db From the selector's public copy")


_AS_NOBODY = """
import os, sys
from slurm_gpu_aware.time_text import duration
from slurm_gpu_aware.selector.job_answers import open_reader
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.store import database, ledger
os.setgid(65534); os.setuid(65534)
with open_reader(load_config(sys.argv[1])) as reader:
    print(len(reader.ledger.decisions("7")), reader.store.path.name, reader.note())
"""


def test_text_from_users_cannot_steer_the_terminal(filled: Path):
    store_path = filled.parent / "store" / "store.db"
    with open_store(store_path) as store:
        Ledger(store).add_decision(started_job("66", asked={"comment": "\x1b[31mred\nline"}))
    done = gpu_aware(filled, "explain", "66")
    assert "\x1b" not in done.stdout
    assert "?[31mred?line" in done.stdout


def test_a_damaged_store_is_one_line(filled: Path):
    (filled.parent / "store" / "store.db").write_bytes(b"not a database" * 100)
    assert "damaged" in refusal(gpu_aware(filled, "status"))
