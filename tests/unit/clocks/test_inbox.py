"""What hooks leave to the agent: no process is started, nothing is lost or mixed up."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from clock_hooks import CLOCKD, Hooks, until
from fake_nvml import FakeNode

from slurm_gpu_aware.clocks.inbox import Inbox


@pytest.fixture
def inbox_node(library, tmp_path):
    return Hooks(FakeNode(library, tmp_path, nvml_order=[2, 0, 3, 1]), tmp_path, accounts=True)


@pytest.fixture
def agent(inbox_node):
    with inbox_node.agent() as agent:
        yield agent


def test_beside_an_agent_no_hook_starts_python(inbox_node, agent):
    inbox_node.run("prolog", 17, "0,3", SLURM_JOB_RESTART_COUNT="2")
    until(lambda: inbox_node.opened() == ["gpu0", "gpu3"])
    time.sleep(0.3)
    inbox_node.run("epilog", 17, "0,3")
    until(lambda: inbox_node.said("energy"))
    (record,) = inbox_node.said("energy")
    assert (record["job_id"], record["restarts"], record["gpus"]) == ("17", 2, [0, 3])
    assert record["node"] == "n1"
    assert record["energy_j"] > 0
    assert (inbox_node.started(), inbox_node.opened(), inbox_node.left()) == ([], [], [])
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(300) == 0
    assert not (inbox_node.accounts / "agent").exists()


def test_jobs_that_follow_each_other_on_a_gpu_are_not_mixed_up(inbox_node, agent):
    for job in range(20, 28):  # fewer than make an inbox full
        inbox_node.run("prolog", job, "1")
        inbox_node.run("epilog", job, "1")
    until(lambda: len(inbox_node.said("energy")) == 8)
    assert [r["job_id"] for r in inbox_node.said("energy")] == [str(job) for job in range(20, 28)]
    assert all(r["energy_j"] is not None for r in inbox_node.said("energy"))
    assert (inbox_node.started(), inbox_node.opened()) == ([], [])


@pytest.mark.parametrize("how", ["killed", "stopped", "another process", "another start", "none"])
def test_without_an_agent_that_hears_the_hook_does_it(inbox_node, agent, how):
    word = inbox_node.accounts / "agent"
    number, began = word.read_text().split()
    if how == "killed":
        agent.kill()
        agent.wait()
    elif how == "stopped":
        agent.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{agent.pid}/stat")
        until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
    else:
        others = {"another process": f"{os.getpid()} {began}", "none": "x; reboot"}
        word.write_text(others.get(how, f"{number} {int(began) + 1}") + "\n")
    inbox_node.run("prolog", 17, "0")
    assert (inbox_node.opened(), inbox_node.left()) == (["gpu0"], [])
    inbox_node.run("epilog", 17, "0")
    assert [r["job_id"] for r in inbox_node.said("energy")] == ["17"]
    assert inbox_node.started() == ["gpu-aware-clock"] * 2


def test_a_text_of_the_user_that_a_line_cannot_hold_goes_the_other_way(inbox_node, agent):
    texts = ["a b", "x\ny", "$(reboot)", "`x`", "'", "\\", "é", "x" * 2000, "*", "freq=0@0;"]
    for number, extra in enumerate(texts, 1):
        inbox_node.run("prolog", number, "0", extra=extra)
        assert inbox_node.left() == [], extra
        assert inbox_node.started() == ["gpu-aware-clock"] * number, extra


def test_a_job_with_a_clock_is_locked_before_it_starts(inbox_node, agent):
    for job in range(17, 27):
        inbox_node.run("prolog", job, "0", "freq=900")
        assert inbox_node.locked() == {0: 900}
        inbox_node.run("epilog", job, "0")
        assert (inbox_node.locked(), inbox_node.opened()) == ({}, [])
    until(lambda: len(inbox_node.said("energy")) == 10)
    assert [r["job_id"] for r in inbox_node.said("energy")] == [str(job) for job in range(17, 27)]
    assert (inbox_node.started(), inbox_node.left()) == ([], [])


DEAF = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print(open("/proc/self/stat").read().rpartition(") ")[2].split()[19], flush=True)
time.sleep(600)
"""


def test_a_hook_waits_some_seconds_for_an_agent_that_is_busy_and_then_does_it_itself(inbox_node):
    leave(inbox_node, "x")
    (inbox_node.accounts / "inbox" / "x").unlink()
    command = [sys.executable, "-c", DEAF]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as deaf:
        (inbox_node.accounts / "agent").write_text(f"{deaf.pid} {deaf.stdout.readline()}")
        inbox_node.run("prolog", 17, "0", "freq=900")
        assert inbox_node.locked() == {0: 900}
        assert inbox_node.started() == ["gpu-aware-clock"]
        inbox_node.run("prolog", 18, "1")  # no clock: it does not wait
        assert inbox_node.left() == ["17.prolog.late", "18.prolog"]
        taken = inbox_node.accounts / "inbox" / "19.prolog.taken"  # it has begun
        taken.touch()
        inbox_node.run("prolog", 19, "2", "freq=900")
        assert inbox_node.locked() == {0: 900, 2: 900}
        deaf.kill()


def test_a_hook_whose_agent_dies_meanwhile_does_it_itself(inbox_node):
    """The next agent does not lock once more what may be of an ended job."""
    inbox_node.wait_longer()
    (inbox_node.accounts / "inbox").mkdir(parents=True)
    takes = """
import os, time
file = "{}/inbox/17.prolog"
while not os.path.exists(file):
    time.sleep(0.01)
os.rename(file, file + ".taken")
"""
    code = DEAF.replace("time.sleep(600)", "") + takes.format(inbox_node.accounts)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as dies:
        (inbox_node.accounts / "agent").write_text(f"{dies.pid} {dies.stdout.readline()}")
        reaper = threading.Thread(target=dies.wait)
        reaper.start()
        inbox_node.run("prolog", 17, "0", "freq=900")
        reaper.join()
    assert (inbox_node.locked(), inbox_node.started()) == ({0: 900}, ["gpu-aware-clock"])
    inbox_node.run("epilog", 17, "0")
    assert inbox_node.left() == ["17.prolog.taken"]
    once(inbox_node)
    assert (inbox_node.locked(), inbox_node.opened(), inbox_node.left()) == ({}, [], [])


def test_an_epilog_without_agent_withdraws_what_its_prolog_had_left(inbox_node):
    leave(inbox_node, "17.prolog")
    inbox_node.run("epilog", 17, "0")
    inbox_node.run("prolog", 17, "0")
    leave(inbox_node, "17.prolog")
    inbox_node.run("epilog", 17, "0")
    assert inbox_node.left() == []


def test_no_clock_is_moved_of_a_job_whose_epilog_waits_for_the_agent(inbox_node, agent):
    inbox_node.run("prolog", 17, "0")
    until(lambda: inbox_node.opened() == ["gpu0"])
    account = (inbox_node.accounts / "gpu0").read_text()
    agent.send_signal(signal.SIGSTOP)
    leave(inbox_node, "17.epilog")
    (inbox_node.accounts / "gpu0").write_text(account.rsplit(" ", 1)[0] + " 900\n")  # of an order
    agent.send_signal(signal.SIGCONT)
    until(lambda: not inbox_node.left())
    assert (inbox_node.locked(), inbox_node.opened()) == ({}, [])


def test_a_clock_that_is_too_late_is_not_set_and_is_given_back(inbox_node):
    leave(inbox_node, "17.prolog", "- 0 freq=900 - n1 .\n", ago_s=60)
    once(inbox_node)
    assert (inbox_node.locked(), inbox_node.opened()) == ({}, [])
    (failed,) = inbox_node.said("clock_failed")
    assert failed["error"] == "the agent learned of the job too late"
    inbox_node.run("prolog", 18, "1", "freq=900")
    leave(inbox_node, "18.epilog.taken", ago_s=-1)
    once(inbox_node)
    assert (inbox_node.locked(), inbox_node.left()) == ({}, [])


def leave(site, name, line="- 0 - - n1 .\n", ago_s=0.0):
    (site.accounts / "inbox").mkdir(parents=True, exist_ok=True)
    file = site.accounts / "inbox" / name
    file.write_text(line)
    at = time.time() - ago_s
    os.utime(file, (at, at))


def once(site):
    env = {**site.node.env, "GPU_AWARE_CLOCK_CONFIG": str(site.conf)}
    subprocess.run([*CLOCKD, "--once"], env=env, check=True, capture_output=True, timeout=300)


def test_what_an_agent_that_died_has_left_is_done_and_its_energy_is_not_known(inbox_node):
    leave(inbox_node, "17.prolog", ago_s=30)  # later than a counter tells of its start
    once(inbox_node)
    assert inbox_node.opened() == ["gpu0"]
    leave(inbox_node, "17.epilog", ago_s=0)
    once(inbox_node)
    (energy,) = inbox_node.said("energy")
    assert energy["error"] == "GPU 0: its energy was not known at the start"
    inbox_node.run("prolog", 18, "0")
    time.sleep(0.05)
    account = (inbox_node.accounts / "gpu0").read_text().split()
    account[3] = str(float(account[3]) - 60)
    (inbox_node.accounts / "gpu0").write_text(" ".join(account) + "\n")
    leave(inbox_node, "18.epilog", ago_s=30)
    once(inbox_node)
    assert inbox_node.said("energy")[-1]["error"] == "the agent learned of its end too late"
    assert inbox_node.left() == []


def test_a_late_word_changes_nothing_of_a_later_job(inbox_node):
    inbox_node.run("prolog", 18, "0")
    leave(inbox_node, "17.prolog", ago_s=300)
    leave(inbox_node, "18.epilog", ago_s=200)  # of its run before it was requeued
    once(inbox_node)
    assert (inbox_node.accounts / "gpu0").read_text().startswith("18 ")
    assert (inbox_node.said("energy"), inbox_node.left()) == ([], [])


def test_a_late_word_takes_no_clock_of_a_later_job_or_run(inbox_node):
    began = time.time()
    inbox_node.run("prolog", 18, "0", "freq=900")
    ago_s = time.time() - began + 1
    leave(inbox_node, "17.prolog", ago_s=ago_s + 1)  # short, without a clock: its hook did not wait
    leave(inbox_node, "16.prolog", ago_s=ago_s + 60)
    leave(inbox_node, "18.epilog", ago_s=ago_s)  # of its run before it was requeued
    once(inbox_node)
    assert (inbox_node.locked(), inbox_node.opened(), inbox_node.left()) == ({0: 900}, ["gpu0"], [])
    inbox_node.run("epilog", 18, "0")
    assert (inbox_node.locked(), inbox_node.opened()) == ({}, [])


def test_a_full_inbox_is_left_alone(inbox_node, agent):
    agent.send_signal(signal.SIGSTOP)
    for number in range(30):
        leave(inbox_node, f"{number}.other")
    agent.send_signal(signal.SIGCONT)
    inbox_node.run("prolog", 17, "0")
    assert inbox_node.started() == ["gpu-aware-clock"]


def test_nonsense_and_unfinished_files_are_dropped_or_wait(inbox_node):
    leave(inbox_node, "17.prolog", "- 0 - -")
    leave(inbox_node, "18.prolog", "- 0 - -", ago_s=100)
    leave(inbox_node, "x.prolog")
    leave(inbox_node, "19.other", ago_s=100)
    leave(inbox_node, "20.prolog", "- 0,x - - n1 .\n")
    leave(inbox_node, "21.prolog", "- 1 - - n1 .\n")
    once(inbox_node)
    assert (inbox_node.left(), inbox_node.opened()) == (["17.prolog"], ["gpu1"])


def test_the_start_of_the_node_forgets_what_was_left(inbox_node):
    leave(inbox_node, "17.prolog")
    inbox_node.command("reset-all")
    assert inbox_node.left() == []


@pytest.mark.parametrize(
    "order",
    [
        ["17.epilog", "18.prolog"],
        ["18.epilog", "17.prolog"],
        ["17.prolog", "17.epilog"],
        ["9.prolog", "9.epilog", "17.prolog", "17.epilog", "100.prolog"],
        ["18.epilog", "17.prolog", "17.epilog"],
    ],
)
def test_in_one_moment_a_job_ends_before_others_begin_and_after_itself(tmp_path, order):
    (tmp_path / "inbox").mkdir()
    for name in sorted(order):
        file = tmp_path / "inbox" / name
        file.write_text("- 0 - - n1 .\n")
        os.utime(file, (1000, 1000))
    assert [word.name for word in Inbox(str(tmp_path)).take(1001.0)] == order
