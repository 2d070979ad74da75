"""Energy accounts: prolog and epilog read the counters of a job's own GPUs, on fake GPUs."""

import json
import time

import pytest
from clock_hooks import Hooks, gres_conf
from fake_nvml import FakeNode, machines

from slurm_gpu_aware.clocks.accounts import Account, Accounts, used_mj
from slurm_gpu_aware.clocks.driver import Result

IDLE_W = 40.0


@pytest.fixture
def hooks(library, tmp_path):
    node = FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1])
    content = json.loads(node.machine.read_text())
    content |= {"power_idle_w": IDLE_W, "power_limit_w": 300}
    machines.write_json(node.machine, content)
    return Hooks(node, tmp_path, accounts=True)


def load(hooks, gpu, percent):
    hooks.node.state.mkdir(exist_ok=True)
    (hooks.node.state / f"gpu{gpu}.load").write_text(f"{percent}\n")


def test_the_energy_of_a_job_without_a_clock_is_recorded(hooks):
    began = time.time()
    hooks.run("prolog", 17, "0,3")
    after = time.time()
    load(hooks, 1, 100)  # of another job
    time.sleep(0.5)
    before = time.time()
    hooks.run("epilog", 17, "0,3", SLURM_JOB_RESTART_COUNT="1")
    most_s = time.time() - began
    (record,) = hooks.said("energy")
    assert (record["job_id"], record["restarts"], record["gpus"]) == ("17", 0, [0, 3])
    assert 0.5 <= record["seconds"] <= most_s
    # Read within its hooks, as late as a busy machine runs them
    assert 0.99 * (before - after) <= record["energy_j"] / (2 * IDLE_W) <= 1.01 * most_s
    assert (hooks.opened(), hooks.locked()) == ([], {})


def test_a_job_at_full_load_takes_more(hooks):
    load(hooks, 2, 100)
    began = time.time()
    hooks.run("prolog", 17, "2", "freq=900")
    after = time.time()
    time.sleep(0.3)
    before = time.time()
    hooks.run("epilog", 17, "2")
    hooks_s = after - began + time.time() - before
    (record,) = hooks.said("energy")
    clock = 900 / json.loads(hooks.node.machine.read_text())["clocks"]["graphics_mhz"][0]
    least_j = (IDLE_W + (300 - IDLE_W) * clock**3) * (before - after)
    # Within the hooks the clock may be the usual one, at which the GPU takes 300 W
    assert 0.99 * least_j <= record["energy_j"] <= 1.01 * (least_j + 300 * hooks_s)
    assert [r["event"] for r in hooks.records()] == ["clock_set", "clock_reset", "energy"]


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage", "nvmlDeviceSetGpuLockedClocks"])
def test_a_change_of_clocks_tells_the_energy_and_without_one_a_meter_does(hooks, call):
    # No change reads the power, and a meter does: it costs another start of the driver.
    machines.add_fault(hooks.node.state, call, error="UNKNOWN")
    hooks.run("prolog", 17, "1,3", "freq=900")
    hooks.run("epilog", 17, "1,3")
    (record,) = hooks.said("energy")
    assert record["energy_j"] is not None, record


def test_on_an_indexed_node_the_gpus_come_from_extra(hooks):
    conf = gres_conf(hooks.node.folder, "NodeName=n1 Name=gpu Type=g1 File=/dev/nvidia1")
    hooks.run("prolog", 17, "3", "freq=0@1+3", SLURM_CONF=conf)
    assert (hooks.opened(), hooks.locked()) == (["gpu1", "gpu3"], {})
    hooks.run("epilog", 17, "3", "freq=0@1+3", SLURM_CONF=conf)
    hooks.run("prolog", 18, "3", SLURM_CONF=conf)  # which other GPUs it has is not known
    hooks.run("epilog", 18, "3", SLURM_CONF=conf)
    assert [(r["job_id"], r["gpus"]) for r in hooks.said("energy")] == [("17", [1, 3])]


@pytest.mark.parametrize(
    ("gpus", "extra", "gres"),
    [("2", "freq=0@1+3", "AutoDetect=nvml"), ("3", "", "NodeName=n1 Name=shard Count=8")],
)
def test_gpus_that_slurm_contradicts_or_jobs_share_have_no_account(hooks, gpus, extra, gres):
    hooks.run("prolog", 17, gpus, extra, SLURM_CONF=gres_conf(hooks.node.folder, gres))
    assert hooks.opened() == []


def test_a_driver_that_was_loaded_anew_makes_the_energy_unknown(hooks):
    hooks.run("prolog", 16, "0", "freq=900")  # now the fake driver keeps the counter in a file
    hooks.run("epilog", 16, "0")
    hooks.run("prolog", 17, "0,1")
    now_ms = time.clock_gettime(time.CLOCK_BOOTTIME) * 1e3
    (hooks.node.state / "gpu0.energy").write_text(f"0 {now_ms:.0f}\n")
    hooks.run("epilog", 17, "0,1")
    record = hooks.said("energy")[-1]
    assert (record["energy_j"], record["error"]) == (None, "GPU 0: its energy counter was reset")
    assert record["gpus"] == [0, 1]


def test_gpus_without_a_counter_leave_the_energy_unknown(hooks):
    call = "nvmlDeviceGetTotalEnergyConsumption"
    machines.add_fault(hooks.node.state, call, error="NOT_SUPPORTED")
    hooks.run("prolog", 17, "0")
    hooks.run("epilog", 17, "0")
    (record,) = hooks.said("energy")
    assert record["energy_j"] is None
    assert "not known at the start" in record["error"]


def test_an_epilog_that_never_ran_costs_no_other_job_its_account(hooks):
    hooks.run("prolog", 17, "0,1")
    hooks.run("prolog", 18, "1")
    hooks.run("epilog", 18, "1")
    assert [(r["job_id"], r["gpus"]) for r in hooks.said("energy")] == [("18", [1])]
    hooks.command("reset-all")
    assert hooks.opened() == []


def test_jobs_beside_one_with_an_account_start_no_python_in_the_epilog(hooks):
    hooks.run("prolog", 17, "0")
    before = len(hooks.started())
    hooks.run("epilog", 18, "")
    assert len(hooks.started()) == before


def test_an_account_that_cannot_be_written_is_told_and_the_job_runs(hooks):
    hooks.accounts.write_text("a file where the folder should be")
    hooks.run("prolog", 17, "0", "freq=900")
    assert hooks.locked() == {0: 900}
    (record,) = hooks.said("energy")
    assert str(hooks.accounts) in record["error"]


def account(**values):
    usual = {"job_id": "17", "restarts": 0, "asked": (0, 0), "at": 100.0, "boot": "b"}
    return Account(**{**usual, "uuid": "GPU-1", "energy_mj": 5000, **values})


@pytest.mark.parametrize(
    ("start", "meter", "boot", "why"),
    [
        ({"energy_mj": None}, {}, "b", "at the start"),
        ({}, {"energy_mj": None, "error": "GPU is lost"}, "b", "GPU is lost"),
        ({}, {"energy_mj": 4999}, "b", "reset"),
        ({}, {"energy_mj": 5000 + 56_000_000}, "b", "reset"),
        ({}, {}, "c", "not the same"),
        ({}, {"uuid": "GPU-2"}, "b", "not the same"),
    ],
)
def test_what_makes_an_energy_unknown(start, meter, boot, why):
    end = Result(0, **{"uuid": "GPU-1", "energy_mj": 6000, **meter})
    with pytest.raises(ValueError, match=why):
        used_mj(account(**start), end, boot, 110.0)
    assert used_mj(account(), Result(0, uuid="GPU-1", energy_mj=6000), "b", 110.0) == 1000


def test_an_account_outlives_its_file(tmp_path):
    kept = Accounts(str(tmp_path))
    first, second = account(), account(job_id="18", uuid="", energy_mj=None, asked=(900, 250))
    second.set = (0, 200)
    kept.put(0, first.line())
    kept.put(3, second.line())
    kept.put(4, "nonsense")
    assert {i: vars(a) for i, a in kept.all().items()} == {0: vars(first), 3: vars(second)}
