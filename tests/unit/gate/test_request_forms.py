"""Request forms, markers, GRES names, feature expressions, back-off."""

from dataclasses import replace
from typing import Any

import pytest
from make import asked
from memory_slurm import job_record

from slurm_gpu_aware.gate.admin_comment import (
    MARKED,
    OriginalRequest,
    extra_with_clock,
    marked,
    marker_of,
    parse,
    unmarked,
)
from slurm_gpu_aware.gate.request_forms import (
    Binding,
    differences,
    form_of,
    is_bound,
    kept_tasks,
    placed_fields,
    restored_fields,
)
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.gres import gpu_slots, placed_slots, same_tres, typed_gres
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.slurm.words import matches, understood

ONE = Binding(("n1",), (1, 3))
TWO = Binding(("n1", "n2"), (0, 2))
DIRECT = replace(ONE, direct=True)
DIRECT_TWO = replace(TWO, direct=True)


def pending(**fields: object) -> SlurmJob:
    """A pending job as Slurm shows it; without memory, unlike a parked one."""
    found = job_of(job_record(pn_min_memory=1 - (1 << 63)))
    return replace(found, **fields)  # type: ignore[arg-type]


def total(gpus: int, **fields: Any) -> OriginalRequest:
    """--gpus"""
    return OriginalRequest(tres_per_job=f"gres/gpu:{gpus}", **fields)


def by_task(text: str = "gres/gpu=1", **fields: Any) -> OriginalRequest:
    """--tres-per-task"""
    return OriginalRequest(tres_per_task=text, **fields)


def by_socket(**fields: Any) -> OriginalRequest:
    """--gpus-per-socket"""
    return OriginalRequest(tres_per_socket="gres/gpu:1", **fields)


TYPED = "gres/gpu:g1:1,gres/gpu:g3:1"
STEP = {"interactive": True}
TABLE = [
    (asked("gpu:2"), ONE, {"TresPerNode": TYPED, "NumNodes": "1-1"}),
    (total(2), ONE, {"TresPerJob": ""}),
    (
        asked("gpu:2,gres/nic:1", **STEP),
        DIRECT,
        {"TresPerNode": "gres/nic:1", "TresPerJob": TYPED},
    ),
    (
        asked("gpu:2", nodes=(2, 2), **STEP),
        DIRECT_TWO,
        {"TresPerNode": "", "TresPerJob": "gres/gpu:g0:2,gres/gpu:g2:2"},
    ),
    (
        total(4, **STEP),
        DIRECT_TWO,
        {"TresPerJob": "gres/gpu:g0:2,gres/gpu:g2:2", "NumNodes": "2-2"},
    ),
    (
        by_task(num_tasks=2, **STEP),
        DIRECT,
        {"TresPerTask": "", "TresPerJob": TYPED},
    ),
    (
        by_socket(sockets_per_node=2),
        TWO,
        {"TresPerSocket": "", "TresPerNode": "gres/gpu:g0:1,gres/gpu:g2:1"},
    ),
    (
        total(4, ntasks_per_tres=2, cpus_per_task=3),
        TWO,
        {"TresPerJob": "", "TasksPerNode": "4", "NumTasks": "8", "MinCPUsNode": "12"},
    ),
    (
        asked("gpu:2", ntasks_per_tres=2, cpus_per_tres="gres/gpu:4"),
        ONE,
        {"CpusPerTres": "", "TasksPerNode": "4", "NumTasks": "4"}
        | {"CPUsPerTask": "2", "MinCPUsNode": "8"},
    ),
    (total(4, num_tasks=4, cpus_per_task=2), TWO, {"TresPerJob": "", "MinCPUsNode": "4"}),
    (total(4, cpus_per_tres="gres/gpu:3"), TWO, {"NumCPUs": "12", "MinCPUsNode": "6"}),
    (by_task(num_tasks=2), ONE, {"TresPerTask": ""}),
    (
        by_task("cpu=3,gres/gpu=1", num_tasks=4, cpus_per_task=3),
        TWO,
        {"TresPerTask": "cpu=3", "MinCPUsNode": "6"},
    ),
    (total(2, cpus_per_tres="gres/gpu:3"), ONE, {"CpusPerTres": "", "NumCPUs": "6"}),
    (
        asked("gpu:2", cpus_per_tres="gres/gpu:4", ntasks_per_node=2),
        TWO,
        {"CpusPerTres": "", "CPUsPerTask": "4", "MinCPUsNode": "8"},
    ),
    (asked("shard:2"), Binding(("n1",), (3,)), {"TresPerNode": "gres/shard:g3:2"}),
    (asked("gpu:2,gres/nic:1"), ONE, {"TresPerNode": f"{TYPED},gres/nic:1"}),
    (
        asked("gpu:4", exclusive=True),
        Binding(("n1",), None),
        {"ReqNodeList": "n1", "NumNodes": "1-1"},
    ),
]


@pytest.mark.parametrize(("original", "binding", "expected"), TABLE)
def test_rows_of_the_table(
    original: OriginalRequest, binding: Binding, expected: dict[str, str]
) -> None:
    fields = dict(placed_fields(original, binding))
    assert {key: fields[key] for key in expected} == expected
    assert fields["ReqNodeList"] == ",".join(binding.nodes)
    assert ("TresPerJob" if binding.direct else "TresPerNode") in fields or not binding.slots
    JobUpdate("7", tuple(fields.items()))


@pytest.mark.parametrize(
    "original",
    [by_socket(), asked("gpu:1", tres_per_job="gres/gpu:2"), asked("gpu:0"), OriginalRequest()],
)
def test_what_is_not_in_the_table(original: OriginalRequest) -> None:
    assert form_of(original) is None
    with pytest.raises(ValueError, match="unsupported"):
        placed_fields(original, ONE)


def test_a_name_that_is_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="not a node name"):
        placed_fields(asked("gpu:1"), Binding(("n1;rm",), (0,)))


@pytest.mark.parametrize("value", ["", "a b", 'a"b', "a'b", "a\nb", "a\\b", "é"])
def test_any_text_may_be_a_value(value: str) -> None:
    assert JobUpdate("7", (("Extra", value),)).fields == (("Extra", value),)


@pytest.mark.parametrize("value", ["\0", "a\0b", "x" * 65537], ids=["NUL", "NUL inside", "long"])
def test_what_slurm_would_cut_is_no_value(value: str) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        JobUpdate("7", (("Extra", value),))


def test_an_update_names_known_fields_of_a_job() -> None:
    with pytest.raises(ValueError, match="may not be changed"):
        JobUpdate("7", (("UserId", "0"),))
    for number in ("7 8", "all", "0", "7_", "7_[1-2]"):
        with pytest.raises(ValueError, match="not a job id"):
            JobUpdate(number, ())


def test_restoring_names_only_what_differs() -> None:
    original = total(2, nodes=(1, 2), min_cpus=1)
    untouched = pending(tres_per_job="gres/gpu:2")
    assert not is_bound(untouched, original)
    assert restored_fields(untouched, original, marked=False) == ()
    placed = pending(tres_per_node=TYPED, req_nodes=("n1",), tres_freq="gpu:900", cpus=2)
    assert is_bound(placed, original)
    assert dict(restored_fields(placed, original, marked=False)) == {
        "ReqNodeList": "",
        "NumNodes": "1-2",
        "TresPerNode": "",
        "TresPerJob": "gres/gpu:2",
        "NumCPUs": "1",
        "TresFreq": "",
    }


def test_least_cpus_of_a_node_stay_what_the_user_asked() -> None:
    own = total(4, num_tasks=4, nodes=(2, 2), min_cpus_node=6)
    assert dict(placed_fields(own, TWO))["MinCPUsNode"] == "6"
    placed = pending(req_nodes=("n1",), tres_per_node="gres/gpu:g1:1", min_cpus_node=6)
    original = asked("gpu:1", min_cpus_node=6)
    assert "MinCPUsNode" not in dict(restored_fields(placed, original, marked=False))
    placed = replace(placed, min_cpus_node=8)
    assert dict(restored_fields(placed, original, marked=False))["MinCPUsNode"] == "6"


def test_the_default_of_a_partition_is_not_taken_for_the_users() -> None:
    """Slurm writes DefCpuPerGPU into CpusPerTres each time that it tries to start the job."""
    parked = pending(tres_per_node="gres/gpu:2", cpus_per_tres="gres/gpu:4")
    assert restored_fields(parked, asked("gpu:2"), marked=False) == ()
    placed = placed_fields(asked("gpu:2"), ONE)
    assert not {"CpusPerTres", "NumCPUs", "CPUsPerTask"} & set(dict(placed))


@pytest.mark.parametrize(
    ("original", "binding", "per_gpu", "cpus"),
    [
        (asked("gpu:2"), ONE, 3, ("6", "6")),
        (asked("gpu:2", nodes=(2, 2)), TWO, 3, ("6", "12")),
        (asked("gpu:2", num_tasks=3), ONE, 3, ("2", "6")),
        (asked("gpu:2", cpus_per_tres="gres/gpu:2"), ONE, 2, ("4", "4")),
        (asked("gpu:1"), Binding(("n1",), (2,)), 3, (None, None)),
    ],
)
def test_the_default_of_a_partition_is_told_as_cpus_per_task(
    original: OriginalRequest, binding: Binding, per_gpu: int, cpus: tuple[str | None, ...]
) -> None:
    """Applied to several types by Slurm itself, it keeps the job from starting."""
    fields = dict(placed_fields(original, replace(binding, cpus_per_gpu=per_gpu)))
    assert (fields.get("CPUsPerTask"), fields.get("NumCPUs")) == cpus
    assert fields.get("CpusPerTres") == ("" if original.cpus_per_tres else None)


def test_a_default_that_tasks_do_not_share_evenly_is_not_placed() -> None:
    with pytest.raises(ValueError, match="DefCpuPerGPU"):
        placed_fields(asked("gpu:2", num_tasks=4), replace(ONE, cpus_per_gpu=3))


def test_cpus_per_task_that_we_told_are_taken_back() -> None:
    original = asked("gpu:2", min_cpus=1)
    placed = pending(req_nodes=("n1",), tres_per_node=TYPED, cpus_per_task=6, cpus=6)
    fields = dict(restored_fields(placed, original, marked=False))
    assert (fields["CPUsPerTask"], fields["NumCPUs"]) == ("1", "1")
    own = replace(original, cpus_per_task=6)
    assert "CPUsPerTask" not in dict(restored_fields(placed, own, marked=False))


def test_reading_back() -> None:
    fields = placed_fields(asked("gpu:2"), ONE)
    good = pending(req_nodes=("n1",), tres_per_node="gres:gpu:g3:1,gres/gpu:g1")
    assert differences(good, fields) == []
    assert differences(replace(good, req_nodes=("n2",)), fields)
    assert differences(replace(good, tres_per_node="gres/gpu:2"), fields)


@pytest.mark.parametrize("phase", MARKED)
def test_markers_come_and_go(phase: JobPhase) -> None:
    plain = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1"
    text = marked(plain, phase, 2, 1790000000.5)
    marker = marker_of(text)
    assert marker is not None
    assert (marker.phase, marker.restarts, marker.at) == (phase, 2, 1790000000)
    assert unmarked(text) == plain
    assert parse(text) == parse(plain)
    assert unmarked(marked(text, JobPhase.LEFT, 0, 1)) == plain
    assert marker_of(plain) is None
    long = "gpuaware/1;" + "x" * 1010
    assert marked(long, phase, 0, 1) == long


def test_gres_names() -> None:
    assert typed_gres((3, 1)) == "gres/gpu:g1:1,gres/gpu:g3:1"
    assert placed_slots("gres/gpu:g1:1,gres/gpu:g3:1,gres/nic:1") == (1, 3)
    assert placed_slots("gres/gpu:2") is None
    assert same_tres("gres/gpu", "gres/gpu:1")
    assert same_tres(None, "")
    assert not same_tres("gres/gpu:2", "gres/gpu:1")

    def node(*gpus: tuple[str | None, int]) -> SlurmNode:
        return SlurmNode("n1", frozenset({"IDLE"}), frozenset(), gpus, frozenset())

    assert gpu_slots(node(("g0", 1), ("g2", 1))) == ((0, 2), True)
    assert gpu_slots(node(("a100", 4))) == ((0, 1, 2, 3), False)
    assert gpu_slots(node((None, 2))) == ((0, 1), False)
    assert gpu_slots(node(("g0", 2))) == ((0, 1), False)


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        (None, True),
        ("a", True),
        ("a&b", True),
        ("a,c", False),
        ("c|b", True),
        ("(c|a)&b", True),
        ("a&(c|d)", False),
    ],
)
def test_constraints(expression: str | None, allowed: bool) -> None:
    assert matches(expression, {"a", "b"}) is allowed


@pytest.mark.parametrize("expression", ["a*2", "[a|b]", "!a", "a&", "(a", "a)"])
def test_constraints_left_to_slurm(expression: str) -> None:
    assert not understood(expression)


def test_extra_keeps_what_the_user_put_there() -> None:
    assert extra_with_clock(None, 900) == "freq=900"
    assert extra_with_clock("mine,freq=100@2", 900, (0, 3)) == "mine,freq=900@0+3"
    assert extra_with_clock("mine,freq=100", None) == "mine"
    assert extra_with_clock("mine", None, (0, 3)) == "mine,freq=0@0+3"
    assert extra_with_clock("two words", 900) == "two words,freq=900"
    assert extra_with_clock("mine", 900, (0, 3), 250) == "mine,freq=900:250@0+3"
    assert extra_with_clock("mine,freq=900:250@0+3", None, limit_w=300) == "mine,freq=0:300"
    assert extra_with_clock("x" * 65530, 900) is None


def test_a_node_count_that_is_asked_is_not_sent() -> None:
    """Slurm counts the tasks anew from ``--ntasks-per-node`` with each NumNodes."""
    pinned = pending(tres_per_node="gres/gpu:g0:1,gres/gpu:g2:1", req_nodes=("n1", "n2"))
    for nodes, placed, restored in (((2, 2), None, None), ((2, 4), "2-2", "2-4")):
        original = asked("gpu:2", nodes=nodes)
        assert dict(placed_fields(original, TWO)).get("NumNodes") == placed
        assert dict(restored_fields(pinned, original, marked=False)).get("NumNodes") == restored


def test_uneven_tasks_bring_no_least_cpus() -> None:
    """Three tasks on two nodes of two GPUs: with MinCPUsNode the job never starts."""
    assert "MinCPUsNode" not in dict(placed_fields(total(4, num_tasks=3, nodes=(2, 2)), TWO))


def test_tasks_per_gpu_are_restored() -> None:
    original = total(4, ntasks_per_tres=2, nodes=(2, 2))
    fields = {"req_nodes": ("n1", "n2"), "ntasks_per_node": 4, "min_cpus_node": 4}
    typed = pending(tres_per_node="gres/gpu:g0:1,gres/gpu:g2:1", tasks=8, **fields)
    restored = dict(restored_fields(typed, original, marked=True))
    expected = {"TasksPerNode": "0", "NumTasks": "8", "MinCPUsNode": "1"}
    assert {key: restored[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("original", "tasks"),
    [
        (total(4, ntasks_per_tres=2, nodes=(2, 2)), "8"),
        (asked("gpu:1"), None),
        # From the tasks Slurm counts the GPUs: without a number of tasks none is repeated.
        (OriginalRequest(num_tasks=4, ntasks_per_tres=2), "4"),
        (OriginalRequest(ntasks_per_tres=2), None),
        (by_task("gres/gpu:1", num_tasks=4, ntasks_per_tres=2), "4"),
    ],
)
def test_each_update_of_an_unbound_job_names_its_tasks(original, tasks: str | None) -> None:
    """24.11 counts the tasks anew at an update."""
    assert kept_tasks(original) == ((("NumTasks", tasks),) if tasks else ())


def test_gpus_per_socket_are_restored() -> None:
    original = by_socket(sockets_per_node=2)
    typed = pending(tres_per_node=TYPED, req_nodes=("n1",))
    fields = dict(restored_fields(typed, original, marked=False))
    assert (fields["TresPerSocket"], fields["TresPerNode"]) == ("gres/gpu:1", "")
    assert not is_bound(pending(tres_per_socket="gres/gpu:1"), original)


def test_a_direct_srun_on_its_own_node_is_bound_by_its_types() -> None:
    original = total(2, req_nodes="n1", **STEP)
    plain = pending(tres_per_job="gres/gpu:2", req_nodes=("n1",))
    assert is_bound(replace(plain, tres_per_job="gres/gpu:g0:1,gres/gpu:g1:1"), original)
    assert not is_bound(plain, original)


def test_an_interactive_job_is_restored() -> None:
    original = asked("gpu:2", **STEP)
    typed = pending(tres_per_node=None, tres_per_job=TYPED, req_nodes=("n1",))
    assert placed_slots(typed.tres_per_job) == (1, 3)
    assert is_bound(typed, original)
    fields = dict(restored_fields(typed, original, marked=False))
    assert (fields["TresPerNode"], fields["TresPerJob"]) == ("gres/gpu:2", "")
