"""The agent of a node, on fake GPUs: clocks that it moves, orders that it obeys, what it leaves."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from clock_hooks import UNHURRIED_AGENT, Hooks, gres_conf, until
from fake_nvml import ROOT, FakeNode, machines
from idle_clock import all_end
from needs import needs_root

from slurm_gpu_aware.agent_reports import agent_report
from slurm_gpu_aware.clocks.inbox import read_trusted
from slurm_gpu_aware.node_orders import Order, OrderError, parse_orders

HEAD = "gpu-aware-orders/1"
AGENT = """
import os, sys, time
sys.path.insert(0, {root!r})
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.clocks import agent
agent.GRACE_S = {grace}
{unhurried}{before}
one = agent.Agent(read_clock_conf(), "n1", top={top!r})
print("ready", flush=True)
one.turn()
while {forever}:
    time.sleep(0.01)
    one.turn()
"""


LATER = (
    "import functools\n"
    "agent.Agent = functools.partial(agent.Agent, clock=lambda: time.time() + 1000)"
)
"""A turn 1000 s from now: of what expires by then nothing counts."""


class Process(subprocess.Popen):
    """One that a failed test does not wait for."""

    def __exit__(self, kind, *rest):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


class AgentNode(Hooks):
    """A node with accounts, orders and an agent."""

    def __init__(self, node, folder):
        super().__init__(node, folder, accounts=True)
        self.orders = folder / "orders"
        self.orders.mkdir(mode=0o755)
        folder.chmod(0o755)
        self.conf.write_text(self.conf.read_text() + f"orders = {self.orders}\nslurm_user = 0\n")

    def order(self, seq, *lines, valid_s=600):
        self.put(f"{HEAD} {seq} {int(time.time() + valid_s)}\n" + "".join(f"{x}\n" for x in lines))

    def put(self, text):
        fresh = self.orders / "new"
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(self.orders / "n1.orders")

    def start(self, forever=True, grace=10.0, before=""):
        where = {"root": str(ROOT), "top": str(self.node.folder)}
        code = AGENT.format(
            **where, forever=forever, grace=grace, unhurried=UNHURRIED_AGENT, before=before
        )
        return Process(
            [sys.executable, "-c", code],
            env={**self.node.env, "GPU_AWARE_CLOCK_CONFIG": str(self.conf)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, **options):
        with self.start(forever=False, **options) as agent:
            agent.stdout.read()
        assert agent.returncode == 0

    def obey(self, seq, *lines, valid_s=600, **options):
        """The agent's turn with these orders."""
        self.order(seq, *lines, valid_s=valid_s)
        self.turn(**options)


@pytest.fixture
def agent_node(library, tmp_path):
    return AgentNode(FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1]), tmp_path)


def test_orders_move_the_clocks_of_the_job_alone(agent_node):
    agent_node.run("prolog", 17, "0,3")
    agent_node.run("prolog", 18, "1", "freq=1200")
    agent_node.obey(5, "17 900 0+3")
    assert agent_node.locked() == {0: 900, 1: agent_node.locked()[1], 3: 900}
    (done,) = [r for r in agent_node.said("clock_set") if r.get("seq") == 5]
    assert (done["job_id"], done["gpus"], done["mhz"]) == ("17", [0, 3], 900)
    report = agent_node.said("agent")[-1]
    assert (report["seq"], report["error"]) == (5, "")
    assert dict(zip(report["clock_gpus"], report["clock_mhz"], strict=True)) == {0: 900, 3: 900}
    assert report["gpus"] == [0, 1, 2, 3]
    assert min(report["power_w"]) > 0
    agent_node.obey(6, "17 0 0+3")
    assert set(agent_node.locked()) == {1}
    # Their energy between two records is that of the clock in between.
    back = agent_node.said("clock_set")[-1]
    watts = (back["counter_mj"] - done["counter_mj"]) / 1e3 / (back["at"] - done["at"])
    assert 2 * 20 < watts < 2 * 400
    agent_node.obey(7, "17 600 0+3")
    agent_node.run("epilog", 17, "0,3")
    agent_node.turn()
    assert set(agent_node.locked()) == {1}
    assert agent_node.notes() == ["gpu1"]


def test_a_gpu_without_a_counter_gets_its_clock_all_the_same(agent_node):
    agent_node.run("prolog", 17, "0")
    call = "nvmlDeviceGetTotalEnergyConsumption"
    machines.add_fault(agent_node.node.state, call, error="GPU_IS_LOST")
    agent_node.obey(5, "17 900 0")
    (done,) = agent_node.said("clock_set")
    assert (done["mhz"], done["counter_mj"]) == (900, None)
    assert agent_node.locked() == {0: 900}


def test_without_valid_orders_each_job_gets_its_prologs_clock_back(agent_node):
    agent_node.run("prolog", 17, "0", "freq=1200")
    agent_node.run("prolog", 18, "1")
    start, both = agent_node.locked()[0], ("17 900 0", "18 600 1")
    doubts = {
        "expired": lambda seq: agent_node.order(seq, "17 900 0", valid_s=-5),
        "too long": lambda seq: agent_node.order(seq, "17 900 0", valid_s=4000),
        "unreadable": lambda seq: agent_node.put("nonsense\n"),
        "gone": lambda seq: (agent_node.orders / "n1.orders").unlink(),
        "not named": lambda seq: agent_node.order(seq),
        "old": lambda seq: agent_node.order(1, *both),
    }
    for number, (doubt, spoil) in enumerate(doubts.items()):
        agent_node.obey(10 * number + 5, *both)
        assert agent_node.locked() == {0: 900, 1: 600}, doubt
        spoil(10 * number + 6)
        agent_node.turn()
        assert agent_node.locked() == {0: start}, doubt
    assert "older than 55" in agent_node.said("agent")[-1]["error"]


def test_a_lower_number_is_obeyed_once_the_higher_one_has_expired(agent_node):
    """The controller's clock was ahead, and its orders are lost."""
    agent_node.run("prolog", 17, "0")
    agent_node.obey(9_999_999_999, "17 900 0")
    agent_node.obey(5, "17 600 0", valid_s=3000)
    assert agent_node.locked() == {}
    assert "orders 5 are older than 9999999999" in agent_node.said("agent")[-1]["error"]
    agent_node.turn(before=LATER)
    assert agent_node.locked() == {0: 600}
    agent_node.order(4, "17 900 0", valid_s=3000)  # an older file, still
    agent_node.turn(before=LATER)
    assert "orders 4 are older than 5" in agent_node.said("agent")[-1]["error"]


@pytest.mark.parametrize("ahead_s", [None, 10**8])
def test_a_time_that_no_orders_have_keeps_none_from_being_obeyed(agent_node, ahead_s):
    """Its own clock was ahead when it noted that time, or an earlier release noted none."""
    agent_node.run("prolog", 17, "0")
    known = "99" if ahead_s is None else f"99 {int(time.time()) + ahead_s}"
    (agent_node.accounts / "orders").write_text(f"{known}\n")
    agent_node.obey(5, "17 900 0")
    assert agent_node.locked() == {0: 900}


def test_a_file_without_orders_never_expires(agent_node):
    agent_node.obey(5, valid_s=-1000)
    report = agent_node.said("agent")[-1]
    assert (report["seq"], report["error"]) == (5, "")


def test_a_gpu_of_another_job_or_of_none_is_not_touched(agent_node):
    agent_node.run("prolog", 17, "0")
    agent_node.run("prolog", 18, "1")
    agent_node.obey(5, "17 900 0+1", "19 900 2")  # their prologs may be at work
    assert (agent_node.locked(), agent_node.said("clock_failed")) == ({}, [])
    assert agent_node.said("agent")[-1]["seq"] == 0
    agent_node.turn(grace=0.0)
    assert agent_node.locked() == {}
    assert agent_node.said("agent")[-1]["seq"] == 5
    told = [(r["job_id"], r["gpus"], r["call"]) for r in agent_node.said("clock_failed")]
    assert told == [("17", [1], "order"), ("19", [2], "order")]


def test_on_a_node_with_shards_the_cause_is_told(agent_node):
    """No account is opened there, as jobs share the GPUs."""
    conf = gres_conf(agent_node.node.folder, "NodeName=n1 Name=shard Count=8")
    agent_node.node.env["SLURM_CONF"] = conf
    agent_node.run("prolog", 17, "0", "freq=900")
    agent_node.obey(5, "17 900 0", grace=0.0)
    at_start, ordered = agent_node.said("clock_failed")
    assert at_start["error"] == ordered["error"] != ""
    assert "shards or MPS" in ordered["error"]
    assert agent_node.locked() == {}


def test_an_order_that_outlives_its_job_is_no_fault(agent_node):
    agent_node.run("prolog", 17, "0")
    agent_node.order(5, "17 900 0")
    with agent_node.start(grace=0.0) as agent:
        agent.stdout.readline()
        until(agent_node.locked)
        agent_node.run("epilog", 17, "0")
        time.sleep(0.3)
        agent.kill()
    assert (agent_node.locked(), agent_node.said("clock_failed")) == ({}, [])


def test_a_gpu_that_refuses_a_clock_is_told_and_the_others_are_moved(agent_node):
    agent_node.run("prolog", 17, "0,3")
    machines.add_fault(
        agent_node.node.state, "nvmlDeviceSetGpuLockedClocks", minor=3, error="UNKNOWN"
    )
    agent_node.obey(5, "17 900 0+3")
    assert agent_node.locked() == {0: 900}
    (failed,) = agent_node.said("clock_failed")
    assert (failed["job_id"], failed["gpus"], failed["seq"]) == ("17", [3], 5)
    report = agent_node.said("agent")[-1]
    assert (report["seq"], report["clock_gpus"]) == (5, [0])


def test_an_agent_that_hooks_keep_waiting_comes_back_later(agent_node):
    agent_node.run("prolog", 17, "0")
    agent_node.order(5, "17 900 0")
    hold = (
        "import sys, time; from slurm_gpu_aware.clocks.notes import Notes\n"
        f"with Notes({str(agent_node.locks)!r}).together(0):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    with Process(
        [sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True, env=agent_node.node.env
    ) as hook:
        hook.stdout.readline()
        agent_node.turn()
        assert agent_node.locked() == {}
        assert agent_node.said("agent")[-1]["seq"] == 0
        hook.kill()
    agent_node.turn()
    assert agent_node.locked() == {0: 900}


def test_lower_clocks_come_first(agent_node):
    for job, gpu in ((17, "0"), (18, "1"), (19, "2")):
        agent_node.run("prolog", job, gpu)
    agent_node.obey(5, "17 0 0", "18 1200 1", "19 600 2")
    agent_node.order(6, "17 900 0", "18 600 1", "19 0 2")
    before = len(agent_node.said("clock_set"))
    agent_node.turn()
    assert [r["job_id"] for r in agent_node.said("clock_set")[before:]] == ["18", "17", "19"]


def test_a_new_agent_takes_over_what_a_killed_one_left(agent_node):
    agent_node.run("prolog", 17, "0")
    agent_node.obey(5, "17 900 0")
    agent_node.obey(6)  # another process
    assert agent_node.locked() == {}


def test_a_requeued_job_on_the_same_gpu_gets_its_order_again(agent_node):
    agent_node.run("prolog", 17, "0")
    agent_node.order(5, "17 900 0")
    with agent_node.start() as agent:
        agent.stdout.readline()
        until(agent_node.locked)
        agent_node.run("epilog", 17, "0")
        agent_node.run("prolog", 17, "0")
        until(agent_node.locked)
        assert agent_node.locked() == {0: 900}
        agent.kill()


def test_the_command_gives_the_clocks_back_when_it_stops(agent_node):
    agent_node.conf.write_text(agent_node.conf.read_text().replace("orders =", "#"))
    agent_node.run("prolog", 17, "0")
    (account,) = [f for f in agent_node.accounts.iterdir() if f.name == "gpu0"]
    account.write_text(account.read_text().rsplit(" ", 1)[0] + " 900\n")  # of an earlier agent
    own = {"GPU_AWARE_CLOCK_CONFIG": str(agent_node.conf), "PYTHONUNBUFFERED": "1"}
    env = {**agent_node.node.env, **own}
    command = [sys.executable, "-m", "slurm_gpu_aware.cli.main", "clockd", "--node", "n1"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as agent:
        assert "agent of n1" in agent.stderr.readline()
        second = subprocess.run(
            [*command, "--once"], env=env, capture_output=True, text=True, timeout=300
        )
        assert second.returncode == 1
        assert "another clockd runs" in second.stderr
        agent.send_signal(signal.SIGTERM)
        agent.wait(300)
    assert agent.returncode == 0
    assert account.read_text().split()[-1] == "-"
    assert agent_node.said("agent")[-1]["error"] == "the agent has stopped"


# -- Who may order ------------------------------------------------------------------------------


GOOD = f"{HEAD} 5 1000\n17 900 0+3\n18 0 1\n"


def test_orders_are_read():
    found = parse_orders(GOOD.encode())
    assert (found.seq, found.valid_until) == (5, 1000.0)
    assert found.orders == (Order(17, 900, (0, 3)), Order(18, 0, (1,)))


@pytest.mark.parametrize(
    "text",
    [
        *["", "\n", GOOD[:-1], GOOD + "\n", GOOD.replace("\n", "\r\n"), GOOD + "\0"],
        *[GOOD.replace("orders/1", "orders/2"), GOOD.replace(" 5 ", " 05 "), f"{HEAD} -5 1000\n"],
        *[f"{HEAD} 5 1e9\n", f"{HEAD} 5\n", f"{HEAD} {9**20} 1000\n"],
        *[GOOD + "17 900 2\n", GOOD + "19 900 3\n", GOOD + "19 900 2+2\n"],
        *[GOOD + "19 90 2\n", GOOD + "19 0900 2\n", GOOD + "19 900 2,4\n", GOOD + "19 900\n"],
        *[GOOD + "0 900 2\n", GOOD + "19 900 -1\n", GOOD + "19  900 2\n", GOOD + " 19 900 2\n"],
        *[GOOD + "19 \u0669\u0669\u0669 2\n", GOOD + "x" * 70_000 + "\n"],
        f"{HEAD} 5 1000\n" + "".join(f"{n} 900 {n}\n" for n in range(1, 1100)),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(OrderError):
        parse_orders(text.encode())


def test_random_bytes_are_refused():
    rng = random.Random(3)
    good = GOOD.encode()
    for _ in range(2000):
        at = rng.randrange(len(good))
        bad = good[:at] + rng.randbytes(rng.randrange(1, 4)) + good[at + 1 :]
        try:
            found = parse_orders(bad)
        except OrderError:
            continue
        gpus = [gpu for order in found.orders for gpu in order.gpus]
        assert len(gpus) == len(set(gpus))


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "shared" / "orders"
    folder.mkdir(parents=True)
    for one in (tmp_path, folder.parent, folder):
        one.chmod(0o755)
    file = folder / "n1.orders"
    file.write_text(GOOD)
    file.chmod(0o644)
    return tmp_path, file


ROOT_ONLY = frozenset({os.geteuid()})


def test_a_file_out_of_others_reach_is_read(tree):
    top, file = tree
    assert read_trusted(str(file), ROOT_ONLY, str(top)) == GOOD.encode()
    file.unlink()
    assert read_trusted(str(file), ROOT_ONLY, str(top)) is None
    assert read_trusted(str(top / "nowhere" / "n1.orders"), ROOT_ONLY, str(top)) is None


def as_link(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def as_fifo(path):
    path.unlink()
    os.mkfifo(path, 0o644)


SPOILED = {
    "file": lambda file: file.chmod(0o666),
    "group": lambda file: file.chmod(0o664),
    "folder": lambda file: file.parent.chmod(0o777),
    "sticky": lambda file: file.parent.parent.chmod(0o1777),
    "link": as_link,
    "link above": lambda file: as_link(file.parent),
    "fifo": as_fifo,
    "owner": lambda file: os.chown(file, 1234, 1234),
    "owner above": lambda file: os.chown(file.parent, 1234, 1234),
}
"""How a file becomes one that another user could have written."""


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=needs_root if "owner" in how else ()) for how in SPOILED]
)
def test_what_others_could_have_written_is_refused(tree, how):
    top, file = tree
    SPOILED[how](file)
    with pytest.raises(OrderError, match=str(top)):
        read_trusted(str(file), ROOT_ONLY, str(top))


def test_a_huge_file_is_not_read_whole(tree):
    top, file = tree
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    text = read_trusted(str(file), ROOT_ONLY, str(top))
    assert text is not None
    assert len(text) < 70_000
    with pytest.raises(OrderError, match="bytes"):
        parse_orders(text)


def test_hostile_orders_move_nothing(agent_node):
    agent_node.run("prolog", 17, "0")
    for how in ("file", "folder", "link"):
        agent_node.order(5, "17 900 0")
        SPOILED[how](agent_node.orders / "n1.orders")
        agent_node.turn()
        assert agent_node.locked() == {}, how
        assert str(agent_node.orders) in agent_node.said("agent")[-1]["error"]
        agent_node.orders.chmod(0o755)
        (agent_node.orders / "n1.orders").unlink()
    agent_node.conf.chmod(0o666)  # so is the name of SlurmUser
    agent_node.obey(6, "17 900 0")
    assert agent_node.locked() == {}
    assert json.dumps(agent_node.said("agent")[-1]["error"]).count("clock.conf")


def test_the_report_says_why_clocks_are_low_and_for_which_job(agent_node, tmp_path):
    agent_node.run("prolog", 17, "0,3")
    agent_node.node.state.mkdir(exist_ok=True)
    machines.set_facts(agent_node.node.state, 3, {"throttle_reasons": 0x48, "sm_mhz": 1005})
    call = "nvmlDeviceGetCurrentClocksEventReasons"
    for name in (call, "nvmlDeviceGetCurrentClocksThrottleReasons"):
        machines.add_fault(agent_node.node.machine, name, minor=1, error="NOT_SUPPORTED")
    agent_node.turn()
    report = agent_report(agent_node.said("agent")[-1])
    assert report.throttle[3] == (0x48, 1005, 17)
    assert report.throttle[0] == (1, 1312, 17)
    assert report.throttle[2] == (1, 1312, 0)
    assert set(report.throttle) == {0, 2, 3}  # GPU 1 cannot tell
    assert set(report.power_w) == {0, 1, 2, 3}


LISTENING = """
from slurm_gpu_aware.clocks import xids
xids._AGAIN_S = 0
start = xids.Xids._start
def started(self):
    start(self)
    with open({noted!r} + ".new", "w") as file:
        file.write(str(self._child))
    os.replace(file.name, {noted!r})
xids.Xids._start = started
one = agent.Agent(read_clock_conf(), "n1", top={top!r})
heard = one.listening()
heard.__enter__()
agent.Agent = lambda *_, **__: one
"""
"""Notes the process that waits for the driver: the agent has others for its calls, too."""


def test_an_xid_is_told_at_once_with_the_job_of_its_gpu(agent_node):
    """Also after the driver that waits for them has died; no process is left behind."""
    agent_node.run("prolog", 17, "0,3")
    agent_node.node.state.mkdir(exist_ok=True)
    noted = agent_node.node.folder / "listener"

    def told():
        reports = map(agent_report, agent_node.said("agent"))
        return {one[:2]: one.job for report in reports for one in report.xids}

    def report_until(gpu, xid):
        """An error counts from when the driver is asked to tell of them."""
        machines.report_xid(agent_node.node.state, gpu, xid)
        return (gpu, xid) in told()

    listening = LISTENING.format(top=str(agent_node.node.folder), noted=str(noted))
    with agent_node.start(before=listening) as agent:
        until(lambda: report_until(3, 79))
        first = int(noted.read_text())
        until(lambda: report_until(1, 48))
        os.kill(first, signal.SIGKILL)
        until(lambda: int(noted.read_text()) != first)
        until(lambda: report_until(0, 95))
        agent.kill()
    assert told() == {(3, 79): 17, (1, 48): 0, (0, 95): 17}
    assert all_end([first, noted.read_text()])


@pytest.mark.parametrize(
    "wrong",
    [
        {"xids": [[0, 79, 5.0]]},
        {"xids": [[64, 79, 5.0, 0]]},
        {"xids": [[0, "79", 5.0, 0]]},
        {"xids": [[0, 79, 5.0, 0]] * 201},
        {"read_throttle": [1]},
        {"read_throttle": [-1, 0]},
        {"read_throttle": [1 << 60, 0]},
        {"read_jobs": ["$(reboot)", 0]},
        {"read_mhz": [float("nan"), 0]},
        {"read_gpus": list(range(300))},
        {"read_gpus": [0, 64]},
        {"gpus": [5000]},
    ],
)
def test_a_wrong_reading_is_no_report(wrong):
    record = {"event": "agent", "at": 5.0, "seq": 0, "gpus": [0], "power_w": [90.0]}
    record |= {"clock_gpus": [], "clock_mhz": []}
    assert agent_report(record).throttle == {}  # an agent of an earlier release
    record |= {"read_gpus": [0, 1], "read_throttle": [1, 0], "read_mhz": [0, 0]}
    record |= {"read_jobs": [0, 0]}
    assert set(agent_report(record).throttle) == {0, 1}
    assert agent_report(record | wrong) is None


def test_when_the_selector_is_away_for_long_no_clock_and_no_limit_rises(agent_node):
    """Starts may ask for more power together than the site allows; raised ones go back."""
    for job, gpu in ((17, "0"), (18, "1"), (19, "2")):
        agent_node.run("prolog", job, gpu, "" if job == 17 else f"freq=900:250@{gpu}")
    agent_node.obey(5, "17 600 0", "18 1200:300 1", "19 600:200 2")
    assert agent_node.locked() == {0: 600, 1: 1200, 2: 600}
    changes = len(agent_node.said("clock_set"))
    with agent_node.start(before=LATER) as agent:
        agent.stdout.readline()
        until(lambda: "expired" in agent_node.said("agent")[-1]["error"])
        until(lambda: agent_node.locked()[1] == 900)
        agent.terminate()
    assert agent_node.locked() == {0: 600, 1: 900, 2: 600}
    limits = [agent_node.node.set_to(gpu, "power_limit") for gpu in (1, 2)]
    assert limits == [["250000"], ["200000"]]
    assert len(agent_node.said("clock_set")) <= changes + 3  # each once, not at every turn
    for job, gpu in ((17, "0"), (18, "1"), (19, "2")):
        agent_node.run("epilog", job, gpu)
    assert agent_node.locked() == {}
    agent_node.turn(before=LATER)  # of jobs that have ended nothing is said
    assert agent_node.said("clock_failed") == []
