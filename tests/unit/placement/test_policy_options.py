"""Options of ``[policies.NAME]``: checks, rounds, records for replay, ``place``."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import gpu_aware
from make import plan_round, replayed
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import ConfigError, PolicyError
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.record import read_round, replay
from slurm_gpu_aware.planning.timeline import as_running
from slurm_gpu_aware.selector.policy_options import policy_options
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

NOISY = ("noisy/1", 2)


def profile_json(beside_s: float) -> str:
    """Run time 100 s alone and ``beside_s`` beside another of its kind; 2 GPUs each."""
    alone = {"noisy": {"1": {"num_gpus": {"2": {"intra-socket": 100.0}}}}}
    other = {"noisy": {"1": {"num_gpus": {"2": beside_s}}}}
    return json.dumps({"solo": alone, "collocation": {"noisy": {"1": {"num_gpus": {"2": other}}}}})


def options(tmp_path: Path, text: str) -> dict:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return policy_options(load_config(file))


def test_a_profile_is_read_beside_the_configuration(tmp_path: Path):
    (tmp_path / "times.json").write_text(profile_json(150.0))
    found = options(
        tmp_path, "[policies.topo-aware]\ninterference = 'times.json'\npatience_s = 9\n"
    )
    assert found["topo-aware"]["patience_s"] == 9
    assert found["topo-aware"]["interference"].slowdown(NOISY, NOISY) == 1.5


EFFBW = "effbw must be bottleneck, paper or the 14"


BAD = {
    "[policies]\nx = 1": "policies.x: expected keys with values, not 1",
    "[policies.pal2]": "policies.pal2: unknown policy; known: best-fit, eft, lowest-index",
    "[policies.pal]\nseed = 1": "policies.pal.seed: unknown option; known: none",
    "[policies.topo-aware]\nweight = 1": "policies.topo-aware.weight: unknown option; known: anti",
    "[policies.topo-aware-p]\nwaited_s = 1": "policies.topo-aware-p.waited_s: unknown option",
    "[policies.topo-aware]\napplication = 'a'": "policies.topo-aware.application: unknown option",
    "[policies.topo-aware]\nweights = [1, 1, 1]": "weights must be three numbers",
    "[policies.topo-aware]\nweights = 'equal'": "weights must be three numbers",
    "[policies.topo-aware]\nsingle_node = 'yes'": "single_node must be True or False, not 'yes'",
    "[policies.topo-aware]\ninterference_scope = 'rack'": "must be socket or machine, not 'rack'",
    "[policies.topo-aware]\nmin_bandwidth_gbps = nan": "min_bandwidth_gbps must be a number",
    "[policies.topo-aware-p]\npatience_s = 0": "patience_s must be a number of more than 0",
    "[policies.topo-aware-p]\nminimal_utility = 2": "minimal_utility must be a number from 0 to 1",
    "[policies.eft]\nwait_weight = 0.5": "wait_weight must be a number from 1 to 100, not 0.5",
    "[policies.eft]\nlongest_wait_s = -1": "longest_wait_s must be a number from 0 to inf, not -1",
    "[policies.eft]\nlongest_wait_s = nan": "longest_wait_s must be a number from 0 to inf",
    f"[policies.eft]\nlongest_wait_s = 1{'0' * 400}": "longest_wait_s must be a number from 0",
    f"[policies.topo-aware]\npatience_s = 1{'0' * 400}": "patience_s must be a number of more",
    f"[policies.topo-aware]\nweights = [1{'0' * 400}, 0, 0]": "weights must be three numbers",
    "[policies.random]\nseed = 'x'": "seed must be a whole number >= 0, not 'x'",
    "[policies.'pal+mapa']\neffbw = 'best'": EFFBW,
    "[policies.mapa-greedy]\neffbw = 7": EFFBW,
    "[policies.mapa-preserve]\neffbw = [1.0, 2.0]": EFFBW,
    f"[policies.mapa-preserve]\neffbw = {['a'] * 14}": EFFBW,
    "[policies.topo-aware]\ninterference = 1": "topo-aware.interference: expected the path",
    "[policies.topo-aware]\ninterference = 'none.json'": "none.json: cannot be read: No such file",
    "[policies.topo-aware]\ninterference = 'config.toml'": "config.toml: not JSON",
    "[policies.topo-aware]\ninterference = 'bare.json'": "bare.json has no run time of a job",
    "[policies.topo-aware]\nsingle_node = true\nanti_collocation = true": "exclude each other",
    "[policies.topo-aware]\nanti_collocation = true\nmin_bandwidth_gbps = 9\nnetwork_gbps = 8": (
        "anti_collocation excludes a min_bandwidth_gbps of more than network_gbps (8)"
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_option_is_refused_with_file_key_and_reason(tmp_path: Path, text: str):
    (tmp_path / "bare.json").write_text('{"solo": {}, "collocation": {}}')
    with pytest.raises(ConfigError) as caught:
        options(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'config.toml'}: policies")
    assert BAD[text] in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "given", "said"),
    [
        ("topo-aware", {"interference": {}}, "interference must be an InterferenceProfile"),
        ("topo-aware-p", {"seed": 1}, "no option 'seed'; its options: anti_collocation, interf"),
        ("pal+mapa", {"effbw": None}, EFFBW),
        ("pal+mapa", {"seed": 1}, "no option 'seed'; its options: effbw"),
    ],
)
def test_so_is_one_that_no_file_can_hold(policy: str, given: dict, said: str):
    with pytest.raises(PolicyError, match=said):
        make_policy(policy, given)


def test_every_command_that_uses_policies_refuses_it(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[policies.topo-aware]\nweight = 1\n")
    for command in (["place", "-g", "1"], ["doctor"], ["selectd", "--once"], ["simulate"]):
        done = gpu_aware(*command, config=file)
        assert done.exit_code == 1, command
        assert f"{file}: policies.topo-aware.weight: unknown option" in done.stderr


def test_place_uses_them(tmp_path: Path):
    file = tmp_path / "config.toml"
    asked = ["place", "-g", "2", "--machine", "ibm-minsky-4xp100", "--busy", "n1:0,2"]
    for bandwidth, code in ((5.0, 0), (30.0, 1)):
        file.write_text(f"[policies.topo-aware]\nmin_bandwidth_gbps = {bandwidth}\n")
        command = ["--config", str(file), *asked, "--policy", "topo-aware"]
        assert gpu_aware(*command).exit_code == code


def a_round() -> tuple[list[Request], Cluster, PlanSettings, dict]:
    """Two jobs on two machines that best fit would put on one, and a profile that forbids it."""
    profile = InterferenceProfile({NOISY: 100.0}, {(NOISY, NOISY): 300.0})
    weights = [0.1, 0.8, 0.1]
    given = {"topo-aware": {"interference": profile, "weights": weights}, "random": {"seed": 3}}
    queue = [Request(str(i), 2, submit_s=float(i), application="noisy/1") for i in (1, 2)]
    return queue, Cluster.uniform(2, 4), PlanSettings(policy="topo-aware"), given


def test_a_recorded_round_is_planned_again_with_its_options():
    queue, cluster, settings, given = a_round()
    running = plan_round(queue[:1], cluster, settings, 5.0, policy_options=given).assignments[0]
    busy = cluster.copy()
    busy.take(running.nodes[0], running.slots[0])
    busy = replace(busy, running=(as_running(queue[0], running, 5.0, {}),))
    plan = plan_round(queue[1:], busy, settings, 5.0, policy_options=given)
    assert plan.assignments[0].nodes != running.nodes, "it keeps away from its like"
    without = plan_round(queue[1:], busy, settings, 5.0)
    assert without.assignments[0].nodes == running.nodes
    recorded = replayed(Round(queue[1:], busy, settings, 5.0, given), plan)
    assert set(recorded.asked.options) == {"topo-aware"}, "no job used the other"
    without = replace(recorded.asked, options={})
    assert len(replay(replace(recorded, asked=without), FEATURES)) == 1


def test_the_selector_places_by_the_profile_and_records_it(tmp_path: Path):
    """A job of class A runs; the next one goes to the other node, where no job is slowed."""
    slurm = SlurmFolder(tmp_path)
    base = slurm.config.read_text() + '[placement]\npolicy = "topo-aware"\n'
    (tmp_path / "times.json").write_text(profile_json(300.0))
    named = (
        "[policies.topo-aware]\ninterference = 'times.json'\nweights = [0.1, 0.8, 0.1]\n"
        "[classes.A]\napplication = 'noisy/1'\n"
    )
    for text, apart in ((base, False), (base + named, True)):
        slurm.config.write_text(text)
        jobs = [parked("7", comment="class=A"), parked("8", comment="class=A", reason="Dependency")]
        slurm.write(jobs, nodes=["n1", "n2"])
        assert slurm.round() == 0, slurm.said
        slurm.change("8", reason="Licenses")
        assert slurm.round() == 0, slurm.said
        nodes = {job["nodes"] for job in slurm.jobs.values()}
        assert len(nodes) == (2 if apart else 1)
    with open_store(slurm.store, readonly=True) as store:
        rounds = [read_round(content, FEATURES) for content in Ledger(store).snapshots()]
    assert rounds
    assert [difference for one in rounds for difference in replay(one, FEATURES)] == []


def test_a_wrong_option_keeps_the_selector_from_starting(tmp_path: Path):
    slurm = SlurmFolder(tmp_path)
    slurm.config.write_text(slurm.config.read_text() + "[policies.topo-aware]\nweight = 1\n")
    assert slurm.round() == 1
    assert "policies.topo-aware.weight: unknown option" in slurm.said
