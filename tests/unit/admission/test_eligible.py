"""Nodes that a job may use: reservations inside one another, shared GPUs, maintenance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import (
    NOW,
    asked,
    context_of,
    eligible,
    nodes_for,
    request_of,
    slurm_job,
    slurm_node,
    why_left,
)
from memory_slurm import node_record

from slurm_gpu_aware.admission.context import AdmissionContext, QueueEntry
from slurm_gpu_aware.admission.fitting import allowed_nodes
from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster, is_usable
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.gate.request_forms import form_of
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.model.request import Sharing
from slurm_gpu_aware.slurm.read_cluster import MigNodes, node_of
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob, SlurmReservation

NODES = [slurm_node(f"n{i}") for i in range(1, 4)]


def kept(name: str, *nodes: str, flags: str = "", start_s: float = NOW, cpus: int = 16):
    kinds = frozenset(filter(None, flags.split(",")))
    end_s = start_s + 86400.0
    return SlurmReservation(name, start_s, end_s, frozenset(nodes), (), kinds, cpus * len(nodes))


def allowed(*reservations: SlurmReservation, name: str = "course", limit_s: float = 36000.0):
    where = context_of(NODES, None, reservations)
    return nodes_for(where, reservation=name, time_limit_s=limit_s)


@pytest.mark.parametrize(
    ("own", "other", "left"),
    [
        ("", "", {"n2"}),
        ("", "MAINT", {"n2"}),
        ("OVERLAP", "", {"n1", "n2"}),
        ("OVERLAP", "MAINT", {"n2"}),
        ("MAINT", "", {"n1", "n2"}),
        ("MAINT", "MAINT", {"n1", "n2"}),
    ],
)
def test_another_reservation_of_nodes_of_the_jobs_own(own: str, other: str, left: set[str]) -> None:
    """A maintenance in a minute keeps out a job of ten hours, in whatever reservation it is."""
    course = kept("course", "n1", "n2", flags=own)
    assert allowed(course, kept("soon", "n1", "n3", flags=other, start_s=NOW + 60)) == left


@pytest.mark.parametrize("start_s", [NOW, NOW + 7200])
def test_a_flexible_reservation_binds_its_jobs_to_no_node(start_s: float) -> None:
    flexible = kept("course", "n1", flags="FLEX", start_s=start_s)
    assert allowed(flexible) == {"n1", "n2", "n3"}
    assert allowed(flexible, kept("other", "n2")) == {"n1", "n3"}


def test_what_begins_after_the_job_does_not_matter() -> None:
    later = kept("later", "n1", flags="MAINT", start_s=NOW + 7200)
    assert allowed(kept("course", "n1", "n2"), later, limit_s=3600.0) == {"n1", "n2"}


def test_a_reservation_of_a_part_of_a_node_leaves_the_node_to_another_one() -> None:
    part = kept("part", "n1", start_s=NOW + 60, cpus=4)
    assert allowed(kept("course", "n1", "n2"), part) == {"n1", "n2"}


def test_nodes_of_several_reservations() -> None:
    both = [kept("a", "n1", "n2", flags="MAINT"), kept("b", "n3")]
    assert allowed(*both, kept("soon", "n1", "n3", start_s=NOW + 60), name="a,b") == {"n1", "n2"}


def test_in_a_maintenance_its_own_jobs_run() -> None:
    """Slurm shows IDLE+MAINTENANCE+RESERVED; the reservation says which jobs it lets in."""
    states = frozenset({"IDLE", "MAINTENANCE", "RESERVED"})
    nodes = [slurm_node("n1", states=states), slurm_node("n2")]
    assert is_usable(nodes[0])
    where = context_of(nodes, None, [kept("maintenance", "n1", flags="MAINT")])
    assert nodes_for(where, reservation="maintenance") == {"n1"}
    assert nodes_for(where) == {"n2"}


# Jobs that share no node with other users ---------------------------------------------------------


def on_node(number: int, node: str, user: str, **fields: Any) -> SlurmJob:
    """A running job of a CPU."""
    share = NodeShare(node, 1, 500, ())
    return slurm_job(number, user=user, state="RUNNING", nodes=(node,), shares=(share,), **fields)


def is_open(context: AdmissionContext, user: str, partition: str = "gpu") -> set[str]:
    """Nodes that jobs of other users leave to a job."""
    request = request_of(slurm_job(user=user, partitions=(partition,)), asked(), context)
    assert eligible(request, context) == set(context.cluster.nodes)  # they end
    assert not request.nodes.whole
    open_to = context.cluster.users.open_to(request)
    return {context.cluster.nodes[i] for i in np.flatnonzero(open_to)}


@pytest.mark.parametrize("by", ["job", "partition", "hold"])
def test_a_node_with_a_job_that_shares_none_is_open_to_its_user_only(by: str) -> None:
    """Also before that job has started."""
    parts = {"gpu": ("n1", "n2", "n3"), "own": ("n1", "n2", "n3")}
    alone = on_node(1, "n1", "bob", partitions=("own",))
    if by == "job":
        alone = on_node(1, "n1", "bob", exclusive_user=True)
    hold = Hold("1", ("n1",), (0,), 1, 1, 500, NOW + 60, user="bob", alone=True)
    jobs = [alone, on_node(2, "n2", "bob"), on_node(3, "n3", "carol")]
    given: dict[str, Any] = {"jobs": jobs}
    if by == "hold":
        waits = slurm_job(1, user="bob", partitions=("own",))
        given = {"jobs": [waits, *jobs[1:]], "holds": [hold]}
    where = context_of(NODES, parts, told={"own": {"exclusive_user": True}}, **given)
    assert is_open(where, "alice") == {"n2", "n3"}
    assert is_open(where, "bob") == {"n1", "n2", "n3"}
    assert is_open(where, "bob", "own") == {"n1", "n2"}
    assert is_open(where, "dave", "own") == set()
    assert context_of(NODES, parts, jobs=jobs[1:]).cluster.users is None


@pytest.mark.parametrize("state", ["RUNNING", "placed"])
def test_a_node_with_a_job_that_shares_cpus_is_closed_to_those_of_other_partitions(
    state: str,
) -> None:
    """One that shares none closes its own to all that do."""
    parts = dict.fromkeys(("gpu", "force", "yes", "single"), ("n1", "n2", "n3"))
    told: dict[str, dict[str, Any]] = {"force": {"jobs_on_cpu": 4, "oversubscribes": True}}
    told |= {"yes": {"jobs_on_cpu": 4}, "single": {"oversubscribes": True}}
    asks = on_node(1, "n1", "bob", partitions=("yes",), oversubscribe=True)
    jobs = [asks, on_node(2, "n2", "bob"), on_node(3, "n3", "bob", partitions=("single",))]
    given: dict[str, Any] = {"jobs": jobs}
    if state == "placed":
        hold = Hold("1", ("n1",), (0,), 1, 1, 500, NOW + 60, sharing=Sharing("yes", shares=True))
        given = {"jobs": jobs[1:], "holds": [hold]}
    where = context_of(NODES, parts, told=told, **given)
    assert is_open(where, "bob") == {"n2", "n3"}
    yes = {"n1", "n2", "n3"} if state == "RUNNING" else {"n2", "n3"}
    assert is_open(where, "bob", "yes") == yes
    assert is_open(where, "bob", "force") == is_open(where, "bob", "single") == {"n1", "n3"}
    assert context_of(NODES, parts, jobs=jobs[1:2], told=told).cluster.users is None


@pytest.mark.parametrize(("user", "node"), [("alice", "n2"), ("bob", "n1")])
def test_of_several_partitions_it_gets_the_one_that_is_open_now(user: str, node: str) -> None:
    alone = on_node(1, "n1", "bob", partitions=("a",), exclusive_user=True)
    where = context_of(NODES, {"a": ("n1",), "b": ("n2",)}, jobs=[alone])
    assert nodes_for(where, user=user, partitions=("a", "b")) == {node}


def test_sleeping_nodes_are_known() -> None:
    """It does not answer, and can be used; one that wakes up needs no other to be woken."""
    cloud = ("CLOUD", "NOT_RESPONDING")
    asleep = slurm_node("n1", states=frozenset({"IDLE", "POWERED_DOWN", *cloud}))
    waking = slurm_node("n2", states=frozenset({"MIXED", "POWERING_UP", *cloud}))
    cluster = context_of([asleep, waking, slurm_node("n3")]).cluster
    assert cluster.nodes == ("n1", "n2", "n3")
    assert cluster.asleep.tolist() == [True, False, False]
    assert context_of([waking]).cluster.asleep is None


# Shards, MPS, MIG --------------------------------------------------------------------------------

SHARED = [
    "gpu:a100:4(S:0-1),shard:32",
    "gpu:a100:4(S:0-1),mps:400",
    "gpu:a100_3g.20gb:8(S:0-1)",
    "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)",
    "gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1),shard:32",
]


def mixed(gres: str, *plain: str) -> AdmissionContext:
    shared = node_of(node_record("s1", gres=gres))
    return context_of([shared, *(slurm_node(name) for name in plain)])


@pytest.mark.parametrize("gres", SHARED)
def test_shared_gpus_are_never_chosen(gres: str) -> None:
    where = mixed(gres, "n1")
    assert where.cluster.nodes == ("n1",)
    assert nodes_for(where) == {"n1"}


@pytest.mark.parametrize("gres", SHARED)
def test_a_job_that_can_only_go_there_is_left_to_slurm(gres: str) -> None:
    assert why_left(slurm_job(), asked(), mixed(gres))
    where = mixed(gres, "n1")
    elsewhere = asked(exc_nodes="n1"), asked(req_nodes="s1")
    for original in (*elsewhere, asked("gpu:8"), asked(nodes=(2, 2))):
        assert why_left(slurm_job(), original, where)


def test_slices_that_only_gres_conf_tells_of(tmp_path: Path, caplog: Any) -> None:
    gres_conf = tmp_path / "gres.conf"
    sliced = MigNodes()
    sliced.gres_conf = gres_conf
    small = tuple(slurm_node(f"n{i}", gpus=(("small", 7),)) for i in (1, 2, 3))
    nodes = [*small, slurm_node("n4"), slurm_node("login", gpus=())]

    def shared() -> list[str]:
        return [n.name for n in sliced.mark(nodes) if n.shared_gres]

    assert shared() == []
    files = "MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]"
    gres_conf.write_text(f"Include mig.conf\nName=gpu Type=small {files}  # 1g\n")
    (tmp_path / "mig.conf").write_text("Name=gpu Type=g0 File=/dev/nvidia0\n")
    assert shared() == ["n1", "n2", "n3"]
    gres_conf.write_text("Include mig.conf\n")
    (tmp_path / "mig.conf").write_text(f"NodeName=n[2,4-9] Name=gpu {files}\n")
    assert shared() == ["n2", "n4"]
    (tmp_path / "mig.conf").unlink()
    assert shared() == shared() == []
    assert len(caplog.records) == 1


def test_a_job_of_a_partition_without_gpus_waits_as_before() -> None:
    where = context_of([slurm_node("n1")], {"cpu": [], "gpu": ["n1"]})
    gated = GatedJob(slurm_job(partitions=("cpu",)), asked(), None, JobPhase.WAITING)
    entry = QueueEntry(gated, form_of(asked()), where.partitions["cpu"], where)
    assert not allowed_nodes(entry).any()
    assert build_cluster([], [], where.slurm, SiteProfile(Config(), {})).nodes == ()
