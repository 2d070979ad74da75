"""What setup writes: GRES lines, merged settings, the Lua table."""

from pathlib import Path

import lupa.lua51 as lua51
import pytest
from conf_text import parse_conf
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.config.settings import (
    Config,
    EventsConfig,
    GateConfig,
    SetupConfig,
    SiteConfig,
)
from slurm_gpu_aware.deploy.filter_conf import FILTER_CONF
from slurm_gpu_aware.deploy.owned_files import HOOKS, UNITS
from slurm_gpu_aware.deploy.setup import settings_of
from slurm_gpu_aware.deploy.site import (
    NodeGpus,
    Site,
    conf_nodes,
    cores_of,
    gres_lines,
    node_lines,
    usable_model,
)
from slurm_gpu_aware.slurm.words import hostlist


def two_socket_node(name: str, model: str | None = "v100") -> NodeGpus:
    return NodeGpus(name, (0, 1, 2, 3), model, cores_of((0, 0, 1, 1), 2, 8))


def parsed_site(config: Config, conf: str = "", *nodes: NodeGpus) -> Site:
    read = parse_conf(conf)
    return Site(config, Path("/etc/slurm"), Path("/units"), read, conf_nodes(read), nodes)


def settings(conf: str, **changes: object) -> dict[str, str]:
    values, _ = settings_of(parsed_site(Config(**changes), conf))  # type: ignore[arg-type]
    hooks = {hook.key for hook in HOOKS}
    return {key: value for key, value in values.items() if key not in hooks}


def test_gres_lines_name_each_index_and_the_cores_of_its_socket():
    lines = gres_lines([two_socket_node("n1"), two_socket_node("n2")])
    assert lines == [
        "NodeName=n[1-2] AutoDetect=off",
        "NodeName=n[1-2] Name=gpu Type=g0 File=/dev/nvidia0 Cores=0-7",
        "NodeName=n[1-2] Name=gpu Type=g1 File=/dev/nvidia1 Cores=0-7",
        "NodeName=n[1-2] Name=gpu Type=g2 File=/dev/nvidia2 Cores=8-15",
        "NodeName=n[1-2] Name=gpu Type=g3 File=/dev/nvidia3 Cores=8-15",
    ]


@pytest.mark.parametrize(
    ("numa", "sockets"), [((0, 1), 0), ((0, 3), 2), ((None, None), 2), ((-1, -1), 2)]
)
def test_cores_are_left_out_where_they_are_not_certain(numa: tuple[int | None, ...], sockets: int):
    assert cores_of(numa, sockets, 4) == (None, None)
    assert all("Cores" not in line for line in gres_lines([NodeGpus("n", (0, 1), "v100")]))


def test_a_lost_gpu_keeps_the_indices_of_the_others():
    assert "gpu:g0:1,gpu:g2:1" in node_lines([NodeGpus("n1", (0, 2))])[0]


def test_different_nodes_get_lines_of_their_own():
    lines = node_lines([two_socket_node("n1"), NodeGpus("n2", (0,), "a100")])
    assert lines == [
        "NodeName=n1 Gres=gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1 Features=gpu_v100",
        "NodeName=n2 Gres=gpu:g0:1 Features=gpu_a100",
    ]


@pytest.mark.parametrize("model", ["a b", "a&b", "", "x,y", "g1", "-a"])
def test_a_model_that_is_no_feature_is_refused(model: str):
    assert usable_model(model) is None


@pytest.mark.parametrize("file", [None, Path("/etc/x.toml")])
def test_units_name_a_configuration_only_where_there_is_one(file: Path | None):
    """One that they name must be there, or they do not start."""
    texts = [change.text for change in UNITS.contents(parsed_site(Config(source=file), ""))]
    named = [line for text in texts for line in text.splitlines() if "GPU_AWARE_CONFIG" in line]
    assert set(named) == ({f"Environment=GPU_AWARE_CONFIG={file}"} if file else set())
    assert all("[Service]" in text for text in texts if "[Timer]" not in text)


def test_settings_of_an_empty_slurm_conf():
    assert settings("") == {
        "GresTypes": "gpu",
        "Licenses": "gpuaware:100000,gpuaware_pool:8",
        "JobSubmitPlugins": "lua",
        "SchedulerParameters": "default_queue_depth=5000,batch_sched_delay=0",
    }


def test_settings_keep_what_the_site_has():
    got = settings(
        "GresTypes=mps\nLicenses=matlab:2\nJobSubmitPlugins=all_partitions\n"
        "SchedulerParameters=bf_window=60,default_queue_depth=9,batch_sched_delay=2\n"
    )
    assert got == {
        "GresTypes": "mps,gpu",
        "Licenses": "matlab:2,gpuaware:100000,gpuaware_pool:8",
        "JobSubmitPlugins": "all_partitions,lua",
        "SchedulerParameters": "bf_window=60,default_queue_depth=9,batch_sched_delay=2",
    }


def test_a_plugin_with_its_prefix_is_not_listed_twice():
    """slurmctld would run the filter twice, which refuses the licence that it has added."""
    got = settings("JobSubmitPlugins=all_partitions,job_submit/lua\n")
    assert got["JobSubmitPlugins"] == "all_partitions,job_submit/lua"


def test_the_plugin_of_the_commands_only_if_it_is_asked_for():
    conf = "CliFilterPlugins=syslog\n"
    assert "CliFilterPlugins" not in settings(conf)
    got = settings(conf, setup=SetupConfig(cli_filter=True))
    assert got["CliFilterPlugins"] == "syslog,lua"


def test_the_count_of_our_licence_follows_the_configuration():
    got = settings("Licenses=gpuaware:5,gpuaware_pool,x*3\n", gate=GateConfig(licence_count=70))
    assert got["Licenses"] == "x*3,gpuaware:70,gpuaware_pool:8"


def test_a_foreign_prolog_stays_and_the_admin_is_told():
    values, notes = settings_of(parsed_site(Config(), "Prolog=/site/prolog\n"))
    assert "Prolog" not in values
    assert values["Epilog"] == "/etc/slurm/epilog.d/50-gpu-aware"
    assert any("Prolog=/site/prolog stays" in note for note in notes)


def test_a_prolog_folder_of_the_site_needs_nothing():
    values, notes = settings_of(parsed_site(Config(), "Prolog=/etc/slurm/prolog.d/*\n"))
    assert "Prolog" not in values
    assert not any("Prolog" in note for note in notes)


def test_job_completion_of_the_site_is_not_replaced():
    config = Config(events=EventsConfig(jobcomp_file=Path("/var/log/jc")))
    ours, _ = settings_of(parsed_site(config, ""))
    theirs, notes = settings_of(parsed_site(config, "JobCompType=jobcomp/mysql\n"))
    assert ours["JobCompLoc"] == "/var/log/jc"
    assert "JobCompType" not in theirs
    assert any("jobcomp/mysql stays" in note for note in notes)


@pytest.mark.parametrize(
    "line",
    [
        *(f"SchedulerParameters={w}" for w in ("bf_licenses", "requeue_delay=0")),
        "SchedulerParameters=extra_constraints",
        "SlurmctldParameters=enable_expedited_requeue",
    ],
)
def test_settings_that_harm_the_queue_are_warned_of(line):
    _, notes = settings_of(parsed_site(Config(), f"{line}\n"))
    key, _, word = line.partition("=")
    assert any(f"{key} has {word}" in note for note in notes)


def filter_conf(of: Site) -> str:
    return FILTER_CONF.contents(of)[0].text


def read_lua(text: str) -> dict[str, object]:
    table = lua51.LuaRuntime(encoding=None).execute(text.encode())
    return {k.decode(): v for k, v in table.items()}


def test_lua_conf_is_a_table_that_lua_reads():
    config = Config(
        site=SiteConfig(classes=("A", "B"), park_uncommented=False, operators=("1000",))
    )
    got = read_lua(filter_conf(parsed_site(config, "", two_socket_node("n1"))))
    assert list(got["classes"].values()) == [b"A", b"B"]  # type: ignore[attr-defined]
    assert got["licence"] == b"gpuaware"
    assert got["submit_file"] == b"/var/spool/slurm-gpu-aware/submitted"
    assert got["park_uncommented"] is False
    assert got["max_gpus_per_node"] == 4
    assert list(got["operators"].values()) == [0, 1000]  # type: ignore[attr-defined]


FILTER = Path(__file__).resolve().parents[3] / "etc" / "lua" / "gpu_aware.lua"


@pytest.mark.parametrize("most", [0, 8])
def test_the_filter_accepts_what_is_written(tmp_path: Path, most: int):
    """Read by the filter's own reader, which checks every field."""
    file = tmp_path / "gpu_aware_conf.lua"
    shape = f"CPUs={8 * most} RealMemory={1000 * most} Gres=gpu:g0:1,shard:{2 * most}"
    conf = f"SlurmUser=64030\nNodeName=n[1-2] {shape if most else 'Gres=gpu:g0:1'}\n"
    indices = tuple(range(most))
    nodes = (NodeGpus("n1", indices, "v100"), NodeGpus("n2", indices, "a100-80gb"))
    file.write_text(filter_conf(parsed_site(Config(), conf, *nodes)))
    lua = lua51.LuaRuntime()
    lua.execute("slurm = {log_error = function() end}")
    read = lua.eval(f'dofile("{FILTER}").read_conf')
    result = read(str(file))
    conf, problem = result if isinstance(result, tuple) else (result, None)
    assert problem is None
    assert dict(conf.model_set.items()) == {"v100": True, "a100-80gb": True}
    assert conf.max_gpus_per_node == (most or None)
    assert conf.max_cpus_per_node == (8 * most or None)
    assert conf.max_memory_mb_per_node == (1000 * most or None)
    assert conf.max_shards_per_gpu == (2 * most or None)
    assert conf.reservation == "gpuaware_gate"


@given(st.text(max_size=40))
def test_any_path_survives_the_way_through_lua(text: str):
    path = "/" + text.encode("utf-8", "replace").decode("utf-8")
    config = Config(events=EventsConfig(submit_file=Path(path)))
    got = read_lua(filter_conf(parsed_site(config)))
    assert got["submit_file"] == str(Path(path)).encode()


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n9", "n10", "n12"], "n[9-10,12]"),
        (["g01", "g02", "g10"], "g[01-02,10]"),
        (["b", "a"], "a,b"),
        (["a", "a1", "a2"], "a,a[1-2]"),
        (["n1-ib", "x2y3"], "n1-ib,x2y3"),
    ],
)
def test_hostlist(names: list[str], short: str):
    assert hostlist(names) == short


def test_the_filter_knows_partitions_with_nodes_without_gpus():
    conf = (
        "NodeName=n[1-2] Gres=gpu:g0:1 Features=fast\nNodeName=c1\nPartitionName=DEFAULT Nodes=n1\n"
        "PartitionName=gpu Nodes=n[1-2]\nPartitionName=short State=UP\nPartitionName=cpu Nodes=c1\n"
        "PartitionName=mixed Nodes=n1,c1\nPartitionName=all Nodes=ALL\n"
        "PartitionName=set Nodes=big\nPartitionName=fast Nodes=quick,n2\n"
        "PartitionName=slow Nodes=plain,n2\nNodeSet=quick Feature=fast\nNodeSet=plain Nodes=c1\n"
    )
    got = read_lua(filter_conf(parsed_site(Config(), conf)))
    names = list(got["partitions_with_others"].values())  # type: ignore[attr-defined]
    assert names == [b"all", b"cpu", b"mixed", b"set", b"slow"]
    assert list(got["partitions_without_gpus"].values()) == [b"cpu"]  # type: ignore[attr-defined]
