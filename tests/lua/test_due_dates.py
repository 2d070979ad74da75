"""Due dates that earlier runs cannot meet: what the selector writes, and what the filter tells."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from luafilter import ALICE, SUCCESS, Filter, MakeFilter
from make import job_request

from slurm_gpu_aware.config.settings import EventsConfig
from slurm_gpu_aware.features.due_dates.due_date import DueDate
from slurm_gpu_aware.features.due_dates.plan import due_plan
from slurm_gpu_aware.features.due_dates.shortest_runs import shortest_text
from slurm_gpu_aware.model.size_table import SizeTable

H = 3600.0
NO_RUN = "no time for any earlier run of this name"
NO_EPOCH = "no time for one epoch"
JOB: dict[str, Any] = {"tres_per_node": "gres/gpu:2", "name": "train", "time_limit": 600}
RUNS = {"train": [(2, 2 * H), (1, 3 * H)]}
"""With 8 GPUs the second one would take 22.5 min at best."""


def write_runs(filter_: Filter, text: str | bytes, uid: int = ALICE) -> Path:
    folder = EventsConfig(filter_.folder / "submitted").runs_folder
    folder.mkdir(exist_ok=True)
    file = folder / str(uid)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def told(filter_: Filter, comment: str, **fields: Any) -> list[str]:
    out = filter_.submit(**{**JOB, **fields}, comment=f"class=A,{comment}")
    assert (out.rc, out.log) == (SUCCESS, [])
    assert "licenses" in out.written
    return out.messages


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("gpus=1-8,due=22m", NO_RUN),
        ("gpus=1-8,due=23m", None),
        ("gpus=1-4,due=23m", NO_RUN),
        ("gpus=2,due=1h", NO_RUN),  # its 3 h on one GPU are 1.5 h on two at best
        ("due=89m", NO_RUN),
        ("due=91m", None),
        ("gpus=1-8", None),
        ("gpus=1-8,due=22m,epochs=90x10m", NO_RUN),
        ("gpus=1-8,due=22m,epochs=5x10m", None),  # all of them are in time
        ("gpus=1-8,due=30m,epochs=5x4h", None),  # an earlier run ended within its first epoch
        ("gpus=1-8,due=2020-02-29T08:00", "has passed"),
    ],
)
def test_a_due_date_before_the_end_of_all_earlier_runs_is_told_at_once(
    filter_: Filter, comment: str, sentence: str | None
) -> None:
    write_runs(filter_, shortest_text(RUNS))
    said = told(filter_, comment)
    assert [sentence in text for text in said if sentence] == [True] * (sentence is not None)
    if sentence == NO_RUN:
        assert "\n" not in said[0]


def test_what_it_says(filter_: Filter) -> None:
    write_runs(filter_, shortest_text(RUNS))
    assert told(filter_, "gpus=1-8,due=10m") == [
        "gpu-aware: the due date leaves no time for any earlier run of this name, as the shortest"
        " takes at least 1350 s, even with the most GPUs that it may get, 8; it plays no part"
    ]
    assert told(filter_, "due=10m,move=no", array_inx="1-4")  # of an array, too


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"name": "trai"},
        {"name": "train "},
        {"name": None},
        {"user_id": 1001},
        {"time_limit": None},  # that of a partition may be in time
        {"time_limit": 10},  # all that Slurm lets it do is in time
    ],
    ids=str,
)
def test_jobs_of_which_nothing_is_known(filter_: Filter, fields: dict[str, Any]) -> None:
    write_runs(filter_, shortest_text({"first": [(1, 9 * H)], **RUNS, "last": [(1, 9 * H)]}))
    assert told(filter_, "due=20m") != []
    assert told(filter_, "due=20m", **fields) == []


def test_a_run_with_more_gpus_than_the_job_may_get(filter_: Filter) -> None:
    """1 h with 8 GPUs is 1 h with 2 if the others were idle, so nothing more is claimed."""
    write_runs(filter_, shortest_text({"train": [(8, 1 * H)]}))
    assert told(filter_, "due=61m") == []
    assert told(filter_, "due=59m") != []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "747261696e",
        "747261696e 9000 9000",
        "747261696e  9000 9000\n",
        "747261696e 9e9 9000\n",
        "747261696e -9000 9000\n",
        "747261696e 9000\n",
        "9000 9000\n",
        "x747261696e 9000 9000\n",
        "747261696e nan nan\n",
        "747261696E 9000 9000\n",
        b"\0\xff\n" * 1000,
        "747261696e " + "9" * 70_000 + " 9000\n",
        "747261696e 9000 9000\n" + "\n" * 65_536,
    ],
    ids=range(14),
)
def test_files_that_no_selector_wrote(filter_: Filter, text: str | bytes) -> None:
    write_runs(filter_, text)
    assert told(filter_, "due=20m") == []
    assert NO_EPOCH in told(filter_, "due=20m,epochs=9x1h")[0]


def test_numbers_beyond_all_bounds_let_the_job_pass(filter_: Filter) -> None:
    digits = "9" * 400
    write_runs(filter_, f"747261696e {digits} {digits}\n")
    told(filter_, "due=20m")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_no_regular_file(filter_: Filter, kind: str) -> None:
    """A FIFO without a writer would block open(..., "r") and with it slurmctld."""
    file = write_runs(filter_, "")
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    assert told(filter_, "due=20m") == []


def test_jobs_without_a_due_date_read_no_file(filter_: Filter) -> None:
    write_runs(filter_, shortest_text(RUNS))
    filter_.lua.execute(
        b"asked = 0; local open = io.open;"
        b' io.open = function(path, ...) if path:find("%.runs/") then asked = asked + 1 end'
        b" return open(path, ...) end"
    )
    told(filter_, "gpus=1-8")
    assert filter_.lua.globals()[b"asked"] == 0
    told(filter_, "gpus=1-8,due=9h")
    assert filter_.lua.globals()[b"asked"] == 1


NAMES = st.one_of(
    st.sampled_from(["a\nb", "../../etc/passwd", "/", "%d%s", "train\n747261696e 1 1", "é" * 128]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    st.binary(min_size=1, max_size=300).map(
        lambda raw: raw.replace(b"\0", b"?").decode("utf-8", "surrogateescape")
    ),
)


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), NAMES)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_name_is_found_and_no_other(filter_: Filter, names: list[str], other: str) -> None:
    write_runs(filter_, shortest_text({name[:128]: [(1, 9 * H)] for name in names}))
    for name in names:
        assert NO_RUN in told(filter_, "due=20m", name=name)[0]
    starts = {name.encode("utf-8", "surrogateescape")[:128] for name in names}
    known = other.encode("utf-8", "surrogateescape")[:128] in starts
    assert bool(told(filter_, "due=20m", name=other)) == known


GPUS = (1, 2, 4, 8)


@given(
    st.lists(st.tuples(st.sampled_from(GPUS), st.floats(60, 9 * H) | st.just(float("inf")))),
    st.lists(st.floats(1.0, 2.0), min_size=3, max_size=3),
    st.sampled_from([(1, 2), (1, 8), (2, 4), (2, 8)]),
    st.integers(1, 600),
    st.integers(1, 300),
    st.none() | st.tuples(st.integers(1, 90), st.integers(1, 3600)),
)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)
def test_what_it_tells_is_what_the_selector_finds(
    make_filter: MakeFilter,
    runs: list[tuple[int, float]],
    gains: list[float],
    sizes: tuple[int, int],
    limit_min: int,
    due_min: int,
    epochs: tuple[int, int] | None,
) -> None:
    """With any model whose GPUs gain at most their number."""
    filter_ = make_filter()
    write_runs(filter_, shortest_text({"train": runs}))
    comment = f"gpus={sizes[0]}-{sizes[1]},due={due_min}m"
    comment += "" if epochs is None else f",epochs={epochs[0]}x{epochs[1]}s"
    said = told(filter_, comment, time_limit=limit_min)
    speeds = np.cumprod([1.0, *gains])
    table = SizeTable(
        np.array(GPUS), np.array([1000]), 1 / speeds[:, None], 300.0 * np.array(GPUS)[:, None]
    )
    due = DueDate(60.0 * due_min, tuple(runs), epochs and (epochs[0], 2, float(epochs[1])))
    request = job_request(
        "1",
        2,
        sizes=tuple(n for n in GPUS if sizes[0] <= n <= sizes[1]),
        table=table,
        time_limit_s=60.0 * limit_min,
        due=due,
    )
    plan = due_plan(request, 0.0)
    if any(NO_RUN in text for text in said):
        assert plan is not None
        assert plan.in_time == 0.0
