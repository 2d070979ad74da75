"""Whatever enters through an option or a file: one sentence, exit code 1 or 2, no traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest
from idle_clock import Stopwatch
from store_samples import ingest, report

from gpu_aware_profile.cli import cli as profile_cli
from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.bounds import MAX_GPUS, quoted
from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.cli.options import Number
from slurm_gpu_aware.model.job_hints import PATTERN
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.topology.patterns import parse_pattern

GROUPS = {"gpu-aware": cli, "gpu-aware-profile": profile_cli}
NUMBERS = ["", "x", "-1", "nan", "inf", "-inf", "1e308", "99999999999", "9" * 5000, "1\x002"]
LONG = "x" * 200_000
TRACE = "job_id,submit_s,gpus,duration_s,nodes,time_limit_s,deadline_s,bw,pattern,priority"
ROW = ["1", "0", "2", "10", "1", "60", "99", "high", "ring", "5"]
SMALL = ["--nodes", "1", "--gpus-per-node", "2", "--processes", "1"]
"""A cluster for simulations."""


@pytest.fixture
def folder_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two nodes; the working folder is the test's."""
    (tmp_path / "config.toml").write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.chdir(tmp_path)
    with open_store(tmp_path / "store.db") as store:
        for node in ("n1", "n2"):
            ingest(store, report(node, times={0: 100.0, 1: 105.0}))
        recompute_scores(store)
    return tmp_path


def invoke(group: click.Group, *args: str, text: str | bytes = "") -> click.testing.Result:
    """Run in this process; anything but an exit code fails the test."""
    result = click.testing.CliRunner().invoke(group, list(args), input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert len(result.stderr) < 10_000
    return result


def refused(result: click.testing.Result, *codes: int) -> str:
    """The sentence of a run that must fail."""
    assert result.exit_code in (codes or (1, 2)), result.output
    assert "Error: " in result.stderr
    return result.stderr


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for program, group in GROUPS.items():
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{program} {name}", command


def test_every_option_that_is_a_number_is_bounded_on_both_sides() -> None:
    loose = []
    for name, command in all_commands():
        for param in command.params:
            kind = param.type
            if isinstance(kind, click.types.FloatParamType):
                fine = isinstance(kind, Number) and None not in (kind.min, kind.max)
            elif isinstance(kind, click.types.IntParamType) and param.name != "seed":
                fine = isinstance(kind, click.IntRange) and None not in (kind.min, kind.max)
            else:
                continue
            if not fine:
                loose.append(f"{name} {param.opts[0]}")
    assert loose == []


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("option", ["--gpus", "--nodes", "--machines"])
def test_numbers_of_place(folder_of_two: Path, option: str, value: str) -> None:
    refused(invoke(cli, "place", "-g", "2", "--machine", "dgx-1-v100", option, value), 1, 2)


@pytest.mark.parametrize(
    "args",
    [
        ["-g", str(MAX_GPUS)],
        ["-g", "2", "--pattern", LONG],
        ["-g", "2", "--pattern", "0-1," * 20_000 + "0-1"],
        ["-g", "2", "--pattern", "0-\u0663"],
        ["-g", "2", "--class", LONG],
        ["-g", "2", "--policy", LONG],
        ["-g", "2", "--machine", LONG],
        ["-g", "2", "--busy", f"n1:{'9' * 5000}"],
        ["-g", "2", "--busy", f"{LONG}:0"],
        ["-g", "2", "--model", LONG[:300], "--compare", ",,,"],
    ],
)
def test_texts_of_place(folder_of_two: Path, args: list[str]) -> None:
    result = invoke(cli, "place", *args)
    assert result.exit_code in (1, 2)
    assert len(result.stderr) < 5000


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    "option",
    [
        *("--nodes", "--round", "--locality-penalty", "--migration", "--gpus-per-node"),
        *("--days", "--synthetic", "--jobs-per-hour", "--bandwidth-share", "--processes"),
    ],
)
def test_numbers_of_simulate(folder_of_two: Path, option: str, value: str) -> None:
    refused(invoke(cli, "simulate", "--synthetic", "3", *SMALL, option, value))


def test_a_rate_of_a_job_in_centuries_is_refused(folder_of_two: Path) -> None:
    args = ["--synthetic", "9", "--jobs-per-hour", "1e-9", *SMALL]
    assert "more than 30 years" in refused(invoke(cli, "simulate", *args))


def bad_cells() -> list[tuple[int, str]]:
    columns = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    values = ("-1e300", "1e300", "nan", "inf", "99999999999", "9" * 5000, "x", "x" * 9000)
    pairs = [(column, value) for column in columns for value in values]
    pairs.remove((9, "99999999999"))  # a fine priority
    return pairs


def test_bad_cells_of_a_trace_are_bad_rows(folder_of_two: Path) -> None:
    rows = [",".join(["good", *ROW[1:]])]
    for number, (column, value) in enumerate(bad_cells()):
        rows.append(",".join([str(number), *ROW[1:column], value, *ROW[column + 1 :]]))
    (folder_of_two / "t.csv").write_text("\n".join([TRACE, *rows]) + "\n")
    output = json.loads(invoke(cli, "simulate", "t.csv", *SMALL, "--json").stdout)
    assert output["input"]["jobs"] == 1
    bad = output["input"]["bad_rows"]
    assert len(bad) == len(bad_cells())
    assert max(len(row["reason"]) for row in bad) < 300


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sacct", "JobID|Submit|Start|ElapsedRaw|State|AllocTRES\n1|1|2|{}|DONE|gres/gpu={}\n"),
        ("json", '{{"jobs": [{{"job_id": 1, "time": {{"submission": {}, "start": {},'
         ' "elapsed": 9}}, "state": {{"current": "DONE"}}, "tres": {{"allocated": [{{'
         '"type": "gres", "name": "gpu", "count": {}}}]}}}}]}}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "1e300", "nan", "99999999999", "9" * 4000, "9" * 5000])
def test_bad_numbers_of_other_traces(folder_of_two: Path, file: str, text: str, value: str) -> None:
    value = {"nan": "NaN"}.get(value, value) if file == "json" else value
    (folder_of_two / file).write_text(text.format(value, value, value))
    said = refused(invoke(cli, "simulate", file, *SMALL))
    assert "nothing to simulate" in said or "not JSON" in said or "no column 'job_id'" in said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5000,
        b"\xff\xfe" + TRACE.encode("utf-16-le"),
        LONG.encode(),
        f"{TRACE}\n{LONG},0,1,10".encode(),
        f'{TRACE}\n"open,0,1,10\n'.encode() + b"x\n" * 99_000,
        b"{" * 100_000,
        b'{"jobs": ' + b"[" * 100_000,
        b'{"jobs": 1}',
        b'{"jobs": [1, null, [], {}, {"time": 1}]}',
        b"JobID|\n" + LONG.encode(),
        b"1,2,3,4,1\n" * 3,
    ],
)
def test_files_that_are_no_trace(folder_of_two: Path, data: bytes) -> None:
    (folder_of_two / "t").write_bytes(data)
    for option in ("t", "--sacct=t", "--variability=A=t"):
        more = [] if option == "t" else ["--synthetic", "3"] if "var" in option else []
        assert len(refused(invoke(cli, "simulate", option, *more, *SMALL))) < 2000


@pytest.mark.parametrize(
    "content",
    [
        "[]", "[" * 100_000, '{"solo": 1, "collocation": []}',
        '{"solo": {"a": {"1": {"num_gpu": {"1": 1e999}}}}, "collocation": {"a": [1]}}',
        f'{{"solo": {{"a": {{"1": {{"num_gpus": {{"{"9" * 5000}": 9}}}}}}}}, "collocation": {{}}}}',
        f'{{"solo": {{"a": {{"1": {{"num_gpus": {{"1": {"9" * 4000}}}}}}}}}, "collocation": {{}}}}',
    ],
)  # fmt: skip
def test_bad_profiles_of_interference(folder_of_two: Path, content: str) -> None:
    (folder_of_two / "p.json").write_text(content)
    args = ["--synthetic", "3", "--profile", "p.json", *SMALL]
    assert len(refused(invoke(cli, "simulate", *args))) < 2000


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("value", ["", "-1", "nan", "1e308", "9" * 200, LONG, "\0", "é"])
def test_bad_cells_of_an_import(folder_of_two: Path, column: int, value: str) -> None:
    cells = ["0", "n1", "A", "100"]
    cells[column] = value
    rows = "gpu,node,class,value_ms\n" + ",".join(cells) + "\n"
    refused(invoke(profile_cli, "import", "-", text=rows))
    cells = ["A", "node", "9", "m"]
    cells[column] = value
    text = f"class,level,value_ms,model\nA,cluster,9,m\n{','.join(cells)}\n"
    assert invoke(profile_cli, "import", "-", text=text).exit_code in (
        (0, 1) if column == 3 else (1,)
    )


@pytest.mark.parametrize("value", NUMBERS)
def test_bad_times_of_an_import(folder_of_two: Path, value: str) -> None:
    text = "gpu,node,class,value_ms\n0,n1,A,100\n"
    refused(invoke(profile_cli, "import", "-", "--taken-at", value, text=text))


@pytest.mark.parametrize("value", ["", "-1", "nan", "inf", "1e308", "9" * 5000, LONG, "\0"])
def test_bad_samples_and_counters(folder_of_two: Path, value: str) -> None:
    fit = "x,y,z,gbps\n" + f"{value},0,0,{value}\n" * 20
    refused(invoke(profile_cli, "fit-effbw", "-", text=fit))
    refused(invoke(profile_cli, "fit-effbw", "-", "--machine", "dgx-1-v100",
                   text=f"gpus,gbps\n{value},1\n"))  # fmt: skip
    refused(invoke(profile_cli, "classify", "--applications", "-",
                   text=f"application,dram,peak_fu\na,{value},1\nb,2,{value}\n"))  # fmt: skip
    (folder_of_two / "c.csv").write_text("class,dram,peak_fu\nA,1,90\nB,50,50\n")
    counters = "Metric Name,Metric Unit,Metric Value\n"
    for text in (
        f"{counters}dram__throughput.avg.pct_of_peak_sustained_elapsed,%,{value}\n",
        f"#Entity DRAMA SMACT\nGPU 0 {value} 1\n",
    ):
        refused(invoke(profile_cli, "classify", "--centres", "c.csv", "-", text=text))


CONFIG_NUMBERS = ["nan", "inf", "-inf", "1e308", "-1e308", "9" * 30, "9" * 5000, "-1"]


@pytest.mark.parametrize("value", CONFIG_NUMBERS)
@pytest.mark.parametrize(
    "key",
    [
        *("placement.levels.cluster", "placement.levels.switch", "gate.lease_s"),
        *("gate.licence_count", "gate.queue_tests", "selector.round_s", "selector.heartbeat_s"),
        *("selector.command_timeout_s", "setup.register_timeout_s", "classes.A.clock_mhz"),
        *("policies.topo-aware-p.patience_s", "policies.topo-aware.network_gbps"),
        *("policies.topo-aware-p.minimal_utility", "policies.random.seed"),
    ],
)
def test_bad_numbers_of_a_configuration(folder_of_two: Path, key: str, value: str) -> None:
    (folder_of_two / "config.toml").write_text(f"{key} = {value}\n")
    result = invoke(cli, "place", "-g", "2", "--machine", "dgx-1-v100")
    fine = {"policies.random.seed", "policies.topo-aware-p.patience_s"}
    if key not in fine and not (key.startswith("policies") and value in ("9" * 30, "1e308")):
        assert "config.toml: " in refused(result)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        '[store]\npath = "/tmp/a\\u0000b"\n',
        f'[site]\ndefault_class = "{LONG}"\n',
        f"[gate]\nlicence = {LONG!r}\n",
        f"{LONG} = 1\n",
        f"[policies.{LONG}]\n",
        "\0",
    ],
)
def test_bad_configurations(folder_of_two: Path, text: str) -> None:
    file = folder_of_two / "bad.toml"
    file.write_text(text)
    refused(invoke(cli, "--config", str(file), "place", "-g", "2"))


def test_a_damaged_folder_of_results_is_one_sentence(folder_of_two: Path) -> None:
    invoke(cli, "simulate", "--synthetic", "5", *SMALL, "--out", "r")
    assert invoke(cli, "report", "r").exit_code == 0
    summary = (folder_of_two / "r/summary.json").read_text()
    jobs = next(folder_of_two.glob("r/jobs-*.csv"))
    rows = jobs.read_text()
    for file, text in (
        (folder_of_two / "r/summary.json", '{"runs": []}'),
        (folder_of_two / "r/summary.json", "[" * 100_000),
        (folder_of_two / "r/summary.json", summary.replace('"avg_jct_s"', '"x"')),
        (folder_of_two / "r/summary.json", summary.replace("jobs-", "../../../etc/passwd")),
        (jobs, rows.replace(",1,", ",1e308,")),
        (jobs, LONG),
        (jobs, f"a,{LONG}"),
    ):
        file.write_text(text)
        assert str(folder_of_two.name) in refused(invoke(cli, "report", str(folder_of_two / "r")))
        (folder_of_two / "r/summary.json").write_text(summary)
        jobs.write_text(rows)


def test_a_gpu_index_that_no_node_has(folder_of_two: Path) -> None:
    header = "gpu,node,class,value_ms\n"
    refused(invoke(profile_cli, "import", "-", "--new-gpus", text=f"{header}64,n1,A,100\n"))
    # An earlier release took it.
    with open_store(folder_of_two / "store.db") as store, store.write():
        store.execute("INSERT INTO gpus (node, slot, clocks_mhz) VALUES ('n1', 999, '[]')")
    assert "gpu-aware-profile forget n1:999" in refused(invoke(cli, "place", "-g", "2"))
    assert invoke(profile_cli, "forget", "n1:999").exit_code == 0
    assert invoke(cli, "place", "-g", "2").exit_code == 0


def test_large_patterns_are_not_built_for_a_question() -> None:
    for name in PATTERN.words:
        assert parse_pattern(name).has_edges(10**18) == (name != "none")


def test_a_long_value_is_cut_in_sentences() -> None:
    assert quoted("abc") == "'abc'"
    assert len(quoted("x" * 10**6)) < 80
    assert len(quoted([1] * 10**4)) < 80


def heed_interrupts() -> None:
    """Where the tests run in the background, SIGINT is ignored and would stay so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


RUN = "from slurm_gpu_aware.cli.entry import {} as main; main()"


def run_process(argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=3000, check=False, **more)


def shell(site: Path, words: str, program: str = "gpu_aware") -> subprocess.CompletedProcess[str]:
    """Run with the shell's redirections in ``words``."""
    line = f'{sys.executable} -c "{RUN.format(program)}" {words}'
    return run_process(["/bin/sh", "-c", line], cwd=site)


@pytest.mark.parametrize("words", ["place -g 2", "place -g 2 --json", "--help", "place --help"])
@pytest.mark.parametrize(
    ("where", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_output_that_cannot_be_written(
    folder_of_two: Path, words: str, where: str, reason: str
) -> None:
    done = shell(folder_of_two, f"{words} {where}")
    assert (done.returncode, done.stderr) == (1, f"Error: the output: {reason}\n")


def test_closed_streams_do_not_become_the_store(folder_of_two: Path) -> None:
    (folder_of_two / "t.csv").write_text("gpu,node,class,value_ms\n0,n1,A,101\n")
    assert shell(folder_of_two, "import t.csv <&- >&- 2>&-", "gpu_aware_profile").returncode == 0
    assert shell(folder_of_two, "place -g 2 2>&- >/dev/null").returncode == 0
    assert shell(folder_of_two, "place -g 99 2>/dev/full").returncode == 1
    with open_store(folder_of_two / "store.db", readonly=True) as store:
        assert store.query("SELECT max(value_ms) AS most FROM timings")[0]["most"] == 105.0


@pytest.mark.parametrize("program", ["gpu_aware", "gpu_aware_profile"])
@pytest.mark.parametrize("module", ["click", "slurm_gpu_aware.cli.run", "tomllib"])
def test_an_interrupt_while_modules_are_imported(
    folder_of_two: Path, program: str, module: str
) -> None:
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
{RUN.format(program)}
"""
    words = ["place", "-g", "2"] if program == "gpu_aware" else ["show"]
    done = run_process([sys.executable, "-c", code, *words], preexec_fn=heed_interrupts)
    assert done.returncode == 130
    assert (done.stdout + done.stderr).strip() in ("", "interrupted")


def children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_simulation_that_is_ended_leaves_no_process(
    folder_of_two: Path, number: signal.Signals
) -> None:
    words = ["simulate", "--synthetic", "100000", "--nodes", "500", "--gpus-per-node", "8"]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN.format("gpu_aware"), *words, "--processes", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    watch = Stopwatch()
    while len(children(process.pid)) < 2 and watch.idle_s < 60:
        time.sleep(0.1)
    workers = children(process.pid)
    assert len(workers) == 2
    time.sleep(0.5)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        os.kill(process.pid, number)
    _, said = process.communicate(timeout=300)
    watch = Stopwatch()
    while any(Path(f"/proc/{w}/exe").exists() for w in workers) and watch.idle_s < 60:
        time.sleep(0.1)
    left = [w for w in workers if Path(f"/proc/{w}/exe").exists()]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert left == []
    assert "Traceback" not in said
    assert process.returncode == (130 if number == signal.SIGINT else -number)


@pytest.mark.parametrize(
    ("args", "needed"),
    [
        (("--draw", "nodes"), "--draw needs --variability"),
        (("--jobs-per-hour", "3"), "--jobs-per-hour needs --synthetic"),
        (("--days", "3"), "--days needs --sacct or --what-if"),
        (("--gpu-model", "a100"), "--gpu-model needs --eta"),
        (("--synthetic", "5", "--class-column", "kind"), "--class-column needs TRACE"),
    ],
)
def test_an_option_without_effect_is_refused(
    folder_of_two: Path, args: tuple[str, ...], needed: str
) -> None:
    trace = () if "--synthetic" in args else (str(folder_of_two / "trace.csv"),)
    assert needed in refused(invoke(cli, "simulate", *trace, *SMALL, *args), 2)


def test_a_trace_may_come_from_stdin(folder_of_two: Path) -> None:
    command = [sys.executable, "-m", "slurm_gpu_aware.cli.main", "simulate", "-", *SMALL, "--json"]
    done = run_process(command, input="job_id,submit_s,gpus,duration_s\n1,0,2,10\n")
    found = json.loads(done.stdout)
    assert (found["trace"], found["runs"][0]["jobs"]) == ("stdin", 1)


@pytest.mark.parametrize("option", [("--eta", "1.5"), ("--due", "3-1")])
def test_shares_and_factors_are_checked_before_any_file(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    (config := tmp_path / "config.toml").write_text(f'[store]\npath = "{tmp_path}/none.db"\n')
    command = ("--config", str(config), "simulate", str(tmp_path / "none.csv"))
    assert f"{option[0]} '{option[1]}': expected" in refused(invoke(cli, *command, *option), 1)


@pytest.mark.parametrize(
    "modes", [("--roll", "--undo"), ("--roll", "--install"), ("--undo", "--remove")]
)
def test_modes_of_setup_exclude_each_other(modes: tuple[str, str]) -> None:
    assert "exclude each other" in refused(invoke(cli, "setup", *modes), 2)


@pytest.mark.parametrize("command", [("rescore",), ("forget", "n1")])
def test_a_mistyped_store_is_not_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    store = tmp_path / "none.db"
    assert "no store there" in refused(invoke(profile_cli, *command, "--store", str(store)), 1)
    assert not store.exists()
