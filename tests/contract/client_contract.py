"""What `SlurmClient` promises, as plain functions: the same for every client.

Each of `CHECKS` takes `Hands`, by which it makes jobs, and fails with AssertionError. They need
nothing but the package and the standard library, so that they also run where Slurm's library is.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmReservation
from slurm_gpu_aware.slurm.updates import JobUpdate, NewReservation

__all__ = ["CHECKS", "Hands"]

LICENCE = "gpuaware"
OTHER = "gpuaware_pool"
"""One that no reservation holds all of."""
RESERVATION = "contract"
HOUR_S = 3600.0
NO_JOB = "99999999"


class Hands(Protocol):
    """What a check needs beside the client: jobs, and a cluster of at least two nodes."""

    client: SlurmClient
    node: str
    other_node: str
    user: str
    """User of the submitted jobs."""

    def park(self, *, tasks: int = 0, name: str = "parked", comment: str = "") -> str:
        """Submit a job of one GPU that does not start; its id. ``tasks``: an array of so many."""

    def run(self, job_id: str) -> None:
        """Let a parked job, or one task of a parked array, run; returns when it does."""

    def finish(self, job_id: str) -> None:
        """End a job; returns when it has ended."""


def job_of(hands: Hands, job_id: str) -> SlurmJob:
    """The job, as it is read now."""
    (found,) = hands.client.jobs_of([job_id])
    return found


def update(hands: Hands, job_id: str, **fields: str) -> dict[str, str]:
    """Complaints of one update."""
    return hands.client.update_jobs([JobUpdate(job_id, tuple(fields.items()))])


def reservation(hands: Hands) -> SlurmReservation | None:
    """Ours, if it is there."""
    return next((r for r in hands.client.reservations() if r.name == RESERVATION), None)


@contextlib.contextmanager
def reserved(hands: Hands, in_s: float | None = None, **more: Any) -> Iterator[float]:
    """A reservation of a licence for an hour, gone at the end; the start that was asked for."""
    start_s = None if in_s is None else float(int(time.time() + in_s))
    end_s = int(time.time()) + (in_s or 0) + HOUR_S
    wanted = {"licenses": f"{OTHER}:1", "users": hands.user, "flags": frozenset({"ANY_NODES"})}
    hands.client.create_reservation(
        NewReservation(RESERVATION, end_s, start_s, **{**wanted, **more})
    )
    try:
        yield start_s or time.time()
    finally:
        hands.client.delete_reservation(RESERVATION)


def refusal(act: Callable[[], object], error: type[Exception] = SourceError) -> str:
    """What is said when it is refused."""
    try:
        act()
    except error as exc:
        return str(exc)
    raise AssertionError("not refused")


# -- reading ---------------------------------------------------------------------------------------


def reads_all_kinds_of_records(hands: Hands) -> None:
    job_id = hands.park()
    client = hands.client
    listed = {job.id: job for job in client.jobs()}
    assert listed[job_id] == job_of(hands, job_id)
    assert (listed[job_id].user, listed[job_id].state) == (hands.user, "PENDING")
    assert client.unread == frozenset()
    nodes = {node.name: node for node in client.nodes()}
    assert {hands.node, hands.other_node} <= set(nodes)
    assert len(nodes[hands.node].gpus) == 4
    assert any(hands.node in partition.nodes for partition in client.partitions())
    assert client.config().version >= (24, 11)
    assert client.settings()["SLURM_VERSION"]
    assert client.topology() == []
    assert client.free_licenses()[LICENCE, frozenset()] >= 0
    assert isinstance(client.qos(), list)
    assert isinstance(client.reservations(), list)


def reads_few_jobs_by_id(hands: Hands) -> None:
    one, array = hands.park(), hands.park(tasks=3)
    hands.run(f"{array}_1")
    found = [job.id for job in hands.client.jobs_of([NO_JOB, f"{array}_1", one, f"{array}_7"])]
    assert found == [f"{array}_1", one]
    assert job_of(hands, array).array_tasks in ("0,2", "0-2:2")
    for text in ("", "x", f"{one} ", "0", f"{one},{one}", "+1"):
        refusal(lambda text=text: hands.client.jobs_of([text]), ValueError)


def reads_what_a_running_job_holds(hands: Hands) -> None:
    job_id = hands.park()
    hands.run(job_id)
    job = job_of(hands, job_id)
    (share,) = job.shares
    assert job.state == "RUNNING"
    assert job.nodes == (share.node,)
    assert share.cpus >= 1
    assert share.gpus
    assert set(share.types.values()) == {f"g{slot}" for slot in share.gpus} == set(job.gpu_types)
    used = {node.name: node.gpus_used for node in hands.client.nodes()}
    assert set(share.gpus) <= used[share.node]


def reads_texts_as_they_are(hands: Hands) -> None:
    name = "x JobState=RUNNING"
    comment = "a\nJobId=1 JobName=y UserId=root(0)\t'\"\\ größe 猫"
    job_id = hands.park(name=name, comment=comment)
    for text in (f"{comment}\n", "e=1;f=2, g", "'\"$(id)`id`\\", "bad \udcff utf-8", "  "):
        assert update(hands, job_id, AdminComment=text, Extra=text) == {}
        job = job_of(hands, job_id)
        assert (job.admin_comment, job.extra) == (text, text)
    assert (job.name, job.comment, job.state, job.user) == (name, comment, "PENDING", hands.user)


# -- updates ---------------------------------------------------------------------------------------

FIELDS: dict[str, tuple[str, str, object, dict[str, str]]] = {
    "AdminComment": ("gpuaware/1;nn=1", "admin_comment", "gpuaware/1;nn=1", {}),
    "Extra": ("freq=900", "extra", "freq=900", {}),
    "Features": ("gpu_v100", "features", "gpu_v100", {}),
    "Licenses": (f"{LICENCE}:2", "licenses", ((LICENCE, 2),), {}),
    "TresFreq": ("gpu:900", "tres_freq", "gpu:900", {}),
    "TresPerJob": ("gres/gpu:2", "tres_per_job", "gres/gpu:2", {"TresPerNode": ""}),
    "TresPerNode": ("gres/gpu:g1:1,gres/gpu:g3:1", "tres_per_node", None, {}),
    "TresPerTask": (
        "gres/gpu=1",
        "tres_per_task",
        "gres/gpu=1",
        {"TresPerNode": "", "NumTasks": "2"},
    ),
    "CpusPerTres": ("gres/gpu:2", "cpus_per_tres", "gres/gpu:2", {}),
}
"""Field -> (value, attribute, what is read then (None: the value), what has to change with it)."""


def sets_and_clears_texts(hands: Hands) -> None:
    for field, (value, attribute, read, more) in FIELDS.items():
        job_id = hands.park(comment="stays")
        assert update(hands, job_id, **more, **{field: value}) == {}, field
        assert getattr(job_of(hands, job_id), attribute) == (read or value), field
        assert update(hands, job_id, **{field: ""}) == {}, field
        job = job_of(hands, job_id)
        assert not getattr(job, attribute), field
        assert job.comment == "stays", field
    job_id = hands.park()
    assert update(hands, job_id, TresPerSocket="") == {}
    assert job_of(hands, job_id).tres_per_socket is None


def sets_and_clears_nodes(hands: Hands) -> None:
    job_id = hands.park()
    assert update(hands, job_id, ReqNodeList=hands.node, ExcNodeList=hands.other_node) == {}
    job = job_of(hands, job_id)
    assert (job.req_nodes, job.exc_nodes) == ((hands.node,), (hands.other_node,))
    assert update(hands, job_id, ReqNodeList="") == {}
    job = job_of(hands, job_id)
    assert (job.req_nodes, job.exc_nodes) == ((), (hands.other_node,))
    assert update(hands, job_id, ExcNodeList="") == {}
    assert job_of(hands, job_id).exc_nodes == ()


def sets_counts(hands: Hands) -> None:
    job_id = hands.park()
    assert update(hands, job_id, NumNodes="2", NumTasks="4", NumCPUs="4-8") == {}
    assert update(hands, job_id, CPUsPerTask="2", MinCPUsNode="2") == {}
    job = job_of(hands, job_id)
    assert (job.min_nodes, job.tasks, job.cpus_per_task) == (2, 4, 2)
    assert job.min_cpus_node >= 2
    assert update(hands, job_id, NumNodes="1-2") == {}
    job = job_of(hands, job_id)
    assert (job.min_nodes, job.max_nodes) == (1, 2)


def sets_and_clears_a_reservation(hands: Hands) -> None:
    job_id = hands.park()
    with reserved(hands):
        assert update(hands, job_id, ReservationName=RESERVATION) == {}
        assert job_of(hands, job_id).reservation == RESERVATION
        assert update(hands, job_id, ReservationName="") == {}
        assert job_of(hands, job_id).reservation is None
    assert set(update(hands, job_id, ReservationName="contract_gone")) == {job_id}


def updates_one_task_of_an_array(hands: Hands) -> None:
    array = hands.park(tasks=4)
    assert update(hands, f"{array}_2", AdminComment="two") == {}
    found = {job.id: job for job in hands.client.jobs() if job.array_id == int(array)}
    assert {job.admin_comment for job in found.values()} == {None, "two"}
    assert found[f"{array}_2"].admin_comment == "two"
    assert len(found) == 2


def updates_an_array_with_a_task_that_runs(hands: Hands) -> None:
    """The rest is changed, the task is not; the complaint goes by the id that was asked for."""
    array = hands.park(tasks=3)
    hands.run(f"{array}_0")
    assert set(update(hands, array, Features="gpu_v100")) == {array}
    found = [job for job in hands.client.jobs() if job.array_id == int(array)]
    assert {(job.state, job.features) for job in found} == {
        ("RUNNING", None),
        ("PENDING", "gpu_v100"),
    }
    assert set(update(hands, f"{array}_0", Features="gpu_v100")) == {f"{array}_0"}


def refuses_each_by_its_own_id(hands: Hands) -> None:
    """One that is refused keeps no other from being changed."""
    first, last, ended = hands.park(), hands.park(), hands.park()
    hands.run(ended)
    hands.finish(ended)
    sent = [
        JobUpdate(first, (("Extra", "1"),)),
        JobUpdate(NO_JOB, (("Extra", "1"),)),
        JobUpdate(f"{first}_3", (("Extra", "1"),)),
        JobUpdate(ended, (("ReqNodeList", hands.node), ("NumNodes", "1"))),
        JobUpdate(last, (("Extra", "1"),)),
    ]
    refused = hands.client.update_jobs(sent)
    assert set(refused) == {NO_JOB, f"{first}_3", ended}, refused
    assert all(refused.values())
    assert [job.extra for job in hands.client.jobs_of([first, last])] == ["1", "1"]
    assert hands.client.update_jobs([]) == {}


def refuses_unknown_nodes_and_licences(hands: Hands) -> None:
    job_id = hands.park()
    before = job_of(hands, job_id)
    assert set(update(hands, job_id, ReqNodeList="nosuchnode")) == {job_id}
    assert set(update(hands, job_id, Licenses="nosuchlicence:1")) == {job_id}
    after = job_of(hands, job_id)
    assert (after.req_nodes, after.licenses) == (before.req_nodes, before.licenses)


def lets_a_job_begin_now(hands: Hands) -> None:
    """``StartTime=now``; refused once it runs."""
    job_id = hands.park()
    assert update(hands, job_id, StartTime="now") == {}
    hands.run(job_id)
    assert set(update(hands, job_id, StartTime="now")) == {job_id}


def releases_what_slurm_holds(hands: Hands) -> None:
    job_id = hands.park()
    hands.client.release_jobs([job_id, NO_JOB])
    assert job_of(hands, job_id).priority > 0


def requeues_a_job_that_runs(hands: Hands) -> None:
    """No other: what has ended would run again."""
    job_id = hands.park()
    assert hands.client.requeue_job(job_id) is None
    assert (job_of(hands, job_id).state, job_of(hands, job_id).restarts) == ("PENDING", 0)
    hands.run(job_id)
    assert hands.client.requeue_job(job_id) is None
    assert job_of(hands, job_id).restarts == 1
    ended = hands.park()
    hands.run(ended)
    hands.finish(ended)
    assert hands.client.requeue_job(ended) is None
    assert job_of(hands, ended).restarts == 0
    assert "Invalid job id" in (hands.client.requeue_job(NO_JOB) or "")
    for wrong in ("7 8", "0", "7_[1-2]"):
        refusal(lambda one=wrong: hands.client.requeue_job(one), ValueError)


def refuses_what_is_no_value(_hands: Hands) -> None:
    """Before Slurm is asked: each is refused where it is made."""
    for job_id, fields in [
        ("7", [("Comment", "x")]),
        ("7", [("Extra", "a\0b")]),
        ("7", [("NumNodes", "")]),
        ("7", [("NumNodes", "1-")]),
        ("7", [("NumTasks", "-1")]),
        ("7", [("NumCPUs", "two")]),
        ("7", [("StartTime", "tomorrow")]),
        ("7", [("Extra", "x" * 65537)]),
        ("7 8", [("Extra", "")]),
        ("0", [("Extra", "")]),
        ("7_", [("Extra", "")]),
        ("7_[1-2]", [("Extra", "")]),
    ]:
        refusal(lambda one=job_id, given=fields: JobUpdate(one, tuple(given)), ValueError)


# -- reservations and nodes ------------------------------------------------------------------------


def makes_moves_and_deletes_a_reservation(hands: Hands) -> None:
    flags = frozenset({"ANY_NODES", "NO_HOLD_JOBS_AFTER", "PURGE_COMP"})
    with reserved(hands, HOUR_S, flags=flags) as start_s:
        found = reservation(hands)
        assert found is not None
        assert (found.start_s, found.licenses) == (start_s, ((OTHER, 1),))
        assert found.comment == ""
        assert not found.active_at(time.time())
        assert not found.nodes
        later = start_s + 600
        said = "contract: größe, process 7"
        assert hands.client.move_reservation(RESERVATION, later + HOUR_S, later, said)
        assert hands.client.move_reservation(RESERVATION, later + 2 * HOUR_S)
        found = reservation(hands)
        assert found is not None
        assert (found.start_s, found.end_s) == (later, later + 2 * HOUR_S)
        assert found.comment == said
        wanted = NewReservation(RESERVATION, later, later + 600, licenses=f"{OTHER}:1")
        refusal(lambda: hands.client.create_reservation(wanted))
    assert reservation(hands) is None


def what_is_not_there_is_no_error(hands: Hands) -> None:
    hands.client.delete_reservation("contract_gone")
    assert hands.client.move_reservation("contract_gone", time.time() + 600) is False
    assert hands.client.move_reservation("contract_gone", 2e9, time.time() + 600) is False
    hands.client.delete_reservation("contract_gone")


def does_not_put_off_what_has_begun(hands: Hands) -> None:
    with reserved(hands):
        found = reservation(hands)
        assert found is not None
        assert found.active_at(time.time())
        assert not hands.client.move_reservation(RESERVATION, found.end_s + 600, time.time() + 1200)
        assert hands.client.move_reservation(RESERVATION, found.end_s + 600)
        moved = reservation(hands)
        assert moved is not None
        assert (moved.start_s, moved.end_s) == (found.start_s, found.end_s + 600)


def reserves_nodes(hands: Hands) -> None:
    flags = frozenset({"IGNORE_JOBS", "OVERLAP"})
    with reserved(hands, HOUR_S, licenses="", nodes=hands.node, flags=flags):
        found = reservation(hands)
        assert found is not None
        assert (found.nodes, found.licenses) == ({hands.node}, ())
    with reserved(hands, HOUR_S, licenses="", nodes="ALL", flags=flags):
        found = reservation(hands)
        assert found is not None
        assert {hands.node, hands.other_node} <= found.nodes


def refuses_a_reservation_that_cannot_be(hands: Hands) -> None:
    start_s = time.time() + HOUR_S
    for more in ({"licenses": "nosuchlicence:1"}, {"nodes": "nosuchnode"}):
        wanted = NewReservation(RESERVATION, start_s + HOUR_S, start_s, **more)
        refusal(lambda wanted=wanted: hands.client.create_reservation(wanted))
        assert reservation(hands) is None


def drains_and_resumes_a_node(hands: Hands) -> None:
    def seen() -> tuple[bool, str]:
        node = next(n for n in hands.client.nodes() if n.name == hands.other_node)
        return "DRAIN" in node.states, node.reason

    hands.client.drain_node(hands.other_node, "contract: größe")
    assert seen() == (True, "contract: größe")
    hands.client.resume_node(hands.other_node)
    assert seen()[0] is False
    refusal(lambda: hands.client.drain_node("nosuchnode", "x"))
    refusal(lambda: hands.client.resume_node("nosuchnode"))


CHECKS: tuple[Callable[[Hands], None], ...] = (
    reads_all_kinds_of_records,
    reads_few_jobs_by_id,
    reads_what_a_running_job_holds,
    reads_texts_as_they_are,
    sets_and_clears_texts,
    sets_and_clears_nodes,
    sets_counts,
    sets_and_clears_a_reservation,
    updates_one_task_of_an_array,
    updates_an_array_with_a_task_that_runs,
    refuses_each_by_its_own_id,
    refuses_unknown_nodes_and_licences,
    lets_a_job_begin_now,
    releases_what_slurm_holds,
    requeues_a_job_that_runs,
    refuses_what_is_no_value,
    makes_moves_and_deletes_a_reservation,
    what_is_not_there_is_no_error,
    does_not_put_off_what_has_begun,
    reserves_nodes,
    refuses_a_reservation_that_cannot_be,
    drains_and_resumes_a_node,
)
