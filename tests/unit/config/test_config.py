"""The configuration: bad files stop the start with file, key and reason."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config, File
from slurm_gpu_aware.errors import ConfigError


def config_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return file


def test_an_empty_file_gives_the_defaults(tmp_path):
    config = load_config(config_file(tmp_path, ""))
    assert config.site == Config().site
    assert config.gate == Config().gate


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    file = config_file(tmp_path, "[placement]\nlevels.cluster = 1.7\n")
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(file))
    assert load_config().placement.penalties["cluster"] == 1.7
    assert load_config().source == file


def test_an_endless_file_is_an_error():
    with pytest.raises(ConfigError, match=r"^/dev/zero: larger than 1 MiB$"):
        load_config("/dev/zero")


def test_an_integer_is_a_number_but_true_is_not(tmp_path):
    config = load_config(config_file(tmp_path, "[selector]\nround_s = 2\n"))
    assert isinstance(config.selector.round_s, float)
    with pytest.raises(ConfigError, match=r"expected a number above 0 .*, not True"):
        load_config(config_file(tmp_path, "[selector]\nround_s = true\n"))


def test_classes_and_their_settings(tmp_path):
    text = """
        [site]
        classes = ["hot", "cold"]
        default_class = "cold"
        [site.defaults]
        partition.debug = "class=cold"
        user.erin = "place=off, bw=low"
        [classes.hot]
        clock_mhz = 1200
        bandwidth_sensitive = true
    """
    config = load_config(config_file(tmp_path, text))
    assert config.for_class("hot").clock_mhz == 1200
    assert config.for_class("cold").clock_mhz is None
    assert config.site.defaults["partition"] == {"debug": "class=cold"}
    assert config.site.defaults["user"] == {"erin": "place=off, bw=low"}


BAD = {
    "[due_dates]\norder = 'edf'": "order: expected slurm or pressure or together, not 'edf'",
    "[due_dates]\nweights = {high = 0}": "due_dates.weights.high: expected a number above 0",
    "[sites]": f"sites: unknown; known: {', '.join(sorted(one.name for one in fields(File)))}",
    "[site]\nclases = []": "site.clases: unknown; known: classes, default_class",
    "[site]\nclasses = []": "site.classes: expected a list of at least 1 entries",
    "[site]\nclasses = ['A', 'A']\ndefault_class='A'": "names must differ",
    "[site]\nclasses = ['A']\ndefault_class='B'": "'B' is not one of A",
    "[site]\nclasses = ['auto']\ndefault_class='auto'": "reserved",
    "[site]\nclasses = 'A'": "entries, each a class name, not 'A'",
    "[site.defaults]\nqos.p = 'class=Z'": "site.defaults.qos.p: class=Z is not valid; valid: A, B",
    "[site.defaults]\nqos.p = 'A'": "site.defaults.qos.p: expected key=value,... with these keys",
    "[site.defaults]\nqos.p = 'gpus=2'": "site.defaults.qos.p: expected key=value",
    "[site.defaults]\ngroup.p = 'class=A'": "site.defaults.group: unknown; known: user, account",
    "[site.defaults]\nqos = 'class=A'": "site.defaults.qos: expected keys with values",
    "[site]\npartitions = 'gpu'": "expected a list, each a partition name, not 'gpu'",
    "[site]\npartitions = ['a,b']": "site.partitions[0]: expected a partition name, not 'a,b'",
    "[site]\npartitions = ['']": "site.partitions[0]: expected a partition name, not ''",
    "[classes.Z]\nclock_mhz = 1": "classes.Z: not one of site.classes",
    "[classes.A]\nclock_mhz = 0": "classes.A.clock_mhz: expected a whole number from 1 to 10000",
    "classes = 3": "classes: expected keys with values, not 3",
    "site = 3": "site: expected keys with values",
    "[placement.levels]\ncluster = 0.9": "cluster: expected a number from 1 to 1e+06, not 0.9",
    "[placement.levels]\ncluster = inf": "cluster: expected a number from 1 to 1e+06, not inf",
    "[placement]\nlevels = 2": "placement.levels: expected keys with values",
    "[placement.levels]\nswitch = 'far'": "placement.levels.switch: expected a number",
    "[placement.levels]\nspine = 2": "levels.spine: unknown level; known: nvlink, socket, node",
    "[placement.levels]\nswitch = 0.9": "levels.switch: expected a number from 1 to 1e+06",
    "[placement.levels]\nswitch = nan": "levels.switch: expected a number from 1 to 1e+06, not nan",
    "[placement.levels]\nnode = 1.1": "levels.node: must be 1.0: node is the tightest level",
    "[placement.levels]\nsocket = 1.1": "levels.socket: must be 1.0: socket is the tightest",
    "[placement.levels]\nswitch = 1.3\nrack = 1.2": "levels.rack: must be at least 1.3, the pen",
    "[placement.levels]\nrack = 1.6": "placement.levels.cluster: must be at least 1.6, the pen",
    "[placement]\npolicy = 'pal2'": "unknown policy 'pal2'; known: eft, pal, packed",
    "[placement]\nallowed = ['x']": "placement.allowed: unknown policy 'x'",
    "[gate]\nlicence = 'a b'": "gate.licence: expected a plain licence name",
    "[gate]\nreservation = 'a;b'": "gate.reservation: expected a plain reservation name",
    "[gate]\nlicence_count = 0": "gate.licence_count",
    "[gate]\nlease_s = 10": "gate.lease_s: must be at least 60",
    "[selector]\nheartbeat_s = 50": "at most a third of gate.lease_s",
    "[selector]\nround_s = 0": "selector.round_s: expected a number above 0",
    "[store]\npath = 'here.db'": "expected an absolute path",
    "x = [": "not valid TOML",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused_with_file_key_and_reason(tmp_path, text):
    file = config_file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, known_policies=("eft", "pal", "packed", "pm-first", "pal+mapa"))
    assert str(caught.value).startswith(str(file))
    assert BAD[text] in str(caught.value)


def test_a_named_file_must_exist_but_the_default_place_may_be_empty(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    monkeypatch.delenv("GPU_AWARE_CONFIG", raising=False)
    monkeypatch.setattr("slurm_gpu_aware.config.load.DEFAULT_PATH", tmp_path / "none.toml")
    assert load_config().source is None


def test_levels_stand_from_tight_to_loose(tmp_path):
    text = "[placement.levels]\nrack = 1.3\ncluster = 1.7\nsocket = 1\nnode = 1.05\nswitch = 1.2\n"
    placement = load_config(config_file(tmp_path, text)).placement
    levels = {"socket": 1.0, "node": 1.05, "switch": 1.2, "rack": 1.3, "cluster": 1.7}
    assert list(placement.penalties.items()) == list(levels.items())
    placement = load_config(config_file(tmp_path, "[placement.levels]\ncluster = 1.4\n")).placement
    assert placement.penalties == {"node": 1.0, "cluster": 1.4}


def test_a_penalty_in_the_file_wins_over_a_measured_one_and_a_default_does_not(tmp_path):
    """Also where it is the number that would be the default."""
    measured = {"A": {"node": 1.0, "cluster": 1.6}}
    given = load_config(config_file(tmp_path, "[placement.levels]\ncluster = 1.5\n")).placement
    assert given.penalties_with(measured).of("A")["cluster"] == (1.5, "configured")
    silent = load_config(config_file(tmp_path, "[placement]\n")).placement
    assert silent.penalties_with(measured).of("A")["cluster"] == (1.6, "measured")
    assert silent.penalties_with(measured).of("B")["cluster"] == (1.5, "default")
    given = replace(silent, levels={"cluster": 1.7})
    assert given.penalties_with(measured).of("A")["cluster"].value == 1.7
