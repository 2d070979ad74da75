"""What a user may not ask for, in every spelling that Slurm knows, and texts of any length."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from cpu_time import least_cpu_s
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from luafilter import CONF, ERROR, OPERATOR, SUCCESS, Filter, MakeFilter

NODE = {"tres_per_node": "gres/gpu:2"}
FOREIGN = {"tres_per_node": "gres/gpu:2", "licenses": "matlab:1"}
SAME_AS_G3 = "xfUUwfUUxfUU"
LONGEST = 1024
MEGABYTES = 1_000_000
SIGNS = [byte for byte in range(33, 127) if chr(byte) not in ",:=/"]

PARSED = {
    "licenses": "--licenses",
    "reservation": "--reservation",
    "extra": "--extra",
    "tres_per_node": "--gres",
    "tres_per_job": "--gpus",
    "tres_per_task": "--tres-per-task",
    "tres_per_socket": "--gpus-per-socket",
    "cpus_per_tres": "--cpus-per-gpu",
    "mem_per_tres": "--mem-per-gpu",
    "tres_bind": "--gpu-bind",
    "tres_freq": "--gpu-freq",
    "features": "--constraint",
}
COPIED = ["req_nodes", "exc_nodes", "admin_comment"]
"""Only written into the record of a parked job."""
LOOKED_AT = ["dependency", "prefer", "batch_features", "burst_buffer", "script"]
"""Only asked whether they are there."""


def build_id(name: str, *, signed: bool = True) -> int:
    """Slurm's ``gres_build_id`` (src/interfaces/gres.c, the same from 24.11 to 26.05)."""
    total = 0
    for i, byte in enumerate(name.encode("utf-8", "surrogateescape")):
        total += (byte - 256 if signed and byte > 127 else byte) << (8 * (i % 4))
    return total % 2**32


def colliding(same: int | str, start: str = "", *, signed: bool = True) -> str:
    """A type that begins with ``start`` and is another one, or ``g<same>``, to Slurm."""
    name = start + "U" * (-len(start.encode()) % 4)
    known = same if isinstance(same, str) else f"g{same}"
    rest = build_id(known) - build_id(name, signed=signed)
    columns = []  # three more letters for each of the four places in a word
    for _ in range(4):
        column = next(c for c in product(SIGNS, repeat=3) if (sum(c) - rest) % 256 == 0)
        rest = (rest - sum(column)) >> 8
        columns.append(column)
    return name + "".join(chr(column[row]) for row in range(3) for column in columns)


INDEX_TYPES = {
    "of the finding": SAME_AS_G3,
    "plain": "g0",
    "highest": "g1023",
    "another": colliding(0),
    "two digits": colliding(17),
    "with a colon": colliding(3, "x:b"),
    "with an equals sign": colliding(3, "x=b"),
    "of other bytes, char is signed": colliding(3, "\u00e9"),
    "of other bytes, char is unsigned": colliding(3, "\u00e9", signed=False),
}
FORMS: list[tuple[str, str]] = [
    ("tres_per_node", "gres/gpu:{}:1"),
    ("tres_per_node", "gres/gpu:{}"),
    ("tres_per_node", "gres/gpu:{}=2"),
    ("tres_per_node", "gpu:{}:1"),
    ("tres_per_node", "gres:gpu:{}:1"),
    ("tres_per_node", "gres/tmp:1,gres/gpu:{}:1"),
    ("tres_per_node", "gres/gpu:1,gres/gpu:{}:1"),
    ("tres_per_node", " gres/gpu:{}:1"),
    ("tres_per_node", "\ngres/gpu:{}:1"),
    ("tres_per_node", "xgres/gpu:{}:1"),
    ("tres_per_node", "gresgpu:{}:1"),
    ("tres_per_job", "gres/gpu:{}:1"),
    ("tres_per_socket", "gres/gpu:{}:1"),
    ("tres_per_task", "cpu=2,gres/gpu:{}=1"),
    ("cpus_per_tres", "gres/gpu:{}:4"),
    ("mem_per_tres", "gres/gpu:{}:4"),
    ("tres_per_node", "gres/shard:{}:4"),
    ("tres_per_node", "gres/shard:{}"),
    ("tres_per_node", "gres/shard={}=4"),
    ("tres_per_node", "shard:{}:4"),
    ("tres_per_node", "gres:shard:{}:4"),
    ("tres_per_node", "gresshard:{}:4"),
    ("tres_per_node", "gres/tmp:1, gres/shard:{}:4"),
    ("tres_per_node", "gres/shard:1,gres/shard:{}:1"),
    ("tres_per_node", "gres/gpu:1,gres/shard:{}:1"),
    ("tres_per_job", "gres/shard:{}:4"),
    ("tres_per_socket", "gres/shard:{}:4"),
    ("tres_per_task", "cpu=2,gres/shard:{}=1"),
    ("tres_per_node", "gres/mps:{}:50"),
]
MODELS = [
    *(
        "a100",
        "A100",
        "h100",
        "gh200",
        "v100-sxm2",
        "nvidia_a100_80gb_pcie",
        "tesla_v100-sxm2-32gb",
    ),
    *(
        "geforce_rtx_2080_ti",
        "1g.5gb",
        "a100_1g.10gb",
        "mi300x",
        "l40s",
        "gaudi2",
        "g",
        "gpu",
        "3g",
    ),
]
LICENCE_OF_TASKS = [
    "license/gpuaware:100000",
    "license/gpuaware",
    "cpu=1,license/gpuaware=1",
    "license:gpuaware=1",
    "licensegpuaware=1",
    "gres/gpu:1,license/gpuaware_pool=1",
    "gres/gpu:license/gpuaware:1",  # Slurm's search for "license" knows no borders
    "gres/tmp:licensea;gpuaware:1",
]


@pytest.mark.parametrize("kind", INDEX_TYPES.values(), ids=INDEX_TYPES.keys())
def test_what_slurm_takes_for_an_index_is_refused(filter_: Filter, kind: str) -> None:
    for field, form in FORMS:
        asked = {field: form.format(kind)}
        for out in (
            filter_.submit(**asked),
            filter_.submit(**{**NODE, **asked}, comment="place=off"),
            filter_.modify(FOREIGN, **asked),
        ):
            assert (out.rc, out.written, out.log) == (ERROR, [], []), form
            (sentence,) = out.messages
            assert "names one GPU of a node" in sentence
            assert sentence.isascii()
        assert filter_.submit(OPERATOR, **asked).rc == SUCCESS


@pytest.mark.parametrize("same", ["a100", "A100", "Tesla", "NVIDIA-A100(80G)"])
def test_what_slurm_takes_for_a_type_of_the_site_waits_at_the_gate(
    make_filter: MakeFilter, same: str
) -> None:
    """No model of the site, but Slurm does not refuse it on nodes with the type."""
    filter_ = make_filter(more=f'models = {{ "v100" }}, node_types = {{ "{same}" }}')
    out = filter_.submit(tres_per_node=f"gres/gpu:{colliding(same)}:4")
    assert (out.rc, out.job["licenses"]) == (SUCCESS, "gpuaware:1")
    assert "licenses" not in filter_.submit(tres_per_node="gres/gpu:b100:4").written


def test_the_sentence_names_both_types(filter_: Filter) -> None:
    (sentence,) = filter_.submit(tres_per_node=f"gres/gpu:{SAME_AS_G3}:1").messages
    assert f"GPU type {SAME_AS_G3}, to Slurm the same as g3, names" in sentence


@pytest.mark.parametrize(
    ("gres", "text"),
    [
        (
            "gpu:g1:1",
            "GPU type g1 names one GPU of a node, which is chosen for you; ask for a number",
        ),
        ("shard:g1:4", "shard type g1 names one GPU of a node, which is chosen for you; ask for a"),
        ("mps:g1:50", "mps type g1 names one GPU of a node, which is chosen for you; ask for MPS"),
    ],
)
def test_the_sentence_says_what_to_ask_for(filter_: Filter, gres: str, text: str) -> None:
    (sentence,) = filter_.submit(tres_per_node=f"gres/{gres}").messages
    name = gres.partition(":")[0]
    assert sentence.startswith(f"gpu-aware: {text}")
    assert f"({name}:1)" in sentence
    assert ("or a model" in sentence) is (name == "gpu")


def test_other_gres_may_have_such_types(filter_: Filter) -> None:
    for text in (
        "gres/nic:g1:1",
        "gres/shards:g1:1",
        "gres/tmp:1,gres/shard:4",
        "gres/shard:a100:4",
    ):
        assert filter_.submit(tres_per_node=text).rc == SUCCESS


def test_models_are_no_index(filter_: Filter) -> None:
    for kind, (field, form) in product(MODELS, FORMS):
        assert filter_.submit(**{field: form.format(kind)}).rc == SUCCESS, (kind, form)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.text(st.characters(codec="ascii", exclude_characters="\x00,:="), max_size=20))
def test_the_sum_is_slurms(filter_: Filter, name: str) -> None:
    """What the filter calls the same as an index is the same, and the other way round."""
    same = build_id(name) in {build_id(f"g{i}") for i in range(1024)}
    out = filter_.submit(tres_per_node=f"gres/gpu:{name}:1")
    assert (out.rc == ERROR) is same


@pytest.mark.parametrize("text", LICENCE_OF_TASKS)
def test_the_gates_licence_by_task_is_refused(filter_: Filter, text: str) -> None:
    """Slurm makes licences of it after the filter has run."""
    for out in (
        filter_.submit(tres_per_task=text),
        filter_.submit(**NODE, tres_per_task=text),
        filter_.modify(FOREIGN, tres_per_task=text),
    ):
        assert (out.rc, out.written, out.log) == (ERROR, [], [])
        assert "remove it from --tres-per-task" in out.messages[0]
    out = filter_.submit(OPERATOR, **NODE, tres_per_task=text)
    parked = "gpuaware_pool" in text and "gpu:1" in text  # two requests, none for the gate itself
    assert (out.rc, sorted(out.written)) == (
        SUCCESS,
        ["admin_comment", "licenses"] if parked else [],
    )


@pytest.mark.parametrize("text", ["license/matlab=1", "license/gpuaware2=1", "gres/tmp:gpuaware"])
def test_other_licences_by_task_are_not(filter_: Filter, text: str) -> None:
    assert filter_.submit(tres_per_task=text).rc == SUCCESS


PIECES = [
    *(
        "gres",
        "gres/",
        "gpu",
        "gpu:",
        "g3",
        ":",
        "=",
        ",",
        "license",
        "gpuaware",
        "a100",
        "2",
        "1k",
    ),
    *(
        "shard",
        "shard:",
        "mps=",
        "0",
        " ",
        "\n",
        "%",
        "[",
        "(",
        "|",
        ";",
        "@",
        "*",
        "-1",
        "\udcff",
        "freq=",
        "map_gpu:",
    ),
]


@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.dictionaries(
        st.sampled_from([*PARSED, *COPIED, *LOOKED_AT]),
        st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    )
)
def test_no_text_raises_an_error_inside(filter_: Filter, texts: dict[str, str]) -> None:
    """After an error the job passes unmodified and unchecked."""
    for asked in (texts, {**NODE, **texts}):
        assert filter_.submit(**asked).log == []
        assert filter_.modify(FOREIGN, **asked).log == []
        assert filter_.modify({**NODE, "licenses": "gpuaware:1"}, **asked).log == []


# Lengths -----------------------------------------------------------------------------------------


def padded(length: int, piece: str = "a,") -> str:
    return (piece * length)[:length]


def milliseconds(call: Callable[[], object], enough: float) -> float:
    """CPU time, the best of many; no more are made once one takes less than ``enough``."""
    return 1000 * least_cpu_s(call, enough / 1000)


@pytest.mark.parametrize("field", PARSED)
def test_a_text_that_is_too_long_is_refused(filter_: Filter, field: str) -> None:
    for length in (LONGEST + 1, MEGABYTES):
        text = padded(length)
        submitted = filter_.submit(**{**NODE, field: text})
        changed = filter_.modify(FOREIGN, **{field: text})
        for out in (submitted, changed):
            assert (out.rc, out.written, out.log) == (ERROR, [], [])
            (sentence,) = out.messages
            assert sentence.startswith("gpu-aware: ")
            assert sentence.endswith(f"{PARSED[field]} is longer than 1024 characters; shorten it")
    for sentence in filter_.submit(**{**NODE, field: padded(LONGEST)}).messages:
        assert "longer than" not in sentence


@pytest.mark.parametrize("field", ["licenses", "tres_per_task", "features"])
def test_also_in_a_job_without_gpus(filter_: Filter, field: str) -> None:
    """The selector and others have to read what slurmctld accepts, of every job."""
    assert filter_.submit(**{field: padded(LONGEST + 1)}).rc == ERROR


@pytest.mark.parametrize("field", COPIED)
def test_a_text_too_long_for_the_record_leaves_the_job_to_slurm(
    filter_: Filter, field: str
) -> None:
    out = filter_.submit(**NODE, **{field: padded(MEGABYTES)})
    assert (out.rc, sorted(out.written)) == (SUCCESS, ["admin_comment", "licenses"])
    assert out.job["admin_comment"].endswith(";pt=1")
    assert "too long to be recorded" in out.messages[0]


def test_a_model_is_rewritten_also_where_the_record_is_too_long(filter_: Filter) -> None:
    out = filter_.submit(tres_per_node="gres/gpu:a100:2", req_nodes=padded(2000))
    assert set(out.written) == {"tres_per_node", "features", "licenses", "admin_comment"}
    assert out.job["admin_comment"].endswith(";pt=1")


@pytest.mark.parametrize("field", LOOKED_AT)
def test_texts_that_are_not_parsed_may_be_long(filter_: Filter, field: str) -> None:
    assert filter_.submit(**{**NODE, field: padded(MEGABYTES)}).rc == SUCCESS


@pytest.mark.parametrize("conf", [CONF, "return {{"], ids=["configured", "broken"])
@pytest.mark.parametrize("field", [*PARSED, *COPIED, *LOOKED_AT])
def test_megabytes_take_no_time(make_filter: MakeFilter, field: str, conf: str) -> None:
    """A second for each megabyte, with slurmctld's locks held, is what splitting took."""
    filter_ = make_filter(conf=conf)
    asked = {**NODE, field: padded(MEGABYTES)}
    copied = 1000 * least_cpu_s(lambda: filter_.harness[b"job"](filter_.table(asked)), tries=3)
    most = 20 + 3 * copied
    assert milliseconds(lambda: filter_.submit(**asked), most) < most


@pytest.mark.parametrize("field", ["licenses", "admin_comment"])
def test_a_long_text_in_a_record_takes_no_time(filter_: Filter, field: str) -> None:
    """Of a job from before the filter was there."""
    record = {**FOREIGN, field: padded(MEGABYTES)}
    copied = 1000 * least_cpu_s(lambda: filter_.harness[b"job"](filter_.table(record)), tries=3)
    change = {"time_limit": 5}
    assert filter_.modify(record, **change).rc == SUCCESS
    most = 20 + 3 * copied
    assert milliseconds(lambda: filter_.modify(record, **change), most) < most


def test_a_long_environment_stays_as_it_is(filter_: Filter) -> None:
    value = padded(MEGABYTES, "gres/gpu:a100,")
    out = filter_.submit(
        tres_per_node="gres/gpu:a100:2",
        environment={"SLURM_TRES_PER_TASK": value, "SLURM_GPUS": "a100"},
    )
    assert out.job["licenses"] == "gpuaware:1"
    assert out.environment == {"SLURM_TRES_PER_TASK": value, "SLURM_GPUS": "1"}


REPEATED = (
    *(",", ";", " ", ", ", "=", ":", "a", "a,", "a=,", "class=A,", "\udcff", "gpu:", "gpu,"),
    *("gpuaware,", "xgpuaware", "license", "license/a,", "gres", "gres/gpu:1,", "gres/gpu:a:"),
    *("freq", "map_gpu", "|", "(", "&a"),
)


@pytest.mark.parametrize("field", [*PARSED, *COPIED])
def test_no_text_of_the_longest_length_takes_long(make_filter: MakeFilter, field: str) -> None:
    """About 1 ms is what these take; a quadratic pattern would take a hundred times that."""
    filter_ = make_filter()
    for piece in REPEATED:
        asked = {**NODE, "comment": "class=A", field: padded(LONGEST, piece)}
        assert milliseconds(partial(filter_.submit, **asked), 10) < 10, piece
        assert filter_.submit(**asked).log == []
