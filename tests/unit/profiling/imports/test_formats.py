"""Files of DCGM and ReFrame: which value of which GPU becomes which time, and what is refused.

The texts have the layout of the programs that write them: dcgmi/Diag.cpp of DCGM 3.3 and 4.6,
reframe/core/logging.py and the report of ReFrame 4.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import ingest, report
from test_bandwidth_formats import nccl, nvbandwidth_json, nvbandwidth_text

from gpu_aware_profile.imports.formats.reader import ReadOptions, Source
from gpu_aware_profile.imports.formats.registry import FORMATS, read_measured
from gpu_aware_profile.store_writer import newest_timings
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.store.database import open_store

Call = Callable[..., click.testing.Result]
Said = Callable[..., str]
NO_OPTIONS = ReadOptions()


def times(path: Path) -> dict[tuple[str, int], float]:
    with open_store(path) as store:
        return {(row.node, row.slot): row.value_ms for row in newest_timings(store)}


def dcgm4(rates: dict[int, float], name: str = "diagnostic", status: str = "Pass") -> str:
    """As ``dcgmi diag -r 3 -v -j`` of DCGM 4 prints it."""
    results = [
        {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entity_id": gpu,
            "info": [
                "Allocated space for 318 double precision output matrices from 80 bytes available.",
                f"GPU {gpu} calculated at approximately {rate:.2f} gigaflops during this test",
            ],
            "status": status,
        }
        for gpu, rate in rates.items()
    ]
    test = {"name": name, "results": results, "test_summary": {"status": status}}
    other = {"name": "memory", "results": [{**r, "info": ["Allocated 1 bytes"]} for r in results]}
    categories = [{"category": "Hardware", "tests": [other, test]}]
    metadata = {"version": "4.6.0", "Driver Version Detected": "570.86.15"}
    diagnostic = {"DCGM Diagnostic": {"test_categories": categories}}
    return json.dumps({**diagnostic, "entity_groups": [], "metadata": metadata})


def dcgm3(gpu: int, info: str, name: str = "Diagnostic") -> str:
    result = {"gpu_id": str(gpu), "info": info, "status": "Pass"}
    tests = [{"name": name, "results": [result]}]
    categories = [{"category": "Hardware", "tests": tests}]
    diagnostic = {"DCGM GPU Diagnostic": {"test_categories": categories}}
    return json.dumps({**diagnostic, "version": "3.3.9"})


def ingest_backwards(path: Path, gpus: int = 4) -> None:
    """Slurm's index runs against the order of PCI addresses, by which NVML and DCGM count."""
    swept = report("n1", times=dict.fromkeys(range(gpus), 100.0))
    for gpu in swept["gpus"]:
        gpu["pci"] = f"00000000:{0x40 - gpu['index']:02X}:00.0"
    with open_store(path) as store:
        ingest(store, swept)


def test_dcgm_rates_become_times_of_the_gpus_in_pci_order(
    store_path: Path, imported: Said, tmp_path: Path
) -> None:
    ingest_backwards(store_path)
    (tmp_path / "n1.json").write_text(dcgm4({0: 20000.0, 1: 19000.0, 2: 20000.0, 3: 20000.0}))
    said = imported("n1.json", "--class", "B")
    assert "imported 4 timings of 4 GPUs" in said
    assert "the values were rates in gigaflops; stored are times, 1000 / rate" in said
    with open_store(store_path) as store:
        found = {row.slot: row.value_ms for row in newest_timings(store) if row.app_class == "B"}
    assert found == {3: 0.05, 2: pytest.approx(1000 / 19000), 1: 0.05, 0: 0.05}


def test_a_gpu_that_the_sweep_could_not_read_makes_the_order_uncertain(
    store_path: Path, refused: Said
) -> None:
    lost = [{"index": 1, "call": "nvmlDeviceGetHandleByIndex", "error": "GPU is lost"}]
    with open_store(store_path) as store:
        ingest(store, report("n1", times={0: 100.0, 2: 100.0}, errors=lost))
    said = refused("-", "--node", "n1", "--class", "B", text=dcgm4({0: 20000.0, 1: 20000.0}))
    assert "result 1: a GPU of n1 could not be read: nvml:0 is not certain" in said


def test_dcgm_3_and_several_iterations(store_path: Path, imported: Said) -> None:
    text = dcgm3(0, "GPU 0 calculated at approximately 20000.00 gigaflops during this test")
    imported("-", "--node", "n1", "--class", "A", text=text)
    assert times(store_path) == {("n1", 0): 0.05}
    three = {"iterations": [json.loads(dcgm4({0: rate})) for rate in (19000.0, 25000.0, 20000.0)]}
    imported("-", "--node", "n1", "--class", "A", text=json.dumps(three))
    assert times(store_path) == {("n1", 0): 0.05}  # the median of three runs


@pytest.mark.parametrize(
    "info", ["GPU 0 relative stress level\t577", "GPU 0 relative stress level:\t577"]
)
def test_the_stress_tests_have_a_rate_too(store_path: Path, imported: Said, info: str) -> None:
    text = dcgm3(0, f"GPU 0 {info}", name="Targeted Stress")
    imported("-", "--node", "n1", "--class", "A", "--value", "targeted_stress", text=text)
    assert times(store_path) == {("n1", 0): pytest.approx(1000 / 577)}


@pytest.mark.parametrize("status", ["Skip", "Not Run"])
def test_what_dcgm_skips_is_left_out(imported: Said, status: str) -> None:
    text = dcgm4({0: 9000.0, 1: 9001.0})
    first = text.index('"Pass"', text.index("9000.00"))
    text = text[:first] + text[first:].replace("Pass", status, 1)
    said = imported("-", "--class", "A", "--node", "n1", text=text)
    assert "diagnostic, which dcgmi diag has skipped (1)" in said
    assert "imported 1 timing of 1 GPU into" in said


def test_a_node_in_another_prefix_is_refused(refused: Said, tmp_path: Path) -> None:
    for node, rate in {"n1": 20000.0, "n2": 20.0}.items():
        (tmp_path / f"{node}.cluster.json").write_text(dcgm4({0: rate, 1: rate}))
    said = refused("n1.cluster.json", "n2.cluster.json", "--class", "A")
    assert "n2:0, n2:1 take 1e+03 times as long" in said
    assert "(are prefixes such as G and T mixed up?)" in said


LOG = """\
result|job_completion_time|descr|job_completion_time_unix|job_nodelist|gpu|gemm_value|gemm_unit|gemm_ref|temp_value|temp_unit|name
pass|2024-02-21T22:51:16||1708555876.5|n1|0|19.5|TF/s|0|61|degC|gemm
fail|2024-02-21T22:51:19||1708555879.5|n1|1|15.0|TF/s|19|71|degC|gemm
"""


def test_a_perflog_with_the_gpu_as_a_parameter(store_path: Path, imported: Said) -> None:
    """A failed test with a value counts: a slow GPU fails the reference."""
    imported("-", "--class", "A", "--value", "gemm", text=LOG)
    assert times(store_path) == {
        ("n1", 0): pytest.approx(1000 / 19.5),
        ("n1", 1): pytest.approx(1000 / 15),
    }
    with open_store(store_path) as store:
        assert {row.taken_at for row in newest_timings(store)} == {1708555876.5, 1708555879.5}
    later = LOG.replace("1708555876.5", "1708555999.5").replace("|19.5|", "|10.0|")
    imported("-", "--class", "A", "--value", "gemm", text=later)
    assert times(store_path)["n1", 0] == 100.0  # the newest run counts, the others stay
    with open_store(store_path) as store:
        assert len(store.query("SELECT * FROM timings")) == 3


def test_a_perflog_with_a_variable_per_gpu_and_another_delimiter(
    store_path: Path, imported: Said
) -> None:
    text = (
        "result,job_completion_time,system:partition,environ,gpu0_t_value,gpu0_t_unit,gpu1_t_value,gpu1_t_unit\n"
        "pass,2024-02-26T22:39:52+00:00,cl:gpu,cuda,1.5,s,1.75,s\n"
    )
    imported("-", "--class", "A", "--node", "n7", "--value", "gpu{gpu}_t", text=text)
    assert times(store_path) == {("n7", 0): 1500.0, ("n7", 1): 1750.0}
    with open_store(store_path) as store:
        assert {row.taken_at for row in newest_timings(store)} == {1708987192.0}


def test_numbers_of_nvidia_smi_are_those_in_pci_order(store_path: Path, imported: Said) -> None:
    ingest_backwards(store_path, 2)
    text = "job_nodelist|gpu0_value|gpu0_unit|gpu1_value|gpu1_unit\nn1|101|ms|102|ms\n"
    imported("-", "--class", "A", "--value", "gpu{nvml}", text=text)
    assert times(store_path) == {("n1", 0): 102.0, ("n1", 1): 101.0}


def test_a_perflog_with_a_line_per_variable(store_path: Path, imported: Said) -> None:
    text = (
        "job_completion_time_unix|job_nodelist|perf_var|perf_value|perf_unit\n"
        "1708555876|n1|gpu2_ms|12.5|ms/iter\n1708555876|n1|gpu3_ms|13|ms/iter\n"
    )
    imported("-", "--class", "A", "--value", "gpu{gpu}_ms", text=text)
    assert times(store_path) == {("n1", 2): 12.5, ("n1", 3): 13.0}


def reframe_report(**values: Any) -> str:
    cases = [
        {
            "name": "gemm",
            "result": "pass",
            "job_nodelist": ["n1"],
            "job_completion_time_unix": 1708555876.5,
            "perfvalues": {
                f"cl:gpu:{name}": [value, 0, None, None, "Gflop/s", "pass"]
                for name, value in values.items()
            },
        },
        {"name": "build", "result": "fail", "job_nodelist": None, "perfvalues": {}},
    ]
    session = {"data_version": "4.1", "hostname": "login1", "uuid": "x"}
    return json.dumps({"session_info": session, "runs": [{"testcases": cases}]})


def test_a_report_of_reframe(store_path: Path, imported: Said) -> None:
    text = reframe_report(gpu0=500.0, gpu1=400.0, gpu_perf_min=400.0)
    imported("-", "--class", "C", "--value", "gpu{gpu}", text=text)
    assert times(store_path) == {("n1", 0): 2.0, ("n1", 1): 2.5}


OF_N1 = ("--node", "n1", "--class", "A")
GEMM = ("--class", "A", "--value", "gemm")
VERBOSE = "run dcgmi diag with -v"
REFUSED = [
    # What DCGM does not say
    ("does not name its node; give it with --node", dcgm4({0: 1e4}), "--class", "A"),
    ("give it with --class NAME", dcgm4({0: 1e4}), "--node", "n1"),
    ("1: GPU 0: the result of diagnostic is 'Fail'", dcgm4({0: 1e4}, status="Fail"), *OF_N1),
    (VERBOSE, dcgm3(0, "Allocated"), *OF_N1),
    (VERBOSE, dcgm3(0, "GPU 1 calculated at approximately 9.00 gigaflops during this"), *OF_N1),
    ("a rate must be above 0", dcgm4({0: 0.0}), *OF_N1),
    ("no result of the test sm_stress", dcgm4({0: 1e4}), *OF_N1, "--value", "SM Stress"),
    ("--value takes diagnostic, targeted_s", dcgm4({0: 1e4}), *OF_N1, "--value", "pcie"),
    ("failed: 'it timed out'", '{"DCGM Diagnostic": {"runtime_error": "it timed out"}}', *OF_N1),
    (
        "no result of the test diagnostic (of dcgmi diag -r 3); ",
        '{"DCGM Diagnostic": {"test_categories": []}}',
        *OF_N1,
    ),
    # What ReFrame does not say
    ("several performance variables; choose one with --value", LOG, "--class", "A"),
    ("no performance variable 'hpl'; there are: gemm, temp", LOG, *GEMM[:3], "hpl"),
    ("the unit 'degC': neither a time (ms) nor a rate", LOG, *GEMM[:3], "temp"),
    ("may occur once each", LOG, *GEMM[:3], "{gpu}{gpu}"),
    *(
        (why, LOG.replace(old, new), *GEMM)
        for old, new, why in (
            ("|n1|0|", "|n1,n2|0|", "'n1,n2' is not a node name"),
            ("|n1|0|", "|None|0|", "line 2: job_nodelist is 'None': not one node"),
            ("|n1|0|", "|n1|None|", "neither {gpu} in --value nor a logged"),
            ("|19.5|", "|None|", "gemm has no value: the test did not get so far"),
            ("|19.5|", "|nan|", "gemm is 'nan': not a finite number"),
            ("|19.5|", "|-1|", "a rate must be above 0"),
            ("|19.5|", "|1e-320|", "line 2: value_ms is 'inf': not a finite"),
            ("|19.5|TF/s", "|19500|GF/s", "GF/s and TF/s cannot be compared"),
            ("|19.5|TF/s", "|19500|ms", "TF/s and times cannot be compared"),
            ("|0|61", "|0|61|x", "line 2: 13 fields, expected 12"),
            ("1708555876.5", "9e9", "not a past time in Unix seconds"),
            ("1708555876.5", "x", "job_completion_time_unix is 'x'"),
        )
    ),
    ("the field perf_var needs perf_value", "gemm_value|perf_var\n1|gemm\n", "--class", "A"),
    # What has no format, or another one
    ("not a file of the format dcgm-diag", LOG, "--format", "dcgm-diag"),
    ("none of the formats probe-report, dcgm-diag, ", '{"a": 1}'),
    ("not JSON", "{"),
    ("not JSON", dcgm4({0: 1.0}) + "}"),
    *(
        (why, text, *OF_N1)
        for text, why in (
            ("\tNIC0\tNIC1\nNIC0\t X \tPIX\n", "formats probe-report, dcgm-diag, nvbandwidth, "),
            ("a,b,c\n1,2,3\n", "none of the formats probe-report, dcgm-diag, "),
            (
                '{"version": 2, "args": ["all_reduce_perf"], "nccl_version": 22902}',
                "nccl-tests -J does not list all GPUs; import the text that the program prints",
            ),
            ("| Diagnostic                | Result |\n", "run dcgmi diag with -j"),
            ("Successfully ran diagnostic for group.\n+---+\n", "run dcgmi diag with -j"),
            ("<<n1>> # nThread 1 nGpus 2 min\n", "like nccl-tests with a prefix before each line"),
            ("<<n1>> nvbandwidth Version: v0.8\n", "looks like nvbandwidth with a prefix"),
            ("gpu;node;class;value_ms\n0;n1;A;101.3\n", "separated by ';', expected ','"),
            ("gpu\tnode\tclass\tvalue_ms\n0\tn1\tA\t1\n", "separated by '\\t', expected ','"),
            ("", "it is empty"),
            ("gpu,node,klass\n0,n1,A\n", "no column "),
        )
    ),
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_does_not_say_is_asked_for_or_refused(
    refused: Said, store_path: Path, case: tuple[str, ...]
) -> None:
    why, text, *options = case
    assert why in refused("-", *options, text=text)
    if store_path.exists():
        assert times(store_path) == {}


def test_a_unit_that_is_not_recorded_is_given(store_path: Path, imported: Said) -> None:
    text = LOG.replace("TF/s", "None")
    imported("-", "--class", "A", "--value", "gemm", "--unit", "s", text=text)
    assert times(store_path) == {("n1", 0): 19500.0, ("n1", 1): 15000.0}


def test_gpus_are_named_by_pci_address_too(store_path: Path, imported: Said, refused: Said) -> None:
    with open_store(store_path) as store:
        ingest(store, report("n1"))
    text = "gpu,node,value_ms,taken_at\n0000:02:00.0,n1,101,\nnvml:3,n1,102,2000\n"
    imported("-", "--class", "A", text=text)
    assert times(store_path) == {("n1", 0): 100, ("n1", 1): 100, ("n1", 2): 101, ("n1", 3): 102}
    for gpu, why in {
        "0000:09:00.0": "no sweep has seen a GPU with the PCI address 0000:09:00.0 on node n1",
        "nvml:4": "node n1 has 4 GPUs",
        "nvml:x": "neither an index (0, 1, ...) nor UUID or PCI address",
    }.items():
        assert why in refused("-", "--class", "A", text=f"gpu,node,value_ms\n{gpu},n1,101\n")


def test_files_of_one_import_measure_one_thing(
    run_import: Call, refused: Said, tmp_path: Path
) -> None:
    (tmp_path / "n1.json").write_text(dcgm4({0: 1e4}))
    (tmp_path / "n1.csv").write_text("gpu,node,value_ms\n0,n1,100\n")
    said = refused("n1.json", "n1.csv", "--class", "A")
    assert "the files differ in what they measure or in its unit" in said
    assert run_import("n1.json", "n1.csv", "--node", "n1").exit_code == 2


KEYS = (
    *("tests", "results", "name", "info", "entity_id", "gpu_id", "status", "warnings", "runs"),
    *("testcases", "perfvalues", "job_nodelist", "gpu", "iterations", "test_categories"),
    *("session_info", "job_completion_time"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["DCGM Diagnostic", "session_info"]),
    JSON,
    st.sampled_from([None, "diagnostic", "gemm", "{gpu}"]),
)
def test_no_json_breaks_a_reader(title: str, inner: Any, value: str | None) -> None:
    """Each text is a table or one sentence."""
    good = {**json.loads(dcgm4({0: 1e4})), **json.loads(reframe_report(gemm=1.0, gpu0=2.0))}
    text = json.dumps(good | {title: inner, "runs": [{"testcases": [inner]}]})
    fuzz(text, value)


@given(
    st.text(alphabet="|,;\n0123456789.abc_gpu{}value ", max_size=200),
    st.sampled_from([None, "gemm", "gpu{gpu}"]),
)
def test_no_text_breaks_a_reader(text: str, value: str | None) -> None:
    fuzz(text, value)
    fuzz(LOG + text, value)
    fuzz(text.join(LOG.split("|")), value)


@given(
    st.sampled_from([nvbandwidth_text(), nvbandwidth_json(), nccl()]),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30), st.text(max_size=12)), max_size=6),
)
def test_no_damage_breaks_a_reader_of_bandwidths(
    text: str, damages: list[tuple[int, int, str]]
) -> None:
    fuzz(damaged(text, damages), None)


def damaged(text: str, damages: list[tuple[int, int, str]]) -> str:
    """``damages``: where, how many characters go, and what comes in their place."""
    for at, length, put in damages:
        text = text[:at] + put + text[at + length :]
    return text


def fuzz(text: str, value: str | None) -> None:
    source = Source("stdin", text)
    for reader in FORMATS.values():
        try:
            if reader.matches(source):
                table = reader.read(source, ReadOptions("n1", value)).table
                assert all(set(row.cells) == set(table.columns) for row in table.rows)
        except SourceError as exc:
            if len(str(exc)) > 2000:
                raise


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from([LOG, dcgm4({0: 2e4, 1: 1.9e4}), reframe_report(gemm=500.0)]),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 9), st.text(max_size=9)), max_size=4),
)
def test_a_damaged_file_is_stored_whole_or_refused_in_sentences(
    store_path: Path, run_import: Call, text: str, damages: list[tuple[int, int, str]]
) -> None:
    file = store_path.with_name("n1.txt")
    file.write_text(damaged(text, damages), errors="surrogatepass")
    done = run_import("n1.txt", "--class", "A", "--value", "gemm", "--new-gpus")
    if done.exit_code == 1 and "no test with a rate" in done.stderr:
        done = run_import("n1.txt", "--class", "A", "--new-gpus")
    assert done.exit_code in (0, 1), done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
    if store_path.exists():
        with open_store(store_path) as store:
            for node, value in store.query("SELECT node, value_ms FROM timings"):
                assert node
                assert 1e-6 <= value <= 1e12


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("registry", "reader"):
        monkeypatch.setattr(f"gpu_aware_profile.imports.formats.{module}.MAX_CHARACTERS", 1000)
    for text in (dcgm4(dict.fromkeys(range(9), 1.0)), LOG * 20):
        path = tmp_path / "large"
        path.write_text(text)
        with pytest.raises(SourceError, match="MiB"):
            read_measured(path, NO_OPTIONS)


def test_lines_around_json_are_skipped(store_path: Path, imported: Said) -> None:
    text = f"WARNING: from nvvs\n{dcgm4({0: 20000.0})}\nsrun: done\n"
    imported("-", "--node", "n1", "--class", "A", text=text)
    assert times(store_path) == {("n1", 0): 0.05}


def test_nodes_with_dots(store_path: Path, imported: Said, tmp_path: Path) -> None:
    with open_store(store_path) as store:
        ingest(store, report("r1.gpu01"))
    files = ("10.140.71.103.json", "10.140.79.152.json", "r1.gpu01.json", "n1.site.org.json")
    for name in files:
        (tmp_path / name).write_text(dcgm4({0: 20000.0}))
    said = imported(*files, "--class", "B", "--new-gpus")
    assert {node for node, _ in times(store_path)} == {
        *("10.140.71.103", "10.140.79.152", "r1.gpu01", "n1")
    }
    assert "n1.site.org.json: taken for node n1; if that is wrong, give --node" in said
    assert said.count("taken for node") == 1


def test_reframe_before_4_7_has_a_list_of_variables(
    store_path: Path, run_import: Call, imported: Said
) -> None:
    variables = [
        {"name": f"gpu{n}_gemm", "reference": 0, "unit": "Gflop/s", "value": value}
        for n, value in enumerate((19000.0, 18000.0))
    ]
    case = {"name": "Gemm", "job_nodelist": ["nid001"], "perfvars": variables, "result": "success"}
    old = {"session_info": {"version": "4.6.0"}, "runs": [{"testcases": [case]}]}
    imported("-", "--class", "A", "--value", "gpu{gpu}_gemm", text=json.dumps(old))
    assert times(store_path) == {
        ("nid001", 0): pytest.approx(1000 / 19000),
        ("nid001", 1): pytest.approx(1000 / 18000),
    }
    case["fail_phase"] = "sanity"
    done = run_import("-", "--class", "A", "--value", "gpu{gpu}_gemm", text=json.dumps(old))
    assert "the test failed in the phase 'sanity'" in done.stderr


def test_reports_of_nodes_enter_the_store_without_slurm(
    store_path: Path, refused: Said, imported: Said, tmp_path: Path
) -> None:
    for node in ("n1", "n2"):
        (tmp_path / f"{node}.json").write_text(json.dumps(report(node, times={0: 100.0, 1: 101.0})))
    assert "imported reports of 2 nodes" in imported("n1.json", "n2.json")
    both = {0: 100.0, 1: 101.0}
    assert times(store_path) == {(n, k): ms for n in ("n1", "n2") for k, ms in both.items()}
    (tmp_path / "t.csv").write_text("gpu,node,class,value_ms\n0,n1,A,1\n")
    assert "apart from other files" in refused("n1.json", "t.csv")
    broken = json.dumps(report("n1") | {"gpus": 7})
    assert "probe report of n1: " in refused("-", text=broken)
    assert "leave --node, --value out" in refused("n1.json", "--node", "n1")
