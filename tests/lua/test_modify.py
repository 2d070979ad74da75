"""What an ordinary user may change in a job, and what becomes of the change."""

import time
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from luafilter import ALICE, ERROR, OPERATOR, SUCCESS, Filter, MakeFilter

from slurm_gpu_aware.config.settings import EventsConfig
from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, noted_record, parse
from slurm_gpu_aware.gate.licence_gate import defer_until

NO_VAL, NO_VAL16 = 4294967294, 65534
RECORD = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1;mc=1"
PARKED = {
    "tres_per_node": "gres/gpu:2",
    "licenses": "matlab:1,gpuaware:1",
    "admin_comment": RECORD,
    "comment": "class=A",
    "partition": "gpu",
    "time_limit": 60,
    "min_nodes": 1,
    "max_nodes": 1,
}
MARKER = ";sel=released:0:1790000000"
PLACED = {
    "tres_per_node": "gres/gpu:g0:1,gres/gpu:g2:1",
    "req_nodes": "n1",
    "licenses": "matlab:1",
    "admin_comment": RECORD + MARKER,
    "extra": "mine,freq=900@0+2",
    "partition": "gpu",
    "time_limit": 60,
    "min_mem_per_node": 900,
}
PREPARED = PLACED | {
    "admin_comment": RECORD + ";sel=prepared:0:1790000000",
    "licenses": "matlab:1,gpuaware:1",
}
RUNNING = PLACED | {"job_state": 1}
REQUEUED = PLACED | {"admin_comment": "", "restart_cnt": 1}
LEFT = PARKED | {"licenses": "matlab:1", "admin_comment": RECORD + ";sel=left:0:1790000000"}
OPENED_BY_HAND = PARKED | {"licenses": "matlab:1"}
FOREIGN = {"tres_per_node": "gres/gpu:2", "licenses": "matlab:1"}
ORPHAN = {"tres_per_node": "gres/gpu:2", "licenses": "gpuaware:1", "admin_comment": "seen"}

CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"partition": "other"}, {}),
    ({"req_nodes": "n1"}, {"req_nodes": "n1"}),
    ({"exc_nodes": "n[1-3]"}, {"exc_nodes": "n[1-3]"}),
    ({"tres_per_node": "gres/gpu:1"}, {"tres_per_node": "gres/gpu:1"}),
    (
        {"tres_per_node": "", "tres_per_job": "gres/gpu:4"},
        {"tres_per_node": None, "tres_per_job": "gres/gpu:4"},
    ),
    ({"tres_freq": "gpu:900"}, {"tres_freq": "gpu:900"}),
    ({"cpus_per_tres": "gres/gpu:2"}, {"cpus_per_tres": "gres/gpu:2"}),
    ({"min_nodes": 2, "max_nodes": 2}, {"nodes": (2, 2), "min_cpus": 2}),
    ({"min_nodes": 1, "max_nodes": 3}, {"nodes": (1, 3)}),
    ({"num_tasks": 4}, {"num_tasks": 4, "min_cpus": 4}),
    ({"cpus_per_task": 3}, {"cpus_per_task": 3, "min_cpus": 3}),
    ({"min_cpus": 8}, {"min_cpus": 8}),
    ({"pn_min_cpus": 3}, {"min_cpus_node": 3}),
    ({"features": "big"}, {"features": "big"}),
    ({"licenses": "other:2"}, {"licenses": "other:2"}),
    ({"licenses": ""}, {"licenses": None}),
    ({"time_limit": 60}, {}),
    ({"min_mem_per_node": 900}, {"memory": True}),
    ({"reservation": "r1"}, {}),
    ({"extra": "theirs"}, {}),
    ({"bitflags": 1 << 36}, {}),
    ({"req_switch": 1}, {"left": "--switches"}),
    ({"prefer": "big"}, {"left": "--prefer"}),
    ({"comment": "place=off"}, {"left": "place=off"}),
    (
        {"tres_per_node": "gres/gpu:A100:1"},
        {"tres_per_node": "gres/gpu:1", "model": "a100", "features": "gpu_a100"},
    ),
]
BINDING = frozenset(
    {
        *("req_nodes", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"),
        *(
            "exc_nodes",
            "tres_freq",
            "cpus_per_tres",
            "min_nodes",
            "max_nodes",
            "min_cpus",
            "max_cpus",
        ),
        *("num_tasks", "cpus_per_task", "pn_min_cpus"),
    }
)
USUAL: dict[str, Any] = {"tres_per_node": "gres/gpu:2", "licenses": "matlab:1", "min_cpus": 1}
HARMLESS: list[dict[str, Any]] = [
    {"name": "better"},
    {"priority": 0},
    {"dependency": "afterok:7"},
    {"qos": "normal"},
    {"comment": "class=B"},
    {"comment": "see wiki"},
    {"comment": ""},
]


def changed(out: Any) -> OriginalRequest:
    """The request that the filter notes in Extra."""
    request = parse(noted_record(out.job.get("extra")))
    assert request is not None, out
    return request


@pytest.mark.parametrize(("change", "request_"), CHANGES, ids=str)
def test_a_parked_job_keeps_waiting_with_its_new_request(
    filter_: Filter, change: dict[str, Any], request_: dict[str, Any]
) -> None:
    out = filter_.modify(PARKED, **change)
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    assert changed(out) == OriginalRequest(**(USUAL | request_))
    own = changed(out).licenses
    assert out.job["licenses"] == (f"{own},gpuaware:2" if own else "gpuaware:2")
    kept = {name: value for name, value in change.items() if name not in ("licenses", "extra")}
    if request_.get("model") is None:
        assert {name: out.job.get(name) for name in kept} == kept  # Slurm itself checks them


@pytest.mark.parametrize("record", [PLACED, PREPARED], ids=["released", "prepared"])
@pytest.mark.parametrize(("change", "request_"), CHANGES, ids=str)
def test_a_placed_job_returns_to_the_gate_with_its_binding(
    filter_: Filter, record: dict[str, Any], change: dict[str, Any], request_: dict[str, Any]
) -> None:
    out = filter_.modify(record, **change)
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    assert changed(out) == OriginalRequest(**(USUAL | request_))
    assert "gpuaware:2" in out.job["licenses"]
    for name in BINDING & change.keys():
        assert out.job.get(name) in (None, NO_VAL, NO_VAL16), name
    assert "freq=900@0+2,gpuaware/1;" in out.job["extra"]


@pytest.mark.parametrize("name", ["partition", "features", "reservation"])
def test_what_slurm_may_start_at_any_moment_stays_where_it_was_planned(
    filter_: Filter, name: str
) -> None:
    """Slurm keeps what it has applied of an update that it then refuses; licences come last."""
    by_slurm = PLACED | {"req_nodes": None, "tres_per_node": "gres/gpu:2", "exc_nodes": "n1"}
    by_slurm["admin_comment"] = f"{RECORD};lf=place%3Doff{MARKER}"
    out = filter_.modify(by_slurm, **{name: "other"})
    assert (out.rc, out.written) == (ERROR, [])
    assert "hold it (scontrol hold)" in out.messages[0]
    own = by_slurm | {"req_nodes": "n2", "admin_comment": f"{RECORD};rn=n2;lf=x{MARKER}"}
    assert filter_.modify(own, **{name: "other"}).rc == ERROR
    placed = own | {
        "admin_comment": f"{RECORD};rn=n2{MARKER}"
    }  # its nodes are the selector's choice
    assert filter_.modify(placed, **{name: "other"}).rc == SUCCESS
    model = {"comment": "class=A", "tres_per_node": "gres/gpu:a100:2"}
    assert filter_.modify(by_slurm, **model).rc == ERROR
    for chosen in (PLACED, by_slurm | {"req_nodes": "n2"}, PARKED):  # bound to nodes, or parked
        assert filter_.modify(chosen, **{name: "other"}).rc == SUCCESS
    out = filter_.modify(by_slurm, exc_nodes="")
    assert (out.rc, out.job.get("exc_nodes")) == (SUCCESS, None)
    assert changed(out).exc_nodes is None


def test_a_job_does_not_grow_at_its_open_gate(filter_: Filter) -> None:
    """Slurm could refuse the update behind its time limit and memory, and before the licence."""
    shown = {"time_limit": 60, "min_mem_per_node": 500}
    changes: list[tuple[dict[str, int], int]] = [
        *(({"time_limit": limit}, ERROR) for limit in (61, 4294967295)),
        *(({"time_limit": limit}, SUCCESS) for limit in (1, 60)),
        *(({"min_mem_per_node": memory}, ERROR) for memory in (0, 501)),
        *(({"min_mem_per_node": memory}, SUCCESS) for memory in (1, 500)),
        ({"min_mem_per_cpu": 1}, ERROR),
        ({"threads_per_core": 1}, ERROR),
        ({"mem_per_tres": "gres/gpu:64000"}, ERROR),
    ]
    for change, rc in changes:
        out = filter_.modify(PLACED | shown, **change)
        assert out.rc == rc, change
        assert (out.written == []) == (rc == ERROR)
        assert all("hold it (scontrol hold)" in text for text in out.messages)
        for closed in (PREPARED, PARKED, RUNNING):
            assert filter_.modify(closed | shown, **change).rc == SUCCESS, change
        assert filter_.modify(PLACED | shown, OPERATOR, **change).rc == SUCCESS
    for none in (NO_VAL, None):  # the partition's
        assert filter_.modify(PLACED | {"time_limit": none}, time_limit=5).rc == ERROR
    endless = PLACED | {"time_limit": 4294967295}
    assert filter_.modify(endless, time_limit=5).rc == SUCCESS


@pytest.mark.parametrize("record", [PARKED, PLACED, RUNNING, LEFT])
@pytest.mark.parametrize("change", HARMLESS, ids=str)
def test_what_does_not_change_the_request_passes(
    filter_: Filter, record: dict[str, Any], change: dict[str, Any]
) -> None:
    out = filter_.modify(record, **change)
    assert (out.rc, out.written, out.messages, out.log) == (SUCCESS, [], [], [])


@pytest.mark.parametrize("record", [LEFT, OPENED_BY_HAND])
@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=str)
def test_a_job_with_an_open_gate_keeps_its_request(
    filter_: Filter, record: dict[str, Any], change: dict[str, Any]
) -> None:
    """With another it would pass the jobs that wait."""
    out = filter_.modify(record, **change)
    assert (out.rc == ERROR) == bool(set(change) - {"bitflags", "comment"})
    assert out.rc == SUCCESS or out.messages[0].endswith("submit it again to change this")


@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=str)
def test_a_waiting_gpu_job_that_is_not_at_the_gate_keeps_its_request(
    filter_: Filter, change: dict[str, Any]
) -> None:
    """Slurm takes what no node can have (gpu:5) from a job that is held, or over a limit."""
    out = filter_.modify(FOREIGN, **change)
    assert out.written == []
    passes = not set(change) - {"bitflags", "comment", "extra", "time_limit", "time_min"}
    assert out.rc == (SUCCESS if passes else ERROR)
    assert passes or out.messages[0].endswith("submit it again to change this")
    assert filter_.modify(FOREIGN, OPERATOR, **change).rc == SUCCESS


@pytest.mark.parametrize(
    "record",
    [
        PARKED,
        PLACED,
        PARKED | {"tres_per_node": "gres/shard:1", "admin_comment": "gpuaware/1;tn=gres/shard:1"},
        {"het_job_id": 98, "het_job_offset": 1, "tres_per_node": "gres/gpu:2"},
    ],
    ids=["parked", "released", "shard", "later component"],
)
@pytest.mark.parametrize("clear", ["", "gres/gpu:0", "gres/gpu:0k", "gres/gpu::0", "gres/tmp:1"])
def test_no_update_clears_the_gpus_of_a_waiting_job(
    filter_: Filter, record: dict[str, Any], clear: str
) -> None:
    """Slurm would show none, and give it those of its submission."""
    for change in ({"tres_per_node": clear}, {"tres_per_node": clear, "tres_per_job": "gpu:0"}):
        out = filter_.modify(record, **change)
        assert (out.rc, out.written) == (ERROR, [])
        assert "Slurm keeps the GPUs" in out.messages[0]
    assert filter_.modify(record, tres_per_node="", tres_per_job="gres/gpu:1").rc == SUCCESS


@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=str)
def test_slurm_alone_decides_about_running_jobs(filter_: Filter, change: dict[str, Any]) -> None:
    out = filter_.modify(RUNNING, **change)
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    if "extra" not in change:
        assert out.written == []


def test_a_running_job_keeps_its_clock(filter_: Filter) -> None:
    assert filter_.modify(RUNNING, extra="theirs").job["extra"] == "theirs,freq=900@0+2"
    assert filter_.modify(RUNNING, extra="").job["extra"] == "freq=900@0+2"
    assert filter_.modify(PLACED, extra="theirs").job["extra"].startswith("theirs,freq=900@0+2,gpu")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class=A,gpus=2", None),
        ("gpus=1-4", None),
        ("run 7 of mine", None),
        ("", None),
        ("gpus=4-8", "gpus=4-8 does not hold 2, the number of GPUs"),
        ("gpus=1", "gpus=1 does not hold 2, the number of GPUs"),
        ("gpus=8-4", "gpus=8-4 is not valid"),
        ("class=Z", "class=Z is not valid"),
    ],
)
def test_the_comment_of_a_running_job_is_checked(
    filter_: Filter, text: str, told: str | None
) -> None:
    """It counts when the job is requeued."""
    for tres in ("gres/gpu:g0:1,gres/gpu:g2:1", "gres/gpu:2"):
        out = filter_.modify(RUNNING | {"tres_per_node": tres}, comment=text)
        assert (out.rc, out.written) == (SUCCESS if told is None else ERROR, [])
        assert (told or "") in "".join(out.messages)
    other = RUNNING | {"tres_per_node": None, "tres_per_job": None}
    assert filter_.modify(other, comment=text).rc == SUCCESS


@pytest.mark.parametrize("tres", ["gres/gpu:8kb", "gres/gpu:1k", "gres/gpu:1234567"])
def test_counts_that_slurm_reads_otherwise_end_no_check_of_a_comment(
    filter_: Filter, tres: str
) -> None:
    out = filter_.modify(RUNNING | {"tres_per_node": tres}, comment="class=A")
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    out = filter_.modify(RUNNING | {"tres_per_node": tres}, comment="class=Z")
    assert (out.rc, out.log) == (ERROR, [])
    assert "class=Z is not valid" in out.messages[0]


PENDING, COMPLETING = 0, 0x8000


@pytest.mark.parametrize(
    "change",
    [*(change for change, _ in CHANGES if "bitflags" not in change), {"comment": "gpus=2"}],
)
def test_a_requeued_job_is_not_changed_before_its_record_is_back(
    filter_: Filter, change: dict[str, Any]
) -> None:
    """The selector will restore the request of the record, so the change would be lost."""
    for shown, state in product(
        ["", "gpu-aware n1:0,2,V=1.02", "of the site"], [PENDING, COMPLETING]
    ):
        back = REQUEUED | {"admin_comment": shown, "job_state": state}
        out = filter_.modify(back, **change)
        assert (out.rc, out.written, out.log) == (ERROR, [], []), (shown, state)
        assert "on its way back to the queue; try again" in out.messages[0]
        assert filter_.modify(back | {"job_state": 1 + state}, **change).rc == SUCCESS
        assert filter_.modify(back, OPERATOR, **change).rc == SUCCESS
        held = {"priority": 0, "bitflags": 0xF << 25}
        assert filter_.modify(back, **held).rc == SUCCESS


def test_a_requeued_job_without_an_index_type_is_asked_to_try_again(filter_: Filter) -> None:
    back = REQUEUED | {"tres_per_node": "gres/gpu:2", "restart_cnt": 1}
    out = filter_.modify(back, req_nodes="n1")
    assert (out.rc, out.written) == (ERROR, [])
    assert "on its way back to the queue; try again" in out.messages[0]


@pytest.mark.parametrize("tres", ["gres/gpu:2", "gres/gpu:g1:1"])
def test_a_requeued_job_that_was_never_parked_is_not_told_to_try_again_for_good(
    filter_: Filter, tres: str
) -> None:
    """``-M a,b``, or from before the installation: the selector parks each of ours in seconds."""
    back = REQUEUED | {"tres_per_node": tres}
    release = {"priority": 4294967295, "bitflags": 1}
    for ago, told in ((5, "try again"), (600, "as it was submitted")):
        since = back | {"submit_time": int(time.time()) - ago}
        for change in ({"req_nodes": "n1"}, release | {"req_nodes": "n1"}):
            out = filter_.modify(since, **change)
            assert (out.rc, out.written) == (ERROR, [])
            assert told in out.messages[0], (ago, change)
        starts = filter_.modify(since, begin_time=1_900_000_000)
        assert starts.rc == (SUCCESS if ago > 120 else ERROR)
        assert filter_.modify(since, **release).job["licenses"] == "matlab:1,gpuaware:1"


@pytest.mark.parametrize("tres", ["gres/gpu:g1:1", ""], ids=["exact", "whole nodes"])
@pytest.mark.parametrize("marker", [MARKER, ";sel=left:0:1790000000"], ids=["bound", "left"])
def test_a_job_requeued_before_a_round_has_seen_it_run_keeps_its_delay(
    filter_: Filter, tres: str, marker: str
) -> None:
    """Its record is still there, of the start before."""
    back = REQUEUED | {"admin_comment": RECORD + marker, "tres_per_node": tres}
    out = filter_.modify(back, begin_time=1_900_000_000)
    assert (out.rc, out.written) == (ERROR, [])
    assert "on its way back to the queue; try again" in out.messages[0]
    long_ago = back | {"submit_time": int(time.time()) - 130}
    for other in (long_ago, back | {"restart_cnt": 0}, back | {"licenses": "gpuaware:1"}):
        assert filter_.modify(other, begin_time=1_900_000_000).rc == SUCCESS, other
    out = filter_.modify(back, priority=4294967295, bitflags=1)
    assert (out.rc, out.job["licenses"]) == (SUCCESS, "matlab:1,gpuaware:1")


def test_a_requeued_job_of_whole_nodes_keeps_its_delay_until_it_is_parked(
    make_filter: MakeFilter,
) -> None:
    """Its record does not show ``--exclusive``, so any job without GPUs may be one."""
    lists = 'partitions = { "gpu", "mixed" }, partitions_with_others = { "mixed" }'
    filter_ = make_filter(more=lists)
    back = {"tres_per_node": "", "restart_cnt": 1, "partition": "gpu"}
    back["submit_time"] = int(time.time()) - 2
    for change in ({"begin_time": 1_900_000_000}, {"priority": 4294967295, "bitflags": 1}):
        out = filter_.modify(back, **change)
        assert (out.rc, out.written) == (ERROR, [])
        assert "on its way back to the queue; try again" in out.messages[0]
        later = {"submit_time": int(time.time()) - 12}
        for other in (later, {"restart_cnt": 0}, {"partition": "cpu"}):
            assert filter_.modify(back | other, **change).rc == SUCCESS, other
        assert filter_.modify(back | {"partition": "mixed"}, **change).rc == ERROR
        assert filter_.modify(back, OPERATOR, **change).rc == SUCCESS
    for more in ({"comment": "mine"}, {"time_limit": 5}, {"priority": 0}):
        assert filter_.modify(back, **more).rc == SUCCESS, more


def test_no_update_makes_a_waiting_job_one_of_whole_nodes_that_waits_at_no_gate(
    make_filter: MakeFilter,
) -> None:
    filter_ = make_filter(more='partitions = { "gpu", "cpu" }, partitions_with_others = { "cpu" }')
    waiting = {"tres_per_node": "", "partition": "gpu"}
    for change, told in (
        ({"partition": "cpu", "begin_time": 1}, "cannot move to partition cpu"),
        ({"partition": "gpu,cpu", "min_nodes": 1}, "cannot move to partition gpu,cpu"),
    ):
        out = filter_.modify(waiting, **change, exclusive={"cpu"})
        assert (out.rc, told in out.messages[0]) == (ERROR, True)
        assert filter_.modify(waiting, **change).rc == SUCCESS
        assert filter_.modify(waiting, OPERATOR, **change, exclusive={"cpu"}).rc == SUCCESS
    out = filter_.modify(waiting | {"partition": "cpu"}, shared=0)
    assert (out.rc, "cannot be given GPUs" in out.messages[0]) == (ERROR, True)


MIXED = (
    'partitions = { "gpu", "mixed", "cpu" }, partitions_with_others = { "mixed", "cpu" },'
    ' partitions_without_gpus = { "cpu" }'
)


def test_no_waiting_job_without_gpus_moves_to_nodes_with_gpus_while_others_wait_there(
    make_filter: MakeFilter,
) -> None:
    """Its record does not show ``--exclusive``, and no reservation guards the first job yet."""
    filter_ = make_filter(more=MIXED)
    waiting = EventsConfig(filter_.folder / "submitted").waiting_file
    job = {"tres_per_node": "", "partition": "cpu"}
    for ahead_s in (-1, 90):
        defer_until(waiting, time.time() + ahead_s)
        for other, change in (
            (job, {"partition": "gpu"}),
            (job, {"partition": "cpu,mixed", "req_nodes": "n4"}),
            (job | {"partition": "elsewhere"}, {"partition": "mixed"}),
        ):
            out = filter_.modify(other, **change)
            assert (out.rc, out.written) == (ERROR if ahead_s > 0 else SUCCESS, [])
            assert all("while GPU jobs wait" in text for text in out.messages)
            assert filter_.modify(other, OPERATOR, **change).rc == SUCCESS
        for other, change in (
            (job | {"partition": "mixed"}, {"partition": "gpu"}),
            (job, {"partition": "elsewhere"}),
            (job, {"time_limit": 5}),
        ):
            assert filter_.modify(other, **change).rc == SUCCESS, change


@pytest.mark.parametrize(
    ("job", "later"),
    [
        ({"tres_per_node": "", "partition": "mixed"}, False),
        ({"tres_per_node": "gres/gpu:1", "partition": "gpu", "licenses": "a|b"}, True),
        ({"tres_per_node": "", "partition": "cpu"}, False),
        ({"tres_per_node": "", "partition": "elsewhere"}, False),
    ],
)
def test_no_update_starts_a_job_that_passes_the_gate_before_the_first_job_is_guarded(
    make_filter: MakeFilter, job: dict[str, Any], *, later: bool
) -> None:
    filter_ = make_filter(more=MIXED)
    waiting = EventsConfig(filter_.folder / "submitted").waiting_file
    for ahead_s in (-1, 90):
        defer_until(waiting, time.time() + ahead_s)
        out = filter_.modify(job, begin_time=int(time.time()))
        assert out.written == (["begin_time"] if later and ahead_s > 0 else [])
        assert (int(out.job["begin_time"]) - time.time() > 3) == bool(out.written)
        for uid, change in (
            (OPERATOR, {"begin_time": 1}),
            (ALICE, {"begin_time": 1_900_000_000}),
            (ALICE, {"time_limit": 5}),
        ):
            assert filter_.modify(job, uid, **change).written == [], change


@pytest.mark.parametrize(
    "shown",
    [{"tres_per_node": "gres/gpu:g1:1"}, {"tres_per_node": ""}, {"admin_comment": RECORD + MARKER}],
    ids=["exact", "whole nodes", "not seen to run"],
)
def test_a_requeued_job_that_still_ends_keeps_its_delay(
    filter_: Filter, shown: dict[str, str]
) -> None:
    """Slurm sets delay and submission when it has ended, and no delay if its start lies ahead."""
    long_ago = REQUEUED | shown | {"submit_time": int(time.time()) - 600}
    for change in ({"begin_time": 1_900_000_000}, {"begin_time": 1_900_000_000, "time_limit": 5}):
        out = filter_.modify(long_ago | {"job_state": COMPLETING}, **change)
        assert (out.rc, out.written) == (ERROR, [])
        assert "on its way back to the queue; try again" in out.messages[0]
        first = long_ago | {"job_state": COMPLETING, "restart_cnt": 0}
        assert filter_.modify(first, OPERATOR, **change).rc == SUCCESS
    assert filter_.modify(long_ago, begin_time=1_900_000_000).rc == SUCCESS


def test_a_gres_of_another_name_is_no_gpu(filter_: Filter) -> None:
    other = REQUEUED | {"tres_per_node": "gres/gpubw:1", "tres_fmt_req_str": "gres/gpubw=1"}
    assert filter_.modify(other, req_nodes="n1").rc == SUCCESS


@pytest.mark.parametrize(
    "tres",
    [
        {"tres_per_node": "gres/gpu:g1:1"},
        {"tres_per_node": "gres/gpu:2"},
        {"tres_per_node": "", "tres_fmt_req_str": "cpu=4,gres/gpu=2"},
    ],
    ids=["exact", "by Slurm", "counted from tasks"],
)
def test_a_requeued_job_keeps_its_delay_until_it_is_parked(
    filter_: Filter, tres: dict[str, str]
) -> None:
    """Else it would start before the selector has seen it, past all jobs that wait."""
    back = REQUEUED | {"admin_comment": "", **tres}
    out = filter_.modify(back, begin_time=1_900_000_000)
    assert out.rc == ERROR
    assert "on its way back to the queue; try again" in out.messages[0]
    none = {"tres_per_node": "", "tres_fmt_req_str": "", "submit_time": int(time.time()) - 12}
    assert filter_.modify(back | none, begin_time=1_900_000_000).rc == SUCCESS
    assert filter_.modify(back | {"restart_cnt": 0}, begin_time=1_900_000_000).rc == SUCCESS
    assert filter_.modify(back, OPERATOR, begin_time=1_900_000_000).rc == SUCCESS


@pytest.mark.parametrize(
    "shown", ["", RECORD + MARKER, RECORD + ";sel=left:0:1790000000"], ids=["none", "bound", "left"]
)
def test_a_requeued_job_that_its_owner_releases_waits_at_the_gate(
    filter_: Filter, shown: str
) -> None:
    """Held, with a start time that has passed, it could start before it is parked again."""
    back, release = REQUEUED | {"admin_comment": shown}, {"priority": 4294967295, "bitflags": 1}
    out = filter_.modify(back, **release)
    assert (out.rc, out.messages, out.written) == (SUCCESS, [], ["licenses"])
    assert out.job["licenses"] == "matlab:1,gpuaware:1"
    task = filter_.modify(back | {"array_job_id": 98}, **release).job
    assert filter_.modify(back | {"array_job_id": 98}, **task).job == task
    first = back | {"restart_cnt": 0}
    for other in (back | {"licenses": "gpuaware:1"}, first, back | {"licenses": "a|b"}):
        given = filter_.modify(other, priority=4294967295).job.get("licenses")
        assert given in (None, ""), other
    assert filter_.modify(back, OPERATOR, **release).written == []
    for more in ({"partition": "cpu"}, {"tres_per_node": "gres/gpu:4"}, {"comment": "class=ZZ"}):
        out = filter_.modify(back, **release, **more)
        if shown == RECORD + MARKER and "comment" not in more:  # it is recorded as any change
            assert (out.rc, out.job["licenses"]) == (SUCCESS, "matlab:1,gpuaware:2")
        else:
            assert out.rc == ERROR
        if shown != RECORD + MARKER:
            assert "on its way back to the queue; try again" in out.messages[0]
    none = {"tres_per_node": "gres/tmp:1", "submit_time": int(time.time()) - 12}
    assert filter_.modify(FOREIGN | none | {"restart_cnt": 1}, **release).written == []


def test_a_change_upon_a_change(filter_: Filter) -> None:
    first = filter_.modify(PARKED, num_tasks=4, extra="mine").job
    record = PARKED | {"licenses": first["licenses"], "extra": first["extra"], "num_tasks": 4}
    out = filter_.modify(record, tres_per_node="gres/gpu:1")
    assert (changed(out).num_tasks, changed(out).tres_per_node) == (4, "gres/gpu:1")
    assert out.job["extra"].count("gpuaware/") == 1
    assert out.job["extra"].startswith("mine,gpuaware/1;")
    # Slurm refused it after the record: what it had set stays.
    record["licenses"] = "matlab:1,gpuaware:1"
    assert changed(filter_.modify(record, tres_per_node="gres/gpu:1")).num_tasks == 4
    refused = filter_.modify(PARKED, tres_per_task="gres/gpu:1").job["extra"]
    out = filter_.modify(PARKED | {"extra": refused}, tres_per_node="gres/gpu:0")
    assert (out.rc, out.written) == (ERROR, [])
    assert "Slurm keeps the GPUs" in out.messages[0]


@pytest.mark.parametrize(
    ("features", "change", "after"),
    [
        ("gpu_a100", {"features": "big"}, "big&gpu_a100"),
        ("big&gpu_a100", {"features": ""}, "gpu_a100"),
        ("big&gpu_a100", {"tres_per_node": "gres/gpu:1"}, "big"),
        ("(a|b)&gpu_a100", {"tres_per_node": "gres/gpu:1"}, "a|b"),
        ("big&gpu_a100", {"tres_per_node": "gres/gpu:v100:1"}, "big&gpu_v100"),
        ("gpu_a100", {"tres_per_node": "gres/gpu:1"}, None),
        ("gpu_a100", {"num_tasks": 2}, "gpu_a100"),
    ],
)
def test_the_feature_of_a_model_follows_it(
    filter_: Filter, features: str, change: dict[str, Any], after: str | None
) -> None:
    written = features.replace("&", "%26").replace("|", "%7C").replace("(", "%28")
    text = f"gpuaware/1;tn=gres/gpu:2;feat={written.replace(')', '%29')};mt=a100"
    out = filter_.modify(PARKED | {"admin_comment": text, "features": features}, **change)
    assert (out.rc, changed(out).features) == (SUCCESS, after)
    assert out.job.get("features") == (after if change.keys() - {"num_tasks"} else features)


def test_an_unmanaged_partition(make_filter: Any) -> None:
    filter_ = make_filter(more='partitions = { "gpu" }')
    assert changed(filter_.modify(PARKED, partition="cpu")).left == "its partition is not managed"
    assert changed(filter_.modify(PARKED, num_tasks=2)).left is None


@pytest.mark.parametrize("uid", [0, OPERATOR])
@pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=str)
def test_operators_pass(filter_: Filter, uid: int, change: dict[str, Any]) -> None:
    out = filter_.modify(PARKED, uid, **change)
    assert (out.rc, out.written) == (SUCCESS, [])


@pytest.mark.parametrize("count", [1, 2], ids=["refused half-way", "applied"])
@pytest.mark.parametrize("uid", [0, OPERATOR])
def test_no_update_undoes_a_change_that_the_selector_has_not_read(
    filter_: Filter, uid: int, count: int
) -> None:
    fresh = PARKED | {"licenses": f"matlab:1,gpuaware:{count}", "extra": RECORD}
    settling: dict[str, Any] = {
        "admin_comment": RECORD,
        "extra": "",
        "licenses": "matlab:1,gpuaware:1",
    }
    assert filter_.modify(fresh, uid, **settling).rc == SUCCESS
    assert filter_.modify(fresh, uid, partition="other").rc == SUCCESS
    # The request comes first, with the licences that leave the change open.
    request = {"req_nodes": "", "licenses": "matlab:1,gpuaware:2"}
    assert filter_.modify(fresh, uid, **request).rc == SUCCESS
    undoing: list[dict[str, Any]] = [
        *({name: value} for name, value in settling.items()),
        {"admin_comment": RECORD, "licenses": ""},
        {"req_nodes": "n1"},
        {"req_nodes": "n1", "licenses": "gpuaware:1"},
        request | {"extra": ""},
        {"tres_per_node": "gres/gpu:g0:1"},
    ]
    for change in undoing:
        out = filter_.modify(fresh, uid, **change)
        assert out.rc == ERROR, change
        assert "its owner has just changed this job" in out.messages[0]
        assert filter_.modify(fresh | {"job_state": 1}, uid, **change).rc == SUCCESS


@pytest.mark.parametrize("shown", [RECORD, RECORD + MARKER, RECORD.replace(";", ";st=n1:0;", 1)])
def test_a_change_is_settled_with_its_own_record_or_the_present_one(
    filter_: Filter, shown: str
) -> None:
    """An older record would undo what the owner has changed since the selector read the job."""
    newest = "gpuaware/1;tn=gres/gpu:2;xn=n1;mc=1"
    job = PARKED | {"licenses": "gpuaware:2", "admin_comment": shown, "extra": f"mine,{newest}"}
    for record, code in (
        *((newest, SUCCESS), (RECORD, SUCCESS), (f"{RECORD};xn=n2", ERROR)),
        *((f"{newest};feat=a%7Cb", SUCCESS), (f"{RECORD};feat=big", SUCCESS)),
    ):
        settled = {"admin_comment": record, "extra": "mine", "licenses": "gpuaware:1"}
        assert filter_.modify(job, OPERATOR, **settled).rc == code, record
        # Slurm has taken the record out, and then refused it: no newer change is there.
        taken = job | {"extra": "mine"}
        assert filter_.modify(taken, OPERATOR, **settled).rc == SUCCESS, record


def test_an_array_reaches_the_filter_record_by_record(filter_: Filter) -> None:
    rest, task = PARKED | {"array_job_id": 98}, PLACED | {"array_job_id": 98}
    given: dict[str, Any] = {"tres_per_node": "gres/gpu:1", "exc_nodes": "n4"}
    first = filter_.modify(task, **given).job
    assert "tres_per_node" not in first
    out = filter_.modify(rest, **first)
    assert (out.rc, out.job["tres_per_node"]) == (SUCCESS, "gres/gpu:1")
    assert changed(out).tres_per_node == "gres/gpu:1"
    assert out.job["extra"].startswith("gpuaware/1;")
    # Only the owner's next record, and only in this array, is taken for the same update.
    assert filter_.modify(rest, ALICE + 1, **out.job).rc == ERROR
    assert filter_.modify(rest | {"array_job_id": 99}, **out.job).rc == ERROR
    assert filter_.modify(FOREIGN | {"array_job_id": 98}, **out.job).job == given


@pytest.mark.parametrize("held", [{"priority": 0, "bitflags": 1}, {"time_limit": 50}])
def test_a_heterogeneous_job_reaches_the_filter_component_by_component(
    filter_: Filter, held: dict[str, int]
) -> None:
    """A later one has no licence of the gate, or that of the first, as an update reaches all."""
    first = PARKED | {"het_job_id": 98, "admin_comment": "gpuaware/1;tn=gres/gpu:2;lf=x"}
    out = filter_.modify(first, **held)
    assert (out.rc, out.job["licenses"]) == (SUCCESS, "gpuaware:2")
    given = out.job
    own = filter_.modify(FOREIGN | {"het_job_id": 98}, **given)
    assert (own.rc, own.job) == (SUCCESS, held)
    filter_.modify(first, **held)
    like = filter_.modify(first, **given)
    assert (like.rc, like.job["licenses"]) == (SUCCESS, "gpuaware:2")
    assert filter_.modify(first | {"het_job_id": 99}, **given).rc == ERROR


@pytest.mark.parametrize("gres", ["gres/tmp:1", "gres/gpu:0", ""])
def test_a_component_that_never_had_gpus_keeps_none(filter_: Filter, gres: str) -> None:
    """Slurm keeps no GPUs of it, so the update is like any other."""
    none = {"tres_per_node": "gres/tmp:2", "het_job_id": 98}
    record = "gpuaware/1;tn=gres/tmp:2;lf=a%20heterogeneous%20job"
    first = PARKED | none | {"admin_comment": record, "comment": ""}
    out = filter_.modify(first, tres_per_node=gres)
    assert (out.rc, changed(out).tres_per_node) == (SUCCESS, gres or None)
    assert changed(out).left == "a heterogeneous job"
    later = FOREIGN | none | {"het_job_offset": 1}
    assert filter_.modify(later, tres_per_node=gres).rc == SUCCESS


@pytest.mark.parametrize("licences", ["", "gpuaware:1"])
def test_a_later_component_is_not_taken_for_the_job_at_the_gate(
    filter_: Filter, licences: str
) -> None:
    """The selector settles changes of the first one only: the licence twice would stay for ever."""
    closed = PARKED | {"het_job_id": 98, "het_job_offset": 1, "licenses": licences}
    change = {"tres_per_node": "gres/gpu:4", "time_limit": 5}
    out = filter_.modify(closed, **change)
    assert (out.rc, out.job) == (SUCCESS, change)
    given = filter_.modify(PARKED | {"het_job_id": 98}, **change).job
    out = filter_.modify(closed, **given)
    assert (out.rc, out.job) == (SUCCESS, change)
    back = closed | {"licenses": "", "admin_comment": "", "restart_cnt": 1}
    assert filter_.modify(back, **change, begin_time=1_900_000_000).rc == ERROR
    none = FOREIGN | {"het_job_id": 98, "het_job_offset": 1, "tres_per_node": ""}
    assert filter_.modify(none, **change).rc == ERROR


def test_a_later_component_alone_does_not_change_while_the_gate_is_open(filter_: Filter) -> None:
    record = "gpuaware/1;tn=gres/gpu:2;lf=x;sel=released:0:1790000000"
    first = PARKED | {"het_job_id": 98, "licenses": "", "admin_comment": record}
    later, change = first | {"het_job_offset": 1}, {"tres_per_node": "gres/gpu:4"}
    assert filter_.modify(later, **change).rc == ERROR
    assert filter_.modify(later, name="better", bitflags=1).rc == SUCCESS
    # An update of the whole job closes the gate.
    given = filter_.modify(first, **change).job
    assert given["licenses"] == filter_.modify(later, **given).job["licenses"] == "gpuaware:2"


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"licenses": "gpuaware:1"}, "--licenses"),
        ({"licenses": "matlab:1,gpuaware"}, "--licenses"),
        ({"reservation": "gpuaware_gate"}, "--reservation"),
        ({"tres_per_node": "gres/gpu:g3:1"}, "g3"),
        ({"tres_per_job": "gpu:g3:1"}, "g3"),
        ({"extra": "freq=1530"}, "--comment=freq=MHz"),
        ({"extra": "x,gpuaware/1;tn=gres/gpu:4"}, "own record"),
        ({"licenses": "gpuaware:2", "extra": "gpuaware/1;tn=gres/gpu:4"}, "--licenses"),
    ],
)
@pytest.mark.parametrize("record", [FOREIGN, PARKED, PLACED, RUNNING])
def test_in_any_job_what_is_ours_is_refused(
    filter_: Filter, record: dict[str, Any], change: dict[str, Any], hint: str
) -> None:
    out = filter_.modify(record, **change)
    assert out.rc == ERROR
    assert hint in out.messages[0]
    assert filter_.modify(FOREIGN, 0, **change).rc == SUCCESS


@pytest.mark.parametrize("record", [PARKED, PLACED])
@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"comment": "class=D"}, "A, B, C, auto"),
        ({"comment": "run 7 gpu:bw=no"}, "high, low"),
        ({"comment": "gpus=4-8"}, "does not hold 2,"),
        ({"comment": "gpus=2-4", "tres_per_node": "gres/gpu:1"}, "does not hold 1,"),
        ({"comment": "gpus=2-4"}, "gpus=2-4 must be there at submission"),
        ({"licenses": "a|b"}, "licences with |"),
        ({"req_nodes": "n," * 600}, "too long"),
    ],
)
def test_a_wrong_change_is_refused(
    filter_: Filter, record: dict[str, Any], change: dict[str, Any], hint: str
) -> None:
    out = filter_.modify(record, ALICE, **change)
    assert (out.rc, out.written) == (ERROR, [])
    assert hint in out.messages[0]
    assert filter_.modify(record, comment="gpus=2").rc == SUCCESS


@pytest.mark.parametrize("record", [PARKED, PLACED])
@pytest.mark.parametrize("field", ["node", "job", "task", "socket"])
@pytest.mark.parametrize("wrong", ["gpu:1", "gpu", "gpu:a100:1", "cpu=2,gpu=1", "shard:3"])
def test_gpus_that_are_no_gres_to_slurm_are_refused(
    filter_: Filter, record: dict[str, Any], field: str, wrong: str
) -> None:
    """Slurm refuses them when it has set all else, the record and the licences too."""
    out = filter_.modify(record, **{f"tres_per_{field}": wrong})
    assert (out.rc, out.written) == (ERROR, [])
    said = f"Slurm does not know the TRES {wrong.split(',')[-1]}; write for example gres/gpu:2"
    assert said in out.messages[0]


@pytest.mark.parametrize(
    "change",
    [
        {"tres_per_node": "gres/gpu:1"},
        {"tres_per_node": "gres:gpu:1"},
        {"tres_per_node": "gres/gpu:a100:1,gres/tmp:5"},
        {"tres_per_task": "cpu=2,gres/gpu=1", "num_tasks": 2},
        {"tres_per_task": "cpu=2"},
        {"tres_per_task": "license/matlab=1"},
        {"tres_per_job": "gpu:0", "num_tasks": 1},
    ],
    ids=str,
)
def test_what_slurm_takes_is_not_refused(filter_: Filter, change: dict[str, Any]) -> None:
    assert filter_.modify(PARKED, **change).rc == SUCCESS


def test_an_orphan_cannot_be_changed(filter_: Filter) -> None:
    out = filter_.modify(ORPHAN, num_tasks=2)
    assert out.rc == ERROR
    assert "cannot be read" in out.messages[0]
    assert filter_.modify(ORPHAN, time_limit=5).rc == SUCCESS


# Jobs that are left to Slurm ----------------------------------------------------------------------

LEFT_RECORD = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1;mc=1;lf=--contiguous"
OFF_RECORD = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1;mc=1;lf=place%3Doff"
BY_SLURM = ";sel=released:0:1790000000"


STILL_LEFT = [
    {"req_nodes": "n1"},
    {"num_tasks": 4},
    {"tres_per_node": "gres/gpu:1"},
    {"time_limit": 5},
]


@pytest.mark.parametrize(
    ("marker", "change"),
    [*product(["", BY_SLURM], STILL_LEFT), ("", {"partition": "x"})],  # refused once it is released
    ids=str,
)
def test_a_changed_job_stays_left_to_slurm(
    filter_: Filter, marker: str, change: dict[str, Any]
) -> None:
    """Its record does not hold all that made it so; it returns to the gate in the same update."""
    licences = {"licenses": "matlab:1"} if marker else {}
    out = filter_.modify(PARKED | {"admin_comment": LEFT_RECORD + marker} | licences, **change)
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    assert changed(out).left == "--contiguous"
    assert out.job["licenses"] == "matlab:1,gpuaware:2"


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("place=off", "class=A", None),
        ("place=off", "place=off", "place=off"),
        ("see wiki", "place=off", "place=off"),
    ],
)
def test_only_place_off_is_taken_back(
    filter_: Filter, before: str, after: str, left: str | None
) -> None:
    record = PARKED | {"admin_comment": OFF_RECORD, "comment": before}
    assert changed(filter_.modify(record, comment=after, num_tasks=2)).left == left
    others = record | {"admin_comment": LEFT_RECORD}
    kept = changed(filter_.modify(others, comment=after, num_tasks=2)).left
    assert kept == (left or "--contiguous")


def test_a_job_that_was_left_by_its_comment_stays_so_without_another(filter_: Filter) -> None:
    record = PARKED | {"admin_comment": OFF_RECORD, "comment": "place=off"}
    assert changed(filter_.modify(record, num_tasks=2)).left == "place=off"
    assert changed(filter_.modify(record, comment="", num_tasks=2)).left is None


@pytest.mark.parametrize("marker", ["", BY_SLURM], ids=["parked", "released"])
def test_a_record_of_a_part_refuses_changes_of_the_request(filter_: Filter, marker: str) -> None:
    part = "gpuaware/1;lf=a%20request%20too%20long%20to%20be%20recorded;pt=1"
    record = PARKED | {"admin_comment": part + marker, "req_nodes": "n" * 2000}
    for change, _ in CHANGES:
        if change.keys() & {"time_limit", "comment"}:
            assert filter_.modify(record, **change).written == []
            continue
        out = filter_.modify(record, **change)
        assert (out.rc, out.written) == (ERROR, []), change
        assert "cannot be read; cancel the job and submit it again" in out.messages[0]
    for change in HARMLESS:
        assert filter_.modify(record, **change).rc == SUCCESS


# Shards -------------------------------------------------------------------------------------------

SHARDS = PARKED | {"tres_per_node": "gres/shard:2", "admin_comment": "gpuaware/1;tn=gres/shard:2"}
BOUND_SHARDS = {
    **PLACED,
    "tres_per_node": "gres/shard:g1:2",
    "admin_comment": "gpuaware/1;tn=gres/shard:2" + MARKER,
}


@pytest.mark.parametrize("record", [SHARDS, BOUND_SHARDS], ids=["parked", "released"])
def test_a_job_of_shards_may_change(filter_: Filter, record: dict[str, Any]) -> None:
    out = filter_.modify(record, req_nodes="n2")
    assert (out.rc, out.log) == (SUCCESS, [])
    request = changed(out)
    assert (request.tres_per_node, request.req_nodes, request.left) == ("gres/shard:2", "n2", None)
    assert "gpuaware:2" in out.job["licenses"]


@pytest.mark.parametrize("text", ["gres/shard:3", "gres/gpu:1", "gres/gpu:2"])
@pytest.mark.parametrize("record", [SHARDS, BOUND_SHARDS], ids=["parked", "released"])
def test_the_number_of_shards_may_change(
    filter_: Filter, record: dict[str, Any], text: str
) -> None:
    out = filter_.modify(record, tres_per_node=text)
    assert (out.rc, out.log) == (SUCCESS, [])
    assert (changed(out).tres_per_node, changed(out).left) == (text, None)


@pytest.mark.parametrize("record", [SHARDS, BOUND_SHARDS], ids=["parked", "released"])
def test_a_job_of_shards_that_becomes_another_one_is_left_to_slurm(
    filter_: Filter, record: dict[str, Any]
) -> None:
    assert filter_.modify(record, tres_per_node="gres/shard:g1:2").rc == ERROR
    out = filter_.modify(record, min_nodes=2, max_nodes=2)
    assert (out.rc, out.log) == (SUCCESS, [])
    assert "not of one GPU" in (changed(out).left or "")


def test_a_requeued_job_of_shards_is_not_changed_before_its_record_is_back(
    filter_: Filter,
) -> None:
    record = BOUND_SHARDS | {"admin_comment": "", "restart_cnt": 1}
    out = filter_.modify(record, req_nodes="n2")
    assert out.rc == ERROR
    assert "on its way back" in out.messages[0]


@pytest.mark.parametrize("record", [PARKED, PLACED], ids=["parked", "released"])
def test_whole_gpus_may_become_shards(filter_: Filter, record: dict[str, Any]) -> None:
    out = filter_.modify(record, tres_per_node="gres/shard:2")
    assert (out.rc, out.log) == (SUCCESS, [])
    assert (changed(out).tres_per_node, changed(out).left) == ("gres/shard:2", None)


ELSEWHERE = {"partition": "cpu", "tres_per_node": "gres/gpu:1"}
WITHOUT_US = {"tres_per_node": "gres/gpu:2"}


@pytest.mark.parametrize(
    ("record", "update", "refused"),
    [
        ({}, {"tres_per_node": "gres/gpu:1"}, True),
        ({}, {"tres_per_job": "gres/gpu:1"}, True),
        ({}, {"tres_per_node": "gres/shard:1"}, True),
        ({}, {"tres_per_node": "gres/tmp:1"}, False),
        ({}, {"time_limit": 5}, False),
        (ELSEWHERE, {"partition": "gpu"}, True),
        (ELSEWHERE, {"partition": "cpu2"}, False),
        (ELSEWHERE, {"tres_per_node": "gres/gpu:2"}, False),
        (ELSEWHERE, {"tres_per_node": "gres/gpu:0"}, True),
        (ELSEWHERE, {"tres_per_node": "", "partition": "gpu"}, True),
        (WITHOUT_US, {"partition": "gpu"}, False),
        (WITHOUT_US, {"partition": "gpu", "time_limit": 5}, False),
        (WITHOUT_US, {"partition": "gpu", "tres_per_node": "gres/gpu:1"}, True),
        (WITHOUT_US, {"partition": "gpu2"}, True),
        (WITHOUT_US, {"partition": ""}, True),
        (WITHOUT_US, {"partition": "cpu,gpu"}, True),
        (WITHOUT_US, {"partition": "cpu"}, False),
        (WITHOUT_US, {"partition": "cpu", "tres_per_node": "gres/gpu:1"}, False),
        (WITHOUT_US, {"partition": "cpu", "tres_per_node": "gres/gpu:0"}, True),
        ({"partition": "cpu"}, {"partition": "gpu"}, False),
        ({"job_state": 1}, {"tres_per_node": "gres/gpu:1"}, False),
    ],
)
def test_no_change_brings_a_gpu_job_past_the_gate(
    make_filter: MakeFilter, record: dict[str, Any], update: dict[str, Any], refused: bool
) -> None:
    """A job that does not wait at the gate becomes no GPU job of a managed partition."""
    filter_ = make_filter(more='partitions = {"gpu", "gpu2"}')
    known = {"job_state": 0, "partition": "gpu", "admin_comment": "", **record}
    out = filter_.modify(known, uid=ALICE, **update)
    assert (out.rc == ERROR) is refused
    if refused:
        assert "submit it again" in out.messages[0]


TURN = f"gpuaware/1;mc=1;ex=1;lf={quote(WHOLE_NODES)}"
WHOLE = {"licenses": "gpuaware:1", "admin_comment": TURN, "partition": "gpu"}


def test_a_waiting_job_of_whole_nodes_may_be_changed(make_filter: MakeFilter) -> None:
    filter_ = make_filter()
    for change in ({"min_nodes": 2}, {"time_limit": 9}, {"partition": "cpu"}):
        outcome = filter_.modify(WHOLE, **change)
        assert (outcome.rc, outcome.messages) == (SUCCESS, [])
        record = parse(noted_record(outcome.job["extra"]))
        assert record is not None
        assert (record.left, record.exclusive) == (WHOLE_NODES, True)
        assert outcome.job["licenses"] == "gpuaware:2"
    outcome = filter_.modify(WHOLE, comment="class=nosuch")  # it is about GPUs
    assert (outcome.rc, outcome.written) == (SUCCESS, [])


@pytest.mark.parametrize("partition", ["mixed", "gpu,mixed"])
def test_a_waiting_job_of_whole_nodes_stays_at_the_gate(
    make_filter: MakeFilter, partition: str
) -> None:
    out = make_filter(more=MIXED).modify(WHOLE, partition=partition)
    assert (out.rc, out.job["licenses"]) == (SUCCESS, "gpuaware:2")


def test_no_waiting_job_moves_to_a_partition_of_whole_nodes(make_filter: MakeFilter) -> None:
    filter_, waiting = make_filter(), {"partition": "cpu"}
    assert filter_.modify(waiting, partition="gpu").rc == SUCCESS
    outcome = filter_.modify(waiting, partition="gpu", exclusive={"gpu"})
    assert outcome.rc == ERROR
    assert "cannot move to partition" in outcome.messages[0]
    assert filter_.modify(waiting, partition="cpu", exclusive={"gpu"}).rc == SUCCESS
    inside = {"partition": "gpu"}
    assert filter_.modify(inside, min_nodes=2, exclusive={"gpu"}).rc == ERROR
    assert filter_.modify(inside, time_limit=9, exclusive={"gpu"}).rc == SUCCESS
