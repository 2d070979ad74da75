"""The agent on real Slurm: orders move the clocks of a running job's GPUs, and of no other's."""

import json
import math
import re
import time
from typing import Any

from cluster import NODES, Cluster
from site_files import kept
from test_clocks_live import locked
from test_power import FILE, GPUS, IDLE_W, MARGIN, with_model

ORDERS = "/etc/slurm/gpu-aware-orders"
WAIT = "sleep 300"
LAST: dict[str, int] = {}
"""Node -> number of the last orders that a test wrote."""


def order(
    cluster: Cluster, node: str, *lines: str, valid_s: int = 300, owner: str = "slurm"
) -> int:
    """Write a node's orders as the selector does; return their number.

    Its number comes from the time, as an agent takes no smaller one from the selector later.
    """
    seq = LAST[node] = max(LAST.get(node, 0) + 1, int(time.time()))
    text = "\n".join([f"gpu-aware-orders/1 {seq} {int(time.time()) + valid_s}", *lines])
    file = f"{ORDERS}/{node}.orders"
    put = f"printf '%s\\n' '{text}' > {file}.new && chown {owner} {file}.new"
    cluster.sh("ctl", f"{put} && mv {file}.new {file}")
    return seq


def reports(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    text = cluster.sh("ctl", f"grep '\"agent\"' /shared/gpu-aware/clocks/{node}.jsonl || true")
    return [json.loads(line) for line in text.splitlines()]


def carried_out(cluster: Cluster, node: str, seq: int) -> None:
    cluster.wait_until(
        lambda: any(report["seq"] == seq for report in reports(cluster, node)), 60, "the report"
    )


def running(cluster: Cluster, user: str, *options: str) -> tuple[str, str, tuple[int, ...]]:
    """(job, node, its GPUs)."""
    job = cluster.running_job(user, list(options), WAIT)
    ((node, gpus),) = cluster.gpus(job).items()
    return job, node, gpus


def line(job: str, mhz: int, gpus: tuple[int, ...]) -> str:
    return f"{job} {mhz} {'+'.join(map(str, gpus))}"


def test_orders_move_the_clock_of_a_running_job_and_of_no_other(cluster: Cluster) -> None:
    job, node, gpus = running(cluster, "alice", "--gres=gpu:2", "-w", "n1")
    other, _, others = running(cluster, "bob", "--gres=gpu:1", "-w", "n1", "--comment=freq=1200")
    # The prolog, which locks it, may still run after the job's start.
    (mine,) = ((node, gpu) for gpu in others)
    cluster.wait_until(lambda: mine in locked(cluster), 30, lambda: str(locked(cluster)))
    bystander = {mine: locked(cluster)[mine]}
    carried_out(cluster, node, order(cluster, node, line(job, 900, gpus)))
    assert locked(cluster) == {(node, gpu): 900 for gpu in gpus} | bystander
    carried_out(cluster, node, order(cluster, node, line(job, 600, gpus)))
    assert locked(cluster) == {(node, gpu): 600 for gpu in gpus} | bystander
    # A GPU of the other job, in the name of the first: the whole order is refused.
    carried_out(cluster, node, order(cluster, node, line(job, 900, (*gpus, *others))))
    assert locked(cluster) == bystander
    carried_out(cluster, node, order(cluster, node, line(job, 900, gpus)))
    cluster.sh("ctl", ["scancel", job])
    cluster.wait_until(lambda: locked(cluster) == bystander, 60, lambda: str(locked(cluster)))
    cluster.sh("ctl", ["scancel", other])
    cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))

    def set_mhz() -> set[object]:
        told = json.loads(cluster.sh("ctl", ["gpu-aware", "explain", job, "--json"]))
        return {event["detail"].get("mhz") for event in told["events"]}

    cluster.wait_until(lambda: set_mhz() >= {900, 600}, 60, lambda: str(set_mhz()))


def test_on_doubt_and_when_the_agent_dies_clocks_go_back(cluster: Cluster) -> None:
    job, node, gpus = running(cluster, "alice", "--gres=gpu:2", "-w", "n2")
    moved = {(node, gpu): 900 for gpu in gpus}

    def back_to(clocks: dict[tuple[str, int], int]) -> None:
        cluster.wait_until(lambda: locked(cluster) == clocks, 60, lambda: str(locked(cluster)))

    order(cluster, node, line(job, 900, gpus))
    back_to(moved)
    seq = order(
        cluster, node, line(job, 900, gpus), valid_s=15
    )  # a busy agent carries them out, too
    carried_out(cluster, node, seq)
    expired = lambda: "expired" in reports(cluster, node)[-1]["error"]  # noqa: E731
    cluster.wait_until(expired, 60, "they expire")
    back_to(moved)  # a lower clock stays
    order(cluster, node, line(job, 900, gpus))
    back_to(moved)
    order(cluster, node, line(job, 900, gpus), owner="alice")
    back_to({})
    order(cluster, node, line(job, 900, gpus))
    back_to(moved)
    cluster.sh(node, "pkill -9 -f '[g]pu-aware clockd'")
    cluster.sh("ctl", ["scancel", job])
    back_to({})


def limits_on(cluster: Cluster) -> dict[tuple[str, int], int]:
    """(node, GPU) -> power limit in W where it is not the machine's own, 300 W."""
    out = cluster.sh("ctl", "cd /shared/fakegpu && grep -H . */gpu*.power_limit || true")
    found = re.findall(r"^(n\d)/gpu(\d)\.power_limit:(\d+)$", out, flags=re.M)
    return {(n, int(gpu)): int(mw) // 1000 for n, gpu, mw in found if mw != "300000"}


def test_power_limits_are_set_moved_and_undone_whoever_dies(cluster: Cluster) -> None:
    def are(limits: dict[tuple[str, int], int]) -> None:
        told = "cat /shared/gpu-aware/clocks/n3.jsonl | tail -5"
        cluster.wait_until(
            lambda: limits_on(cluster) == limits,
            *(60, lambda: f"{limits_on(cluster)} {cluster.sh('ctl', told)}"),
        )

    asked = ["--gres=gpu:2", "-w", "n3", "--begin=now+1hour"]
    for death in ("", "clockd", "slurmd", "all of the node"):
        job = cluster.submit("alice", asked, WAIT)
        # As the selector binds a job with a limit; on the idle node Slurm chooses these GPUs.
        extra = "extra=freq=900:250@0+1"
        cluster.sh("ctl", f"scontrol update job={job} licenses= {extra} starttime=now")
        cluster.wait(job, "RUNNING")
        cluster.wait_until(
            lambda: len(limits_on(cluster)) == 2, 30, lambda: str(limits_on(cluster))
        )
        given = sorted(limits_on(cluster))
        are(dict.fromkeys(given, 250))
        both = lambda given=given: sorted(locked(cluster)) == given  # noqa: E731
        cluster.wait_until(both, 60, lambda: str(locked(cluster)))  # set after limits
        gpus = "+".join(str(gpu) for _, gpu in given)
        order(cluster, "n3", f"{job} 600:200 {gpus}")
        are(dict.fromkeys(given, 200))
        seq = order(cluster, "n3", f"{job} 600:20 {gpus}")  # below the range of the card
        carried_out(cluster, "n3", seq)
        are(dict.fromkeys(given, 200))
        if death == "clockd":
            cluster.sh("n3", "pkill -9 -f '[g]pu-aware clockd'")
        elif death == "slurmd":
            cluster.kill("n3", "slurmd")
        elif death:
            cluster.stop("n3")
            assert sorted(limits_on(cluster)) == sorted(locked(cluster)) == given
            cluster.start("n3")
        cluster.sh("ctl", ["scancel", job])
        are({})
        cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))


def test_a_job_without_a_clock_has_an_account_of_its_energy(cluster: Cluster) -> None:
    # A busy agent reads a counter some seconds late, which counts little against 20 s.
    job = cluster.submit("alice", ["--gres=gpu:3", "-N1"], "sleep 20")
    cluster.wait(job, "COMPLETED")

    def energy() -> dict[str, Any] | None:
        told = json.loads(cluster.sh("ctl", ["gpu-aware", "explain", job, "--json"]))
        found: dict[str, Any] | None = told["energy"]
        return found

    cluster.wait_until(lambda: energy() is not None, 60, "the ledger knows")
    found = energy()
    assert found is not None
    assert found["unknown"] == []
    idle_w = 40.0
    assert found["gpu_s"] > 60.0
    assert abs(found["energy_j"] / found["gpu_s"] - idle_w) < 20.0

    def comment() -> str:
        asked = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "SystemComment"]
        return cluster.sh("ctl", asked).strip()

    cluster.wait_until(lambda: comment().startswith("gpu_energy="), 60, "sacct shows it")


def test_every_agent_reports_the_power_of_its_node(cluster: Cluster) -> None:
    for node in NODES:  # no orders, as those of tests before this one expire
        carried_out(cluster, node, order(cluster, node))
        known = lambda n=node: len(reports(cluster, n)[-1]["power_w"]) == 4  # noqa: E731
        cluster.wait_until(known, 150, lambda n=node: str(reports(cluster, n)[-1]))
    doctor = json.loads(cluster.sh("ctl", "gpu-aware doctor --json || true"))
    (check,) = [check for check in doctor["checks"] if check["name"] == "clockd"]
    assert check["status"] == "ok", check


def power_over_time(
    cluster: Cluster, since: float, ends: dict[str, float], model_w: dict[int, float]
) -> list[tuple[float, float]]:
    """(Unix time, modelled power) after each change of a clock; ``model_w``: of a GPU, by clock.

    A GPU with a clock is busy until the clock is reset or its job has ended (``ends``: GPU -> Unix
    time); the epilog resets the clock a little later.
    """
    out = cluster.sh("ctl", "cd /shared/fakegpu && grep -H locked_clocks */history || true")
    found = re.findall(
        r"^(n\d)/history:([0-9.]+) (gpu\d) locked_clocks (\d+|reset)", out, flags=re.M
    )
    changes = sorted(
        (float(at), node + gpu, to) for node, at, gpu, to in found if float(at) >= since
    )
    clocks: dict[str, int] = {}
    power = []
    for at, gpu, to in changes:
        clocks.pop(gpu, None)
        if to != "reset":
            clocks[gpu] = int(to)
        now = [mhz for one, mhz in clocks.items() if at < ends.get(one, math.inf)]
        busy = sum(model_w[mhz] - IDLE_W for mhz in now)
        power.append((at, GPUS * IDLE_W + busy))
    return power


def test_clocks_follow_a_power_limit_as_jobs_start_and_end(cluster: Cluster) -> None:
    """A running job's clock falls before another job starts, and rises when that has ended."""
    asked = ["--gres=gpu:1", "--comment=model=bert,freq=auto"]
    with kept(cluster, FILE):
        with_model(cluster)
        since = time.time()
        # Power for both jobs at their most efficient clock, and not at the highest one.
        limit = (GPUS * IDLE_W + 330) / (1 - MARGIN)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(limit))])
        first = cluster.running_job("alice", asked, WAIT)
        cluster.wait_until(lambda: len(locked(cluster)) == 1, 30, lambda: str(locked(cluster)))
        ((gpu, alone),) = locked(cluster).items()
        second = cluster.submit("bob", asked, WAIT)
        cluster.wait(second, "RUNNING", 90)
        cluster.wait_until(lambda: len(locked(cluster)) == 2, 30, lambda: str(locked(cluster)))
        assert locked(cluster)[gpu] < alone
        (other,) = locked(cluster).keys() - {gpu}
        time.sleep(2)  # its end is known in whole seconds, and counts after its start
        cluster.sh("ctl", ["scancel", second])
        cluster.wait_until(
            lambda: locked(cluster) == {gpu: alone}, 90, lambda: str(locked(cluster))
        )
        cluster.sh("ctl", ["scancel", first])
        cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))
        end = cluster.sh("ctl", ["date", "-d", cluster.job(second)["EndTime"], "+%s"])
        planned = [cluster.explained(job)["why"]["power"] for job in (first, second)]
        model_w = {one["clock_mhz"]: one["power_w"] for one in planned}
        ends = {f"{other[0]}gpu{other[1]}": float(end)}
        power = power_over_time(cluster, since, ends, model_w)
        assert len(power) >= 5
        assert max(watts for _, watts in power) <= limit * (1 - MARGIN) + 1.0
