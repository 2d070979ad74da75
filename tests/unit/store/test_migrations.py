"""A store of an earlier schema is brought forward with all its rows, once, and a copy is kept."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import gpu_aware, gpu_aware_profile, refusal, succeeded
from sqlite_utils import Database

from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.store import schema
from slurm_gpu_aware.store.database import check_integrity, open_copy, open_store, publish
from slurm_gpu_aware.store.files import kept_path, of_selector, published_path
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.store.profiles import load_profile

SCHEMA_8 = Path(__file__).parents[2] / "data" / "store-schema-8.sql"
NEXT = schema.VERSION + 1
REBUILT = ("nodes", "gpus", "timings", "collectives", "model_samples", "decisions")
"""Tables with references, checks, indexes and triggers."""
Rows = dict[str, list[tuple[Any, ...]]]
NextSchema = Callable[..., None]


def make_store_8(path: Path) -> Path:
    """A store as a release of schema 8 left it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.executescript(SCHEMA_8.read_text())
        connection.commit()
    path.chmod(0o640)
    return path


def rows_of(path: Path) -> Rows:
    """Table -> its rows; without tables that are empty."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        tables = {name: connection.execute(f"SELECT * FROM {name}") for (name,) in names}
        found = {name: sorted(rows, key=repr) for name, rows in tables.items()}
        return {name: rows for name, rows in found.items() if rows}


def brought_forward(rows: Rows) -> Rows:
    """The same rows in the present schema: with a power limit, last; no range of it is known, and
    no power profiles."""
    limited = {"timings": (0,), "model_samples": (0,), "gpus": (None,) * 3}
    return rows | {name: [(*row, *last) for row in rows[name]] for name, last in limited.items()}


def table_names(path: Path) -> list[str]:
    """The tables of a store."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        return [name for (name,) in connection.execute(query)]


def shape_of(path: Path) -> Mapping[str, Any]:
    """What a schema means, however its text is written."""
    pragmas = ("table_xinfo", "foreign_key_list", "index_list")
    with closing(sqlite3.connect(path)) as connection:
        found: dict[str, Any] = {
            f"{kind} {name}": (sql if kind == "trigger" else None)
            for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema")
        }
        found |= {
            name: strict for _, name, _, _, _, strict in connection.execute("PRAGMA table_list")
        }
        for table in Database(connection).tables:
            found[f"checks {table.name}"] = sorted(check.check for check in table.checks)
            for pragma in pragmas:
                rows = connection.execute(f"PRAGMA {pragma}({table.name})").fetchall()
                found[f"{pragma} {table.name}"] = sorted(row[1:] for row in rows)
        return found


def rebuild(db: Database) -> None:
    """A step that writes tables anew, as a change of a column does."""
    for name in REBUILT:
        db.table(name).transform()


def fail(db: Database) -> None:
    """A step that fails when half of it is done."""
    rebuild(db)
    db.execute("DELETE FROM no_such_table")


def lose(db: Database) -> None:
    """A step that deletes what other rows refer to."""
    db.execute("DELETE FROM nodes")


@pytest.fixture
def next_schema(monkeypatch: pytest.MonkeyPatch) -> NextSchema:
    """Make this release one of the next schema, which a step reaches."""

    def set_step(step: Callable[[Database], None] = rebuild) -> None:
        monkeypatch.setattr(schema, "VERSION", NEXT)
        monkeypatch.setattr(schema, "STEPS", {**schema.STEPS, NEXT - 1: step})

    return set_step


def test_each_schema_since_the_oldest_has_a_step() -> None:
    assert sorted(schema.STEPS) == list(range(schema.OLDEST, schema.VERSION))


def test_a_store_of_schema_8_gets_the_schema_of_a_new_store(tmp_path: Path) -> None:
    """Fails where a change of the tables has no step."""
    old = make_store_8(tmp_path / "old.db")
    for path in (old, tmp_path / "new.db"):
        open_store(path).close()
    assert shape_of(old) == shape_of(tmp_path / "new.db")


def test_every_row_is_kept(tmp_path: Path, next_schema: NextSchema) -> None:
    path = make_store_8(tmp_path / "store.db")
    before, tables = rows_of(path), set(table_names(path))
    assert before.keys() == tables  # the fixture has rows of every table of that schema
    before = brought_forward(before)
    open_store(tmp_path / "new.db").close()
    shape = shape_of(tmp_path / "new.db")
    next_schema()
    with open_store(path) as store:
        assert check_integrity(store) == []
        assert len(load_profile(store).gpus) == 4
        assert [event.kind for event in Ledger(store).events("1")] == ["started"]
        assert store.query("PRAGMA foreign_keys")[0][0] == 1
    assert rows_of(path) == before
    assert shape_of(path) == shape
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == NEXT
    open_store(path).close()
    assert rows_of(path) == before


def test_a_new_table_needs_no_words_in_a_step(
    tmp_path: Path, next_schema: NextSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_store_8(tmp_path / "store.db")
    next_schema(lambda db: None)
    more = f"{schema.TABLES}CREATE TABLE IF NOT EXISTS racks (name TEXT PRIMARY KEY) STRICT;\n"
    monkeypatch.setattr(schema, "TABLES", more)
    with open_store(path) as store:
        assert store.query("SELECT * FROM racks") == []


def test_the_copy_is_the_former_store_with_its_owner_and_mode(
    tmp_path: Path, next_schema: NextSchema
) -> None:
    path = make_store_8(tmp_path / "store.db")
    if os.geteuid() == 0:
        os.chown(path, 12345, 12346)
    before, status = rows_of(path), path.stat()
    next_schema()
    open_store(path).close()
    kept = tmp_path / "store.schema8.db"
    assert kept == kept_path(path, 8)
    assert rows_of(kept) == before
    found = kept.stat()
    assert (found.st_uid, found.st_gid) == (status.st_uid, status.st_gid)
    assert stat.S_IMODE(found.st_mode) == 0o640
    assert kept in of_selector(path)  # so that setup may give the folder to SlurmUser
    assert {file.name for file in tmp_path.iterdir()} == {"store.db", kept.name}


def test_a_copy_that_is_there_is_not_replaced(tmp_path: Path, next_schema: NextSchema) -> None:
    path = make_store_8(tmp_path / "store.db")
    kept_path(path, 8).write_text("of an earlier life")
    next_schema()
    open_store(path).close()
    assert kept_path(path, 8).read_text() == "of an earlier life"
    assert brought_forward(rows_of(kept_path(path, 8, 2))) == rows_of(path)


@pytest.mark.parametrize("step", [fail, lose])
def test_a_step_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, next_schema: NextSchema, step: Callable[[Database], None]
) -> None:
    path = make_store_8(tmp_path / "store.db")
    before = rows_of(path)
    next_schema(step)
    with pytest.raises(StoreError, match=r"store\.db: (SQLite refused|schema 8 cannot be brought)"):
        open_store(path)
    assert rows_of(path) == before
    assert {file.name for file in tmp_path.iterdir()} == {"store.db"}


OPENER = """
import sys
from pathlib import Path
from slurm_gpu_aware.store import schema
from slurm_gpu_aware.store.database import open_store
def step(db):
    print("in the step", flush=True)
    sys.stdin.readline()
    db.execute("INSERT INTO settings SELECT 'step' || count(*), '' FROM settings")
schema.VERSION += 1
schema.STEPS = {**schema.STEPS, schema.VERSION - 1: step}
print("opens", flush=True)
with open_store(Path(sys.argv[1])) as store:
    print([row[0] for row in store.query("SELECT key FROM settings WHERE key LIKE 'step%'")])
"""


def test_of_two_processes_one_brings_the_store_forward(tmp_path: Path) -> None:
    path = make_store_8(tmp_path / "store.db")

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", OPENER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    with start() as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["opens\n", "in the step\n"]
        with start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "opens\n"
            assert first.communicate("\n", timeout=300)[0] == "['step1']\n"
            assert second.communicate("\n", timeout=300)[0] == "['step1']\n"
    assert {file.name for file in tmp_path.iterdir()} == {"store.db", "store.schema8.db"}


def test_a_reader_names_those_who_bring_it_forward(tmp_path: Path, next_schema: NextSchema) -> None:
    path = make_store_8(tmp_path / "store.db")
    open_store(path).close()
    with open_store(path) as store:
        publish(store)
    before = rows_of(path)
    next_schema()
    now = NEXT - 1
    wanted = rf"of schema {now}, and this release reads schema {NEXT}; the selector .* restarted"
    for opened in (path, published_path(path)):
        with pytest.raises(StoreError, match=wanted):
            open_store(opened, readonly=True)
    with pytest.raises(StoreError, match=wanted):
        open_copy(published_path(path))
    assert rows_of(path) == before
    assert not kept_path(path, now).exists()


def test_explain_of_a_user_says_it_in_one_sentence(
    store_path: Path, next_schema: NextSchema
) -> None:
    make_store_8(store_path)
    next_schema()
    said = refusal(gpu_aware("explain", "1"))
    assert said.count("\n") == 1
    assert f"store.db: of schema 8, and this release reads schema {NEXT}" in said


def test_an_import_brings_the_store_forward(store_path: Path, next_schema: NextSchema) -> None:
    make_store_8(store_path)
    next_schema()
    times = store_path.with_name("times.csv")
    times.write_text("node,gpu,class,value_ms\nn2,0,A,101\nn2,1,A,149\n")
    succeeded(gpu_aware_profile("import", str(times)))
    assert kept_path(store_path, 8).exists()
