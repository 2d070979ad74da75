"""A job without a model tries several clocks at first, and its measurement makes the model."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import NODES, Cluster
from site_files import CONFIG, kept, new_store
from test_clockd import reports
from test_clocks_live import kinds, locked
from test_power import FILE, GPUS, IDLE_W, MARGIN, WAIT

RECORDS = "/shared/records"
IDLE, MOST = 42.0, 300.0
"""W of a fake GPU without load, and at its limit."""
TRAIN = """
import os, time
folder = "/shared/fakegpu/" + os.environ["SLURMD_NODENAME"]
def clock():
    for name in os.listdir(folder):
        if name.endswith(".locked_clocks"):
            try:
                return int(open(f"{folder}/{name}").read().split()[0])
            except (OSError, ValueError, IndexError):
                pass
    return 1530
due = time.time()
until = due + 900
while due < until:
    due += 0.02 + 0.08 * 1530 / clock()
    time.sleep(max(0, due - time.time()))  # what a busy machine delays, it makes up for
    with open(os.environ["GPU_AWARE_MARKS"], "ab") as marks:
        marks.write(b".")
"""


@pytest.fixture(scope="module")
def exploring(cluster: Cluster) -> Iterator[None]:
    """The site explores for 100 s, and knows the clocks of its GPUs and the curve of class B."""
    with kept(cluster, CONFIG, FILE):
        cluster.sh("ctl", f"printf '\\n[power]\\nexplore_s = 100\\n' >> {CONFIG}")
        cluster.sh("ctl", f"install -d -m 1733 {RECORDS}; rm -f {RECORDS}/*")
        with new_store(cluster):  # other tests count with jobs whose power no model knows
            cluster.sh(
                "ctl",
                "gpu-aware-profile sweep --clocks 6 --allow-clock-changes --time-limit 600",
                timeout=600,
            )
            cluster.kill("ctl", "selectd", "TERM")  # it reads the profile when it starts
            yield


def told(cluster: Cluster, job: str) -> dict[str, Any]:
    asked = ["gpu-aware", "explain", job, "--json"]
    found: dict[str, Any] = json.loads(cluster.sh("ctl", asked, check=False))
    return found


def agents(cluster: Cluster) -> str:
    """What the agents said last."""
    return str({node: reports(cluster, node)[-1:] for node in NODES})


def no_clock(cluster: Cluster) -> None:
    """Until no GPU is locked."""
    cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))


def test_a_job_makes_the_model_that_the_next_one_uses(cluster: Cluster, exploring: None) -> None:
    """The selector is killed meanwhile, and an agent: they leave no clock."""
    name = f"fresh{int(time.time())}"  # no test before this one has measured it
    measured = (
        f"exec srun gpu-aware-profile job --model {name} --class B --slice 2 --out {RECORDS}"
        f" -- python3 -c '{TRAIN}'"
    )
    asked = ["--gres=gpu:1", f"--comment=class=B,model={name},freq=auto"]
    first = cluster.submit("alice", [*asked, f"-w{NODES[0]}"], measured)
    # Beside it one of bob that is not measured: its node knows its power, from its start on.
    loads = " ".join(f"/shared/fakegpu/{NODES[1]}/gpu{gpu}.load" for gpu in range(4))
    cluster.sh("ctl", f"echo 80 | tee {loads}")
    plain = cluster.submit("bob", ["--gres=gpu:2", *asked[1:], f"-w{NODES[1]}"], WAIT)
    another = ["--gres=gpu:1", "--comment=class=B,model=other,freq=auto"]
    struck = cluster.submit("bob", [*another, f"-w{NODES[2]}"], WAIT)
    cluster.wait_all((first, plain, struck), "RUNNING")
    cluster.wait_until(
        lambda: "exploring" in kinds(cluster, first), 30, lambda: str(kinds(cluster, first))
    )
    other = cluster.running_job("alice", [*asked, f"-w{NODES[-1]}"], WAIT)
    seen: dict[str, set[int]] = {node: set() for node in NODES}

    def look() -> None:
        for (node, _), mhz in locked(cluster).items():
            seen[node].add(mhz)

    def changed() -> bool:
        look()
        return len(seen[NODES[2]]) >= 2

    def tried() -> bool:
        look()
        assert cluster.job(first)["JobState"] == "RUNNING", agents(cluster)
        return all("explored" in kinds(cluster, job) for job in (first, plain, struck))

    try:
        cluster.wait_until(changed, 90, lambda: f"{seen} {agents(cluster)}")
        cluster.run("ctl", 'kill -9 "$(services pid selectd)"')
        cluster.run(NODES[2], 'kill -9 "$(services pid clockd)"')
        # The next selector ends what was begun; the job goes on at its own clock.
        cluster.wait_until(tried, 200, lambda: f"{seen} {agents(cluster)}")
    finally:
        cluster.sh("ctl", "rm -f /shared/fakegpu/*/gpu*.load")
    assert len(seen[NODES[0]]) >= 4
    assert "exploring" not in kinds(cluster, other)  # one job at a time
    no_clock(cluster)
    assert cluster.job(struck)["JobState"] == "RUNNING"
    # A job of another user is explored now, and ends in the middle.
    ends = cluster.running_job("alice", another, WAIT)
    cluster.wait_until(lambda: locked(cluster) != {}, 60, lambda: agents(cluster))
    cluster.sh("ctl", ["scancel", ends])
    no_clock(cluster)
    time.sleep(4)
    cluster.end_all()  # the record is not written any more
    record = cluster.sh("ctl", f"cat {RECORDS}/gpu-aware-job-{first}-*.csv")
    rows = [line.split(",") for line in record.splitlines()[1:]]
    assert len({row[6] for row in rows if row[7] and row[8]}) >= 4, record
    cluster.sh("ctl", f"touch -d '10 minutes ago' {RECORDS}/*.csv")
    cluster.sh("ctl", ["gpu-aware-profile", "collect", RECORDS])
    cluster.sh("ctl", ["gpu-aware", "models", "fit"], timeout=120)
    shown = json.loads(
        cluster.sh("ctl", ["gpu-aware", "models", "show", f"alice/{name}", "--json"])
    )
    assert shown[0]["quality"]["time_samples"] >= 4
    assert shown[0]["quality"]["time_error"] < 0.15
    assert shown[0]["measured"]["low_mhz"] < 0.7 * 1530
    (found,) = [e["detail"] for e in told(cluster, plain)["events"] if e["kind"] == "explored"]
    assert len(found["power_w"]) >= 4, found
    for mhz, watts in zip(found["mhz"], found["power_w"], strict=True):
        assert watts == pytest.approx(2 * (IDLE + 0.8 * (MOST - IDLE) * (mhz / 1530) ** 3), rel=0.1)
    cluster.wait_told(plain, rf"{found['power_w'][0]:.0f}\s+W\s+at\s+{found['mhz'][0]}\s+MHz")
    shown = json.loads(cluster.sh("ctl", ["gpu-aware", "models", "show", f"bob/{name}", "--json"]))
    assert shown[0]["quality"]["time_samples"] == 0
    assert shown[0]["quality"]["power_samples"] == len(found["power_w"])
    cluster.kill("ctl", "selectd", "TERM")  # it reads models when it starts
    watts = (GPUS * IDLE_W + 3 * 340) / (1 - MARGIN)
    cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])
    second = cluster.running_job("alice", asked, WAIT)
    chosen = cluster.explained(second)
    assert "model" not in chosen["why"], chosen
    assert chosen["why"]["power"]["model"].startswith(f"alice/{name} on")
    assert "exploring" not in kinds(cluster, second)
