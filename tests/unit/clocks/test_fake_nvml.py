"""The fake NVML library under the real binding (nvidia-ml-py)."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fake_nvml import ROOT, FakeNode, machines


@pytest.fixture
def node(library, tmp_path):
    return BoundNode(library, tmp_path)


def calls(body):
    """Python code: NVML opened, ``body`` fills ``out``, printed as JSON."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"""
import json
import pynvml as n
out = {{}}
def code(function, *args):
    try:
        function(*args)
        return 0
    except n.NVMLError as error:
        return error.value
n.nvmlInit()
try:
    gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
{lines}
finally:
    n.nvmlShutdown()
print(json.dumps(out))
"""


class BoundNode(FakeNode):
    """A node that NVIDIA's binding asks."""

    def asks(self, body):
        return self.python(calls(body))


def test_identity_follows_the_machine_file_in_nvml_order(library, tmp_path):
    node = BoundNode(library, tmp_path, nvml_order=[2, 0, 3, 1])
    out = node.asks("""
out["driver"] = n.nvmlSystemGetDriverVersion()
out["minor"] = [n.nvmlDeviceGetMinorNumber(g) for g in gpus]
out["uuid"] = [n.nvmlDeviceGetUUID(g) for g in gpus]
out["pci"] = [n.nvmlDeviceGetPciInfo(g).busId for g in gpus]
out["name"] = n.nvmlDeviceGetName(gpus[0])
out["total"] = n.nvmlDeviceGetMemoryInfo(gpus[0]).total
out["total2"] = n.nvmlDeviceGetMemoryInfo(gpus[0], version=n.nvmlMemory_v2).total
out["byuuid"] = n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByUUID(out["uuid"][3].encode()))
out["bypci"] = n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByPciBusId(b"0000:1a:00.0"))
out["none"] = code(n.nvmlDeviceGetHandleByUUID, b"GPU-none")
""")
    entries = json.loads(node.machine.read_text())["gpus"]
    assert out["minor"] == [2, 0, 3, 1]
    assert out["uuid"] == [e["uuid"] for e in entries]
    assert out["pci"] == [e["pci"] for e in entries]
    assert (out["name"], out["driver"]) == ("Tesla V100-SXM2-16GB", "550.54.15")
    assert out["total"] == out["total2"] == 16160 << 20
    assert (out["byuuid"], out["bypci"], out["none"]) == (1, 0, 6)


def test_sockets_processors_and_pcie_levels(library, tmp_path):
    node = BoundNode(library, tmp_path, "pcie-4", cpus=["0-3,8", "4-7"])
    out = node.asks("""
out["levels"] = [n.nvmlDeviceGetTopologyCommonAncestor(gpus[0], g) for g in gpus]
near = lambda level: [
    n.nvmlDeviceGetMinorNumber(g) for g in n.nvmlDeviceGetTopologyNearestGpus(gpus[0], level)
]
out["near"] = [near(level) for level in (10, 20, 40, 50)]
out["cpus"] = [n.nvmlDeviceGetCpuAffinity(g, 1)[0] for g in gpus]
out["numa"] = [n.nvmlDeviceGetMemoryAffinity(g, 1, 0)[0] for g in gpus]
out["link"] = code(n.nvmlDeviceGetNvLinkState, gpus[0], 0)
""")
    assert out["levels"] == [0, 10, 20, 50]
    assert out["near"] == [[1], [1, 2], [1, 2], [1, 2, 3]]
    assert out["cpus"] == [0b1_0000_1111] * 3 + [0b1111_0000]
    assert out["numa"] == [1, 1, 1, 2]
    assert out["link"] == 3  # no NVLink at all: not supported


def test_every_nvlink_of_the_cube_mesh_has_its_other_end(library, tmp_path):
    node = BoundNode(library, tmp_path, "dgx-1v")
    out = node.asks("""
pci = {n.nvmlDeviceGetPciInfo(g).busId: i for i, g in enumerate(gpus)}
out["ends"] = [
    [pci[n.nvmlDeviceGetNvLinkRemotePciInfo(g, k).busId] for k in range(6)
     if n.nvmlDeviceGetNvLinkState(g, k)]
    for g in gpus
]
out["seventh"] = n.nvmlDeviceGetNvLinkState(gpus[0], 6)
out["version"] = n.nvmlDeviceGetNvLinkVersion(gpus[0], 0)
out["p2p"] = n.nvmlDeviceGetNvLinkCapability(gpus[0], 0, n.NVML_NVLINK_CAP_P2P_SUPPORTED)
out["kind"] = n.nvmlDeviceGetNvLinkRemoteDeviceType(gpus[0], 0)
out["beyond"] = code(n.nvmlDeviceGetNvLinkState, gpus[0], 18)
""")
    ends = out["ends"]
    assert all(len(e) == 6 for e in ends)  # a V100 has six links, all in use
    assert all(ends[a].count(b) == ends[b].count(a) for a in range(8) for b in range(8))
    # Doubled pairs of a DGX-1V: an even cycle through all eight GPUs.
    doubled = {(a, b) for a in range(8) for b in range(a) if ends[a].count(b) == 2}
    assert doubled == {(3, 0), (4, 0), (2, 1), (5, 1), (3, 2), (7, 4), (6, 5), (7, 6)}
    facts = {"seventh": 0, "version": 2, "p2p": 1, "kind": 0, "beyond": 2}
    assert out.items() >= facts.items()


def test_power_profiles_are_those_of_the_machine_and_others_have_none(node):
    machines.set_facts(node.state, 1, {"power_profiles": 0b1011, "requested_profiles": 0b10})
    out = node.asks("""
found = n.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(gpus[1], n.byref(found))
masks = found.perfProfilesMask, found.requestedProfilesMask, found.enforcedProfilesMask
out["masks"] = [list(one.mask) for one in masks]
out["none"] = code(n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, gpus[0], n.byref(found))
found.version = 1
out["old"] = code(n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, gpus[1], n.byref(found))
""")
    assert out["masks"] == [[word, *[0] * 7] for word in (0b1011, 0b10, 0b10)]
    assert (out["none"], out["old"]) == (3, 25)


def test_clocks_are_set_seen_by_others_and_reset(node):
    locked = node.asks("""
memory = n.nvmlDeviceGetSupportedMemoryClocks(gpus[2])
out["memory"] = memory
clocks = n.nvmlDeviceGetSupportedGraphicsClocks(gpus[2], memory[0])
out["ends"] = [clocks[0], clocks[1], clocks[-1]]
out["before"] = n.nvmlDeviceGetClockInfo(gpus[2], n.NVML_CLOCK_SM)
n.nvmlDeviceSetGpuLockedClocks(gpus[2], 900, 900)
out["bad"] = [code(n.nvmlDeviceSetGpuLockedClocks, gpus[1], 900, 800),
              code(n.nvmlDeviceSetGpuLockedClocks, gpus[1], 900, 9000),
              code(n.nvmlDeviceSetApplicationsClocks, gpus[1], 877, 901)]
n.nvmlDeviceSetApplicationsClocks(gpus[1], 877, 1005)
""")
    assert locked["memory"] == [877]
    assert locked["ends"] == [1530, 1522, 135]
    assert locked["before"] == 1312
    assert locked["bad"] == [2, 2, 2]
    assert node.set_to(2, "locked_clocks") == ["900", "900"]
    other = node.asks("""
out["now"] = [n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM) for g in gpus]
out["reasons"] = n.nvmlDeviceGetCurrentClocksEventReasons(gpus[2])
n.nvmlDeviceResetGpuLockedClocks(gpus[2])
n.nvmlDeviceResetApplicationsClocks(gpus[1])
out["after"] = [n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM) for g in gpus]
""")
    assert other["now"] == [1312, 1005, 900, 1312]
    assert other["reasons"] == 2
    assert other["after"] == [1312] * 4
    assert node.set_to(2, "locked_clocks") is None
    assert node.history() == [
        "gpu2 locked_clocks 900 900",
        "gpu1 applications_clocks 877 1005",
        "gpu2 locked_clocks reset",
        "gpu1 applications_clocks reset",
    ]


def test_many_processes_change_clocks_at_once(node):
    code = calls("""
import sys
for i in range(50):
    n.nvmlDeviceSetGpuLockedClocks(gpus[int(sys.argv[1])], 900, 900 + i)
""")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(k % 4)], env=node.env, stdout=subprocess.DEVNULL
        )
        for k in range(6)
    ]
    assert [p.wait(timeout=300) for p in running] == [0] * 6
    assert len(node.history()) == 300
    assert all(node.set_to(k, "locked_clocks") == ["900", "949"] for k in range(4))
    assert not list(node.state.glob("*.[0-9]*"))  # no temporary file left


def test_only_root_may_change_clocks(library):
    # pytest's own folders are closed for other users, and one shall read the machine file here.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = BoundNode(library, Path(folder))
        content = json.loads(node.machine.read_text())
        del content["unprivileged_clocks"]
        machines.write_json(node.machine, content)
        out = node.asks("""
import os
if os.geteuid() == 0:
    os.seteuid(65534)
out["code"] = code(n.nvmlDeviceSetGpuLockedClocks, gpus[0], 900, 900)
out["read"] = code(n.nvmlDeviceGetName, gpus[0])
""")
        assert out == {"code": 4, "read": 0}
        assert not node.state.exists()


def test_power_falls_and_energy_never_does_when_the_clock_is_lowered(node):
    content = json.loads(node.machine.read_text())
    machines.write_json(node.machine, {**content, "load": 1.0})
    out = node.asks("""
gpu = gpus[0]
seen = []
for mhz in (1530, 765, 1530, 400):
    n.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
    seen.append((n.nvmlDeviceGetPowerUsage(gpu), n.nvmlDeviceGetTotalEnergyConsumption(gpu)))
out["seen"] = seen
out["limits"] = [n.nvmlDeviceGetPowerManagementLimit(gpu),
                 n.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
                 *n.nvmlDeviceGetPowerManagementLimitConstraints(gpu)]
out["temperature"] = n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU)
""")
    powers = [power for power, _ in out["seen"]]
    assert powers[0] == powers[2] == 300_000
    # Half the clock: an eighth of the dynamic part
    assert powers[1] == round(1000 * (42 + 258 / 8))
    energies = [energy for _, energy in out["seen"]]
    assert energies == sorted(energies)
    assert out["limits"] == [300_000, 300_000, 150_000, 300_000]
    assert out["temperature"] == 38


def test_running_processes_come_from_the_state_folder(node):
    node.state.mkdir()
    (node.state / "gpu1.processes").write_text("4711 1000\n4712 24\n")
    out = node.asks("""
out["pids"] = [[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(g)] for g in gpus]
out["used"] = n.nvmlDeviceGetMemoryInfo(gpus[1]).used
""")
    assert out == {"pids": [[], [4711, 4712], [], []], "used": 1024 << 20}


def test_faults_are_injected_while_a_process_runs(node):
    code = calls("""
import sys
def ask():
    return [code(n.nvmlDeviceSetGpuLockedClocks, gpus[2], 900, 900),
            code(n.nvmlDeviceSetGpuLockedClocks, gpus[1], 900, 900),
            code(n.nvmlDeviceGetHandleByIndex, 3), code(n.nvmlDeviceGetName, gpus[3]),
            n.nvmlDeviceGetCount()]
out["seen"] = []
for line in sys.stdin:
    out["seen"].append(ask())
    print("done", file=sys.stderr, flush=True)
""")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=node.env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:

        def step():
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stderr.readline() == "done\n"

        step()
        machines.add_fault(
            node.machine, "nvmlDeviceSetGpuLockedClocks", minor=2, error="NO_PERMISSION"
        )
        machines.lose(node.state, 3)  # the override folder works as well as the machine file
        step()
        machines.heal(node.state)
        machines.heal(node.machine)
        step()
        process.stdin.close()
        seen = json.loads(process.stdout.read())["seen"]
    assert seen == [[0, 0, 0, 0, 4], [4, 0, 15, 15, 4], [0, 0, 0, 0, 4]]


@pytest.mark.parametrize(
    ("text", "code"), [(None, 9), ("{", 999), ('{"gpus": [}', 999), ("[" * 100, 999)]
)
def test_without_a_good_machine_file_nvml_does_not_start(node, text, code):
    if text is None:
        node.machine.unlink()
    else:
        node.machine.write_text(text)
    out = node.python("""
import json, pynvml
try:
    pynvml.nvmlInit()
    print(0)
except pynvml.NVMLError as error:
    print(json.dumps(error.value))
""")
    assert out == code


def test_the_helper_writes_what_the_readme_says(tmp_path):
    file = tmp_path / "n7.json"
    script = ROOT / "docker" / "fake_nvml" / "machines.py"

    def helper(*words):
        subprocess.run([sys.executable, script, *words], check=True, timeout=300)

    helper(
        *["write", "--kind", "two-socket-4", "--node", "n7", "--seed", "5", "--out", str(file)],
        *["--cpus", "0-7", "--cpus", "8-15", "--nvml-order", "3,2,1,0", "--slow", "2:A=1.4"],
    )
    machine = json.loads(file.read_text())
    assert [gpu["minor"] for gpu in machine["gpus"]] == [3, 2, 1, 0]
    assert machine["gpus"][1]["slowness"]["A"] == 1.4
    assert machine["sockets"] == [{"numa": 0, "cpus": "0-7"}, {"numa": 1, "cpus": "8-15"}]
    helper("slow", str(file), "0", "A=2.0", "B=1.5")
    assert json.loads(file.read_text())["gpus"][3]["slowness"]["B"] == 1.5
    helper("slow", str(tmp_path / "state"), "1", "C=1.1")
    override = json.loads((tmp_path / "state" / "override.json").read_text())
    assert override == {"slowness": {"1": {"C": 1.1}}}
    again = machines.build("two-socket-4", "n7", seed=5)
    assert again == machines.build("two-socket-4", "n7", seed=5)
    assert again["gpus"][0]["slowness"] != machines.build("two-socket-4", "n7", seed=6)["gpus"][0]


def test_an_event_set_reports_xids_that_come_after_it(node):
    machines.report_xid(node.state, 1, 31)
    out = node.asks(f"""
import sys
sys.path.insert(0, {str(ROOT / "docker" / "fake_nvml")!r})
import machines
events = n.nvmlEventSetCreate()
for gpu in gpus[:3]:
    n.nvmlDeviceRegisterEvents(gpu, n.nvmlEventTypeXidCriticalError, events)
out["before"] = code(n.nvmlEventSetWait, events, 0)
for minor, xid in (("2", "79"), ("3", "48"), ("0", "13")):
    machines.main(["xid", {str(node.state)!r}, minor, xid])
found = [n.nvmlEventSetWait(events, 1000) for _ in range(2)]
out["found"] = [[n.nvmlDeviceGetMinorNumber(e.device), e.eventType, e.eventData] for e in found]
out["after"] = code(n.nvmlEventSetWait, events, 20)
out["other"] = code(n.nvmlDeviceRegisterEvents, gpus[0], 1, events)
n.nvmlEventSetFree(events)
""")
    assert out == {"before": 10, "found": [[2, 8, 79], [0, 8, 13]], "after": 10, "other": 3}


def test_a_slow_run_by_command(node):
    assert machines.main(["slow-run", str(node.state), "2", "1", "A=1.3", "C=2"]) == 0
    override = json.loads((node.state / "override.json").read_text())
    assert override["slow_runs"] == [{"gpu": 2, "run": 1, "factors": {"A": 1.3, "C": 2.0}}]
    with pytest.raises(SystemExit):
        machines.main(["slow-run", str(node.machine), "2", "1", "A=1.3"])


def test_facts_of_the_hardware(library, tmp_path):
    """Memory errors, PCIe, remapped rows and inactive links, as NVIDIA's own binding reads them."""
    node = BoundNode(library, tmp_path, "hgx-a100-4")
    machine = json.loads(node.machine.read_text())
    machine["cuda"] = "13.1"
    machine["gpus"][0] |= {"ecc_corrected": 5, "ecc_uncorrected": 2}
    machine["gpus"][1]["ecc"] = 0
    machines.write_json(node.machine, machine)
    facts = {"pcie_gen_now": 1, "pcie_lanes_now": 8, "remapped": 3, "remap_pending": 1}
    machines.set_facts(node.state, 2, facts | {"nvlinks_down": 2, "ecc_uncorrected_now": 4})
    out = node.asks("""
out["cuda"] = n.nvmlSystemGetCudaDriverVersion()
out["errors"] = [n.nvmlDeviceGetTotalEccErrors(gpus[0], kind, 1) for kind in (0, 1)]
out["errors now"] = [n.nvmlDeviceGetTotalEccErrors(gpus[2], 1, which) for which in (0, 1)]
out["no ECC"] = code(n.nvmlDeviceGetTotalEccErrors, gpus[1], 0, 1)
out["pcie"] = [n.nvmlDeviceGetCurrPcieLinkGeneration(gpus[2]), n.nvmlDeviceGetCurrPcieLinkWidth(
    gpus[2]), n.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpus[2])]
out["rows"] = [list(n.nvmlDeviceGetRemappedRows(g)) for g in gpus[1:3]]
out["pages"] = code(n.nvmlDeviceGetRetiredPagesPendingStatus, gpus[2])
out["state"] = n.nvmlDeviceGetPerformanceState(gpus[2])
out["links"] = sum(n.nvmlDeviceGetNvLinkState(gpus[2], i) for i in range(12))
""")
    assert out == {
        "cuda": 13010,
        "errors": [5, 2],
        "errors now": [4, 0],
        "no ECC": 3,
        "pcie": [1, 8, 4],
        "rows": [[0, 0, 0, 0], [0, 3, 1, 0]],
        "pages": 3,
        "state": 0,
        "links": 10,
    }
