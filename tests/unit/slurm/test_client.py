"""The client over Slurm's library, with a library of our own: what it keeps, names, and refuses."""

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest
from idle_clock import Stopwatch
from memory_slurm import job_record, node_record

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm import libslurm
from slurm_gpu_aware.slurm import reader as slurm_reader
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.libslurm import Call, CallCounts, Libslurm, SlurmError, decode, records
from slurm_gpu_aware.slurm.libslurm_fields import JOB, LICENSE, NODE, RecordKind
from slurm_gpu_aware.slurm.records import SlurmLicense
from slurm_gpu_aware.slurm.updates import JobUpdate, lanes_of, one_line, refused_id


def encoded(kind: RecordKind, fields: Mapping[str, Any]) -> bytes:
    """A record as the C code writes it, without its length."""
    numbers = Struct(f"={len(kind.numbers)}q").pack(*(fields[name] for name in kind.numbers))
    texts = (fields[name].encode("utf-8", "surrogateescape") + b"\0" for name in kind.texts)
    return numbers + b"".join(texts)


class Library:
    """Stands for `Libslurm`: answers with the records that it was given."""

    ffi = SimpleNamespace(new=lambda _type: [0])
    lib = SimpleNamespace(SLURM_NO_CHANGE_IN_DATA=1900, ESLURM_INVALID_JOB_ID=2017)

    def __init__(self) -> None:
        self.counts = CallCounts()
        self.found: dict[str, list[bytes]] = {}
        self.since: list[int] = []
        self.asked: list[int] = []
        self.clock = 1000
        """slurmctld's, by which it stamps its answers."""
        self.changed = 900
        """When its jobs changed last."""
        self.down = False

    def records(self, function: str, *given: Any) -> list[bytes]:
        if self.down:
            raise SlurmError("no answer", 110)
        if function == "aware_jobs":
            since, last_update = given
            self.since.append(since)
            if since - 1 >= self.changed:  # as slurmctld compares
                raise SlurmError("no change", 1900, refused=True)
            last_update[0] = self.clock
        if function == "aware_job":
            self.asked.append(given[0])
        return self.found[function]

    def reply(self, function: str, *given: Any) -> bytes:
        found = self.records(function, *given)
        return b"".join(Struct("=I").pack(len(record)) + record for record in found)

    ask = reply

    def together(self, works: Sequence[Callable[[], Any]], *_: Any) -> list[Any]:
        return [work() for work in works]

    def begin(self, work: Callable[[], Any]) -> Call[Any]:
        call: Call[Any] = Call(1.0)
        call.outcome.append(work())
        call.done.set()
        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(slurm_reader, "Libslurm", lambda _timeout_s: library)
    return library


def job(number: int, **fields: Any) -> bytes:
    return encoded(JOB, job_record(job_id=number, **fields))


# -- records ---------------------------------------------------------------------------------------


def test_records_of_a_reply() -> None:
    texts = [b"", b"abc", b"\0" * 70_000]
    packed = b"".join(Struct("=I").pack(len(text)) + text for text in texts)
    assert list(records(packed)) == texts
    assert list(records(b"")) == []


def test_a_text_is_decoded_as_it_is() -> None:
    text = b"a\nb=c\t\xff\xfe \xc3\xb6".decode("utf-8", "surrogateescape")
    fields = decode(JOB, job(9, comment=text, name="x\nJobId=1", priority=-1))
    assert (fields["comment"], fields["name"], fields["job_id"]) == (text, "x\nJobId=1", 9)
    assert fields["priority"] == -1
    assert set(fields) == {*JOB.numbers, *JOB.texts}


# -- reading ---------------------------------------------------------------------------------------


def test_a_record_that_reads_as_the_last_time_is_not_looked_at_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    inner = slurm_reader.job_of
    monkeypatch.setattr(
        slurm_reader, "job_of", lambda raw: looked.append(raw["job_id"]) or inner(raw)
    )
    client = SlurmClient(60.0)
    library.found["aware_jobs"] = [job(n) for n in range(1, 40)]
    first = client.jobs()
    assert looked == list(range(1, 40))
    library.found["aware_jobs"][4] = job(5, restart_cnt=2)
    again = client.jobs()
    assert looked[39:] == [5]
    assert again[4].restarts == 2
    assert again[3] is first[3]
    library.found["aware_jobs"] = library.found["aware_jobs"][:10]
    client.jobs()
    library.found["aware_jobs"] = [job(n) for n in range(1, 40)]
    client.jobs()
    assert len(looked) == 39 + 1 + 30  # of jobs that were gone nothing is kept


def test_where_no_job_waits_only_changes_are_asked_for(library: Library) -> None:
    client = SlurmClient(60.0)
    library.found["aware_jobs"] = [job(1), job(2, state="COMPLETED")]
    client.jobs()
    library.found["aware_jobs"] = [job(1, state="RUNNING"), job(2, state="COMPLETED")]
    assert client.jobs() == client.jobs()
    assert [found.state for found in client.jobs()] == ["RUNNING", "COMPLETED"]
    assert library.since == [0, 0, 1000, 1000]
    library.clock = library.changed = 1000  # a job came in the second of the last answer
    library.found["aware_jobs"].append(job(3))
    assert [found.id for found in client.jobs()] == ["1", "2", "3"]


def test_a_clock_of_slurmctld_that_was_set_back_hides_no_job_for_long(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(slurm_reader.time, "monotonic", lambda: now[0])
    client = SlurmClient(60.0)
    library.found["aware_jobs"] = [job(1, state="RUNNING")]
    client.jobs()
    library.clock = library.changed = 500
    library.found["aware_jobs"].append(job(2))
    assert len(client.jobs()) == 1
    now[0] = 31.0
    assert len(client.jobs()) == 2


def test_after_a_failure_all_jobs_are_asked_for(library: Library) -> None:
    client = SlurmClient(60.0)
    library.found["aware_jobs"] = [job(1, state="RUNNING")]
    client.jobs()
    library.down = True
    with pytest.raises(SlurmError):
        client.jobs()
    library.down = False
    client.jobs()
    assert library.since == [0, 0]


def test_an_array_is_asked_for_once(library: Library) -> None:
    library.found["aware_job"] = [job(n, array_job_id=98, array_task_id=n) for n in range(99, 120)]
    ids = [f"98_{task}" for task in (119, 100, 7, 101)]
    assert [found.id for found in SlurmClient(60.0).jobs_of(ids)] == [ids[0], ids[1], ids[3]]
    assert library.asked == [98]


def test_the_components_of_a_heterogeneous_job_come_with_it(library: Library) -> None:
    library.found["aware_job"] = [job(n, het_job_id=7) for n in (7, 8, 9)]
    assert [found.id for found in SlurmClient(60.0).jobs_of(["7"])] == ["7", "8", "9"]


def test_a_job_that_cannot_be_understood_is_left_out_and_named_once(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    client = SlurmClient(60.0)
    library.found["aware_jobs"] = [job(7), job(8, state="RUNNING", shares="n1 odd")]
    for _ in range(3):
        assert [found.id for found in client.jobs()] == ["7"]
        assert client.unread == {8}
    assert [r.getMessage() for r in caplog.records] == [
        "job 8 is left out: not enough values to unpack (expected 5, got 1)"
    ]
    library.found["aware_jobs"] = [job(7), job(8)]
    assert len(client.jobs()) == 2
    assert client.unread == frozenset()


def test_threads_read_all_jobs_one_after_the_other(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told what its own reading left out."""
    library.found["aware_jobs"] = [job(7, state="RUNNING", shares="n1 odd"), job(8)]
    client = SlurmClient(60.0)
    at_work, most, answer = [], [], library.records

    def slow(*given: Any) -> list[bytes]:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.05)
        at_work.pop()
        return answer(*given)

    monkeypatch.setattr(library, "records", slow)
    found: list[tuple[list[str], frozenset[int]]] = []

    def read() -> None:
        found.append(([job.id for job in client.jobs()], client.unread))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(["8"], frozenset({7}))] * 3
    assert max(most) == 1
    assert client.unread == frozenset()  # this thread has read nothing


def test_a_node_that_cannot_be_understood_costs_no_other_its_place(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    client = SlurmClient(60.0)
    for load in (3, 4):
        bad = node_record("n2", gres="gpu:2G", alloc_cpus=load)
        found = [node_record("n1", gres="gpu:4,shard:32"), bad]
        library.found["aware_nodes"] = [encoded(NODE, node) for node in found]
        assert [node.name for node in client.nodes()] == ["n1"]
    assert [r.getMessage() for r in caplog.records] == [
        "node n2 is left out: 'gpu:2G' is not a GRES of GPUs; expected gpu[:type]:count"
    ]


def test_nodes_that_read_as_the_last_time_are_not_looked_at_again(library: Library) -> None:
    client = SlurmClient(60.0)
    library.found["aware_nodes"] = [encoded(NODE, node_record(f"n{i}")) for i in range(3)]
    first = client.nodes()
    library.found["aware_nodes"][1] = encoded(NODE, node_record("n1", alloc_cpus=4))
    again = client.nodes()
    assert [node.cpus_used for node in again] == [0, 4, 0]
    assert again[0] is first[0]


def test_reserved_licences_are_not_free(library: Library) -> None:
    library.found["aware_licenses"] = [
        encoded(LICENSE, {"name": name, "available": 9, "reserved": kept, "nodes": nodes})
        for name, kept, nodes in (
            *(("gpuaware", 9, ""), ("matlab", 2, ""), ("over", 12, "")),
            *(("power", 9, "n1"), ("power", 1, "n2"), ("power", 4, "n3")),  # of resources.yaml
        )
    ]
    by_node = [
        SlurmLicense("power", free, reserved, frozenset({node}))
        for free, reserved, node in ((0, 9, "n1"), (8, 1, "n2"), (5, 4, "n3"))
    ]
    assert SlurmClient(60.0).licenses() == [
        SlurmLicense("gpuaware", 0, 9),
        SlurmLicense("matlab", 7, 2),
        SlurmLicense("over", 0, 12),
        *by_node,
    ]


@pytest.mark.parametrize(
    ("record", "asked", "named"),
    [
        ("7", "7", "7"),
        ("98_3", "98_3", "98_3"),
        ("98_3", "98", "98"),
        ("98_[4-9]", "98", "98"),
        ("98_4-9", "98", "98"),
        ("98_0-5,...", "98", "98"),
    ],
)
def test_complaints_are_named_by_what_was_asked(record: str, asked: str, named: str) -> None:
    assert refused_id(record, asked) == named


def test_a_complaint_of_two_lines_is_told_on_one() -> None:
    assert one_line("gpu-aware: no\nUnspecified error\n") == "gpu-aware: no; Unspecified error"


# -- calls -----------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Libslurm:
    lib = SimpleNamespace(ESLURM_IN_STANDBY_MODE=2057, slurm_strerror=lambda _code: b"Said so")
    ffi = SimpleNamespace(string=lambda text: text)
    monkeypatch.setattr(libslurm, "_load", lambda: (ffi, lib))
    return Libslurm(0.5)


def test_a_call_ends_within_its_time_and_goes_on_by_itself(loaded: Libslurm) -> None:
    go = threading.Event()
    watch = Stopwatch()
    with pytest.raises(SlurmError, match=r"no answer within 0\.5 s") as caught:
        loaded.within(go.wait)
    assert watch.idle_s < 10.0
    assert (caught.value.code, caught.value.refused) == (errno.ETIMEDOUT, False)
    assert loaded.within(lambda: 7, 60.0) == 7
    go.set()


def test_after_its_time_no_update_of_a_batch_follows(
    loaded: Libslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later round may decide otherwise about these jobs."""
    go, sent = threading.Event(), []
    began, begin = threading.Semaphore(0), loaded.begin
    monkeypatch.setattr(slurm_reader, "Libslurm", lambda _timeout_s: loaded)
    client = SlurmClient(0.5)

    def send(job_id: str, _texts: object, _numbers: object) -> dict[str, str]:
        sent.append(job_id)
        began.release()
        go.wait(600)
        return {}

    def begun(work: Callable[[], Any], extra_s: float) -> Call[Any]:
        call = begin(work, extra_s)
        assert began.acquire(timeout=300)  # the time limit may pass before a busy machine sends
        return call

    monkeypatch.setattr(client, "_send", send)
    monkeypatch.setattr(loaded, "begin", begun)
    with pytest.raises(SlurmError, match="no answer"):
        client.update_jobs([JobUpdate(str(n), (("Extra", "x"),)) for n in range(1, 9)])
    go.set()
    watch = Stopwatch()
    while loaded.counts.of_calls["answered"] < 4:
        assert watch.idle_s < 60
        time.sleep(0.01)
    assert sent == ["1", "2", "3", "4"]  # the first of each lane


def test_updates_of_one_job_or_array_stay_in_order() -> None:
    ids = ["5", "98_1", "6", "98_2", "5", "7", "8", "98"]
    updates = [(job_id, {}, {"number": n}) for n, job_id in enumerate(ids)]
    lanes = lanes_of(updates, lambda update: update[0])
    assert len(lanes) == 4
    for of in (["5"], ["98_1", "98_2", "98"]):
        (lane,) = (lane for lane in lanes if lane[0][0] in of)
        assert [job_id for job_id, _, _ in lane if job_id in of] == [i for i in ids if i in of]


def test_works_are_done_at_the_same_time(loaded: Libslurm) -> None:
    meet = threading.Barrier(3)
    assert len(loaded.together([meet.wait] * 3, 60.0)) == 3


def test_the_error_of_a_work_is_raised(loaded: Libslurm) -> None:
    def fails() -> int:
        raise SlurmError("no", 1)

    with pytest.raises(SlurmError, match="no"):
        loaded.together([lambda: 7, fails], 60.0)


def test_what_was_asked_ahead_is_not_asked_again(library: Library) -> None:
    library.found["aware_nodes"] = [encoded(NODE, node_record("n1"))]
    client = SlurmClient(60.0)
    client.ask_ahead("nodes")
    library.found["aware_nodes"] = []
    assert [node.name for node in client.nodes()] == ["n1"]
    assert client.nodes() == []


def test_slurms_passes_do_not_change_a_parked_job(library: Library) -> None:
    client = SlurmClient(60.0)
    client.parking_licence = "gpuaware"
    read = []
    for at, flags in ((5, 1 << 19), (6, 1 << 19 | 1 << 40)):
        passed = {"last_sched_eval": at, "bitflags": flags}
        parked = job(7, licenses="gpuaware:1", **passed)
        library.found["aware_jobs"] = [
            parked,
            job(8, **passed),
            job(9, licenses="other:1", **passed),
        ]
        read.append(client.jobs())
    assert [a is b for a, b in zip(*read, strict=True)] == [True, False, False]
    assert [one.tried_at_s for one in read[1]] == [None, 6.0, 6.0]
    assert not any(one.enforce_binding for one in read[1])
    library.found["aware_jobs"] = [job(7, licenses="gpuaware:1", bitflags=1 << 4)]
    assert client.jobs()[0].enforce_binding


def test_calls_that_do_not_return_are_bounded(
    loaded: Libslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    for _ in range(libslurm._MOST_WAITING):
        with pytest.raises(SlurmError, match="no answer"):
            loaded.within(go.wait, -0.5)
    with pytest.raises(SlurmError, match="too many calls still wait"):
        loaded.within(lambda: 7)
    go.set()
    watch = Stopwatch()
    while True:
        try:
            assert loaded.within(lambda: 7) == 7
            return
        except SlurmError:
            assert watch.idle_s < 60
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        *[(2017, True), (8001, True), (1, True)],
        (-1, True),  # a site's job_submit.lua: that job is refused, the others go on
        *[(2057, False), (111, False), (5004, False), (1800, False), (6000, False)],
    ],
)
def test_a_refusal_is_told_from_a_failure(loaded: Libslurm, code: int, refused: bool) -> None:
    with pytest.raises(SlurmError, match=r"^Slurm, update node: Said so$") as caught:
        loaded.check(code, "aware_update_node")
    assert caught.value.refused is refused
    loaded.check(0, "aware_update_node")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ModuleNotFoundError("No module named '_libslurm'"),
            r"not built.*libslurm-dev",
        ),
        (ImportError("libslurm.so.42: cannot open"), r"another release of Slurm.*libslurm\.so\.42"),
    ],
)
def test_a_client_that_is_not_built(
    monkeypatch: pytest.MonkeyPatch, error: ImportError, said: str
) -> None:
    def fail(_name: str) -> None:
        raise error

    libslurm._load.cache_clear()
    monkeypatch.setattr(libslurm.importlib, "import_module", fail)
    with pytest.raises(SourceError, match=said) as caught:
        open_client(1.0)
    assert "\n" not in str(caught.value)


def test_where_there_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")
    with pytest.raises(SourceError, match=r"SLURM_CONF=/nonexistent/slurm\.conf does not exist"):
        libslurm._check_configuration(None)
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(libslurm, "_CONF_FILES", ("/nonexistent/a", "/nonexistent/b"))
    with pytest.raises(SourceError, match=r"no slurm\.conf at /nonexistent/a, /nonexistent/b"):
        libslurm._check_configuration(None)


@pytest.mark.parametrize(
    ("work", "limit_s", "said"),
    [
        (lambda: (os.write(2, b"x: error: no such key\nx: fatal: bad\n"), os._exit(1)),
         60.0, "no such key; bad$"),
        (lambda: time.sleep(60), 0.2, r"not read within 0\.2 s$"),
    ],
)  # fmt: skip
def test_a_configuration_that_slurm_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    work: Callable[[], object],
    limit_s: float,
    said: str,
) -> None:
    """In a process of its own: libslurm would end ours."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    monkeypatch.setattr(libslurm, "_INIT_S", limit_s)
    lib = SimpleNamespace(slurm_init=lambda _file: work())
    with pytest.raises(SourceError, match=f"^Slurm's configuration cannot be read: {said}"):
        libslurm._check_configuration(SimpleNamespace(lib=lib, ffi=SimpleNamespace(NULL=None)))
    lib.slurm_init = print
    monkeypatch.setattr(libslurm, "_INIT_S", 60.0)
    libslurm._check_configuration(SimpleNamespace(lib=lib, ffi=SimpleNamespace(NULL=None)))
