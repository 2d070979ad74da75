"""Opening, making, locking and publishing the store."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from needs import needs_root
from store_samples import decision, ingest, profile_of, report

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store import schema
from slurm_gpu_aware.store.database import (
    check_integrity,
    open_store,
    publish,
)
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.store.profiles import load_profile


def schema_of(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY 2").fetchall()


def test_a_new_store_is_wal_strict_and_checks_foreign_keys(tmp_path: Path) -> None:
    with open_store(tmp_path / "deep" / "store.db") as store:
        assert store.query("PRAGMA journal_mode")[0][0] == "wal"
        assert store.query("PRAGMA foreign_keys")[0][0] == 1
        assert check_integrity(store) == []
        with pytest.raises(sqlite3.IntegrityError):
            store.execute("INSERT INTO gpus (node, slot) VALUES ('nowhere', 0)")
        with pytest.raises(sqlite3.IntegrityError):
            store.execute("INSERT INTO nodes (node, taken_at_unix) VALUES ('n1', 'today')")
    ours = [sql for kind, name, sql in schema_of(tmp_path / "deep" / "store.db") if kind == "table"]
    assert all("STRICT" in sql for sql in ours)


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report())
    before = schema_of(path)
    open_store(path).close()
    assert len(profile_of(path).gpus) == 4
    assert schema_of(path) == before


def of_schema(version: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        open_store(path).close()
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version = {version}")

    return make


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def beginning(path: Path) -> bytes | None:
    return path.read_bytes()[:16] if path.exists() else None


@pytest.mark.parametrize(
    ("make", "modes", "words"),
    [
        (lambda path: None, "r", "gpu-aware-profile sweep"),
        (Path.touch, "r", "an empty store; 'gpu-aware-profile sweep'"),
        (of_schema(999), "rw", r"newer release.*schema 999.*upgrade"),
        (of_schema(1), "w", r"older release.*schema 1.*measure again"),
        (of_another_program, "w", "not a store of slurm-gpu-aware"),
        (lambda path: path.write_text("not a database\n" * 200), "rw", "damaged; move it.*sweep"),
    ],
    ids=["missing", "empty", "newer", "older", "foreign", "text"],
)
def test_what_is_no_store_of_this_release_is_refused_and_stays(
    tmp_path: Path, make: Callable[[Path], object], modes: str, words: str
) -> None:
    path = tmp_path / "store.db"
    make(path)
    before = beginning(path)
    for mode in modes:
        with pytest.raises(StoreError, match=words):
            open_store(path, readonly=mode == "r")
    assert beginning(path) == before


def test_a_failing_schema_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    bad = f"{schema.TABLES}INSERT INTO no_such_table VALUES (1);\n"
    monkeypatch.setattr(schema, "TABLES", bad)
    with pytest.raises(StoreError):
        open_store(path)
    assert schema_of(path) == []


def test_damage_inside_the_file_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        for i in range(40):
            ingest(store, report(f"n{i}"))
        store.query("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = os.urandom(len(content) - 4096 * 3)
    path.write_bytes(content)

    def use() -> None:
        with open_store(path) as store:
            load_profile(store)
            if complaints := check_integrity(store):
                raise StoreError(complaints[0])

    with pytest.raises(StoreError):
        use()


def test_a_read_only_store_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    with (
        open_store(path, readonly=True) as store,
        pytest.raises(StoreError, match="opened read-only"),
    ):
        Ledger(store).add_event("1", "parked", {}, 1.0)


def test_an_error_rolls_the_whole_block_back(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        ledger = Ledger(store)

        def half() -> None:
            with store.write():
                ledger.add_event("1", "parked", {}, 1.0)
                ledger.add_decision(decision("1"))
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            half()
        assert ledger.events("1") == []
        assert ledger.decisions("1") == []
        ledger.add_event("1", "parked", {}, 1.0)
        assert len(ledger.events("1")) == 1


def test_a_reader_sees_what_was_committed_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as writer, open_store(path, readonly=True) as reader:
        Ledger(writer).add_event("7", "parked", {"gpus": 2}, 1.0)
        assert [e.detail for e in Ledger(reader).events("7")] == [{"gpus": 2}]


def test_the_published_copy_is_complete_readable_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report())
        with store.write():  # publishing neither waits for a writer nor shows half of its work
            ingest(store, report("half"))
            publish(store)
            store.execute("DELETE FROM nodes WHERE node = 'half'")
        copy = published_path(path)
        assert copy == published_path(path) == tmp_path / "store.public.db"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o644
        with open_store(copy, readonly=True) as reader:
            assert reader.query("PRAGMA journal_mode")[0][0] == "delete"
            assert len(load_profile(reader).gpus) == 4
            ingest(store, report("n2"))
            publish(store, mode=0o600)
            assert len(load_profile(reader).gpus) == 4  # still the old file
        assert len(profile_of(copy).gpus) == 8
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert {p.name for p in tmp_path.iterdir()} == {"store.db", "store.public.db"}


def test_where_the_live_file_is_gone_or_closed_the_copy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report())
        publish(store)
    path.unlink()
    with open_store(path, readonly=True) as reader:
        assert reader.path == published_path(path)
        assert len(load_profile(reader).gpus) == 4


READ_AS_NOBODY = """
import os, sys
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile
os.setgid(65534); os.setuid(65534)
with open_store(sys.argv[1], readonly=True) as store:
    print(store.path.name, len(load_profile(store).gpus))
"""


@needs_root
def test_another_user_reads_the_copy_and_not_the_live_file(tmp_path: Path) -> None:
    """Without write access to the directory a closed WAL file cannot be opened."""
    folder = tmp_path
    while folder != folder.parent:
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
        folder = folder.parent
    tmp_path.chmod(0o755)
    path = tmp_path / "store.db"
    with open_store(path) as store:
        ingest(store, report())
        publish(store)
    path.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", READ_AS_NOBODY, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["store.public.db", "4"], done.stderr


@needs_root
def test_a_store_made_by_root_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    with open_store(folder / "store.db") as store:
        ingest(store, report())
        owners = {(p.name, p.stat().st_uid, p.stat().st_gid) for p in folder.iterdir()}
    assert owners == {(name, 12345, 12346) for name in ("store.db", "store.db-wal", "store.db-shm")}


def test_threads_of_the_daemon_share_one_store(tmp_path: Path) -> None:
    """A heartbeat's event never lands in another thread's transaction that is rolled back."""
    with open_store(tmp_path / "store.db") as store:
        ledger = Ledger(store)

        def rounds(which: int) -> None:
            for i in range(50):
                try:
                    with store.write():
                        ledger.add_event(f"round{which}", "planned", {}, float(i))
                        if i % 2:
                            raise LookupError
                except LookupError:
                    ledger.add_event(f"error{which}", "error", {}, float(i))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(rounds, range(4)))
        for which in range(4):
            assert [e.at for e in ledger.events(f"round{which}")] == list(range(0, 50, 2))
            assert [e.at for e in ledger.events(f"error{which}")] == list(range(1, 50, 2))


WRITER = """
import sys
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
from store_samples import decision
with open_store(sys.argv[1]) as store:
    ledger = Ledger(store)
    for i in range(150):
        number = ledger.add_decision(decision(str(i)))
        ledger.set_outcome(number, "released", 1.0, {"try": i})
"""


def test_selector_and_merge_write_at_once_and_neither_fails(tmp_path: Path) -> None:
    """Two processes open a store that does not exist yet and both write all the time."""
    path = tmp_path / "store.db"
    with (
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as selector,
        open_store(path) as store,
    ):
        for i in range(60):
            ingest(store, report(f"n{i}", taken_at=float(i)))
            if i % 20 == 0:
                recompute_scores(store, ("A",))
        _, complaints = selector.communicate(timeout=300)
        assert selector.returncode == 0, complaints
        ledger = Ledger(store)
        assert [d.state for d in ledger.open_decisions()] == ["released"] * 150
        assert len(load_profile(store).taken_at) == 60
        assert check_integrity(store) == []


ENDLESS = """
import itertools, sys
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
from store_samples import decision
ledger = Ledger(open_store(sys.argv[1]))
for i in itertools.count():
    ledger.add_decision(decision(str(i)))
    print(i, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as writer:
        assert writer.stdout is not None
        while (line := writer.stdout.readline()) != "200\n":
            assert line
        writer.kill()
        written = [200, *map(int, writer.stdout.read().split())]
    with open_store(path) as store:
        assert check_integrity(store) == []
        stored = Ledger(store).open_decisions()
        assert {int(d.job_id) for d in stored} >= set(range(written[-1] + 1))
        assert all(d.nodes == ["n1", "n2"] for d in stored)  # no half decision


def test_the_ledger_opens_without_heavy_imports(tmp_path: Path) -> None:
    """Views over the ledger must start fast."""
    path = tmp_path / "store.db"
    open_store(path).close()
    code = (
        "import sys; from slurm_gpu_aware.store.database import open_store;"
        "from slurm_gpu_aware.store.ledger import Ledger;"
        "Ledger(open_store(sys.argv[1])).open_decisions();"
        "Ledger(open_store(sys.argv[1], readonly=True)).open_decisions();"
        "print(sorted({'numpy', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == "[]"
