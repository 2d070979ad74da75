"""A power limit on real Slurm: what it holds back starts when there is power for it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster import NODES, Cluster
from site_files import kept, new_store
from test_clocks_live import locked

from slurm_gpu_aware.cli.job_text import facts_of

FILE = "/var/lib/slurm-gpu-aware/power.json"
IDLE_W, GPU_W, MARGIN = 60.0, 400.0, 0.05
GPUS = 4 * len(NODES)
WAIT = "sleep 300"


@contextmanager
def power_for(cluster: Cluster, gpus: int) -> Iterator[None]:
    """The limit leaves power for so many GPUs, whose power limits no sweep has read."""
    with kept(cluster, FILE), new_store(cluster):
        watts = (GPUS * IDLE_W + gpus * (GPU_W - IDLE_W)) / (1 - MARGIN)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts + 1))])
        yield


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[None]:
    """Power for three GPUs."""
    with power_for(cluster, 3):
        yield


def power(cluster: Cluster, user: str = "alice") -> dict[str, Any] | None:
    """Power after the last round, as ``status`` shows it to a user."""
    told = json.loads(cluster.sh("ctl", ["gpu-aware", "status", "--json"], user))
    found: dict[str, Any] | None = told["power"]
    return found


def why(cluster: Cluster, job: str) -> str:
    told = json.loads(cluster.sh("ctl", ["gpu-aware", "explain", job, "--json"]))
    return str((told["waiting"] or {}).get("reason"))


def plan_takes(cluster: Cluster, gpus: int) -> bool:
    """Whether the planned power is that of so many busy GPUs."""
    found = power(cluster)
    return found is not None and found["planned_w"] == GPUS * IDLE_W + gpus * (GPU_W - IDLE_W)


def test_a_job_waits_for_power_and_starts_when_another_ends(
    cluster: Cluster, limited: None
) -> None:
    first = cluster.running_job("alice", ["--gres=gpu:2"], WAIT)
    second = cluster.submit("bob", ["--gres=gpu:2"], WAIT)
    cluster.wait_until(
        lambda: "waits for power: it needs 680 W" in why(cluster, second), 60, why(cluster, second)
    )
    assert cluster.job(second)["JobState"] == "PENDING"
    cluster.wait_until(lambda: plan_takes(cluster, 2), 60, lambda: str(power(cluster)))
    cluster.sh("ctl", ["scancel", first])
    cluster.wait(second, "RUNNING", 90)
    cluster.wait_until(lambda: plan_takes(cluster, 2), 60, lambda: str(power(cluster)))


def test_without_a_limit_the_same_job_starts_at_once(cluster: Cluster, limited: None) -> None:
    cluster.running_job("alice", ["--gres=gpu:2"], WAIT)
    second = cluster.submit("bob", ["--gres=gpu:2"], WAIT)
    cluster.wait_until(lambda: "waits for power" in why(cluster, second), 60, why(cluster, second))
    cluster.sh("ctl", ["gpu-aware", "power", "set", "off", "--until", "1h"])
    cluster.wait(second, "RUNNING", 60)


def test_a_job_that_exceeds_the_limit_runs_alone(cluster: Cluster, limited: None) -> None:
    small = cluster.running_job("bob", ["--gres=gpu:1"], WAIT)
    large = cluster.submit("alice", ["--gres=gpu:4"], WAIT)
    cluster.wait_until(lambda: "waits for power" in why(cluster, large), 60, why(cluster, large))
    cluster.sh("ctl", ["scancel", small])
    cluster.wait(large, "RUNNING", 90)
    cluster.wait_until(
        lambda: (power(cluster) or {}).get("unmet") is True, 60, lambda: str(power(cluster))
    )
    assert "cannot be met" in facts_of(cluster.explained(large)["why"]).text


def drawn(clock_mhz: float) -> float:
    """Power of a GPU of bert, W: least energy at the lowest clock that is measured, 900 MHz."""
    return IDLE_W + 5e-8 * clock_mhz**3


def with_model(cluster: Cluster) -> None:
    """Application bert: 1.9 times faster on twice the GPUs, and measured at some clocks."""
    cluster.sh("ctl", ["gpu-aware-profile", "sweep"], timeout=300)
    shown = cluster.sh("ctl", ["gpu-aware-profile", "show", "--json"])
    found = re.search(r'"model": "([^"]+)"', shown)
    assert found is not None, shown
    model = found[1]
    lines = ["application,gpu_model,gpus,batch_size,clock_mhz,time_s,power_w"]
    for gpus in (1, 2, 4):
        for clock in (900, 1005, 1200, 1350, 1530):
            time_s = 0.1 * 1530 / clock / gpus**0.93
            watts = gpus * drawn(clock)
            lines.append(f"bert,{model},{gpus},{64 / gpus},{clock},{time_s},{watts}")
    cluster.sh("ctl", "printf '%s\\n' " + " ".join(lines) + " >/tmp/samples.csv")
    cluster.sh("ctl", ["gpu-aware-profile", "import", "/tmp/samples.csv"])
    cluster.sh("ctl", ["gpu-aware", "models", "fit"], timeout=120)
    cluster.kill("ctl", "selectd", "TERM")  # it reads models when it starts


@pytest.fixture(scope="module")
def bert(cluster: Cluster) -> None:
    """The model, for all tests of this file that need one."""
    with_model(cluster)


def test_sizes_and_clocks_follow_the_limit(cluster: Cluster, bert: None) -> None:
    with kept(cluster, FILE):
        asked = ["--gpus=1", "--comment=gpus=1-4,model=bert,freq=auto"]
        free = cluster.running_job("alice", asked, WAIT)
        assert sum(map(len, cluster.gpus(free).values())) == 4
        cluster.cancel_all()
        # Power for little more than one GPU at its most efficient clock.
        watts = (GPUS * IDLE_W + 60) / (1 - MARGIN)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])
        held = cluster.running_job("alice", asked, WAIT)
        ((node, slots),) = cluster.gpus(held).items()
        assert len(slots) == 1
        chosen = cluster.explained(held)
        assert chosen["why"]["power"]["more_gpus"]["gpus"] == 2
        assert "would end it" in facts_of(chosen["why"]).text
        cluster.wait_until(
            lambda: locked(cluster).keys() == {(node, slots[0])}, 90, lambda: str(locked(cluster))
        )
        assert abs(locked(cluster)[node, slots[0]] - chosen["clock_mhz"]) <= 20
        cluster.wait_until(lambda: power(cluster) is not None, 90, "the power in status")
        told = power(cluster)
        assert told is not None
        assert told["planned_w"] <= told["limit_w"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_running_clock_falls_before_another_job_starts(
    cluster: Cluster, bert: None, killed: bool
) -> None:
    """And it rises again when the other job has gone; modelled power never exceeds the limit.

    ``killed``: selector and agent are killed meanwhile, at several moments.
    """
    above_w = 172.0
    with kept(cluster, FILE):
        watts = (GPUS * IDLE_W + above_w) / (1 - MARGIN)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])
        asked = ["--gres=gpu:1", "--comment=model=bert,freq=auto"]
        first = cluster.running_job("alice", asked, WAIT)
        ((node, (slot,)),) = cluster.gpus(first).items()

        def clock() -> int:
            return locked(cluster).get((node, slot), 0)

        cluster.wait_until(lambda: clock() > 1200, 60, lambda: str(locked(cluster)))
        alone, seen = clock(), []
        held = {(node, slot)}  # GPUs that were locked; one that loses its lock draws the most
        second = cluster.submit("bob", asked, WAIT)

        def runs() -> bool:
            clocks = locked(cluster)
            if clocks != locked(cluster):  # one file after the other, while they change
                return False
            held.update(clocks)
            seen.append(sum(drawn(clocks.get(gpu, 1530)) - IDLE_W for gpu in held))
            if killed and len(seen) in (2, 9, 20):
                cluster.run("ctl", 'kill -9 "$(services pid selectd)"')
                cluster.run(node, 'kill -9 "$(services pid clockd)"')
            return bool(cluster.job(second)["JobState"] == "RUNNING") and len(clocks) == 2

        cluster.wait_until(runs, 120, lambda: f"{locked(cluster)} {why(cluster, second)}")
        assert clock() < alone
        assert max(seen) <= 1.05 * above_w, seen  # the fit of the model is not exact
        cluster.sh("ctl", ["scancel", second])
        cluster.wait_until(lambda: clock() >= alone, 120, lambda: str(locked(cluster)))
        cluster.sh("ctl", ["scancel", first])
        cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))


def test_all_running_clocks_fall_with_the_limit(cluster: Cluster, bert: None) -> None:
    """Regression: where one alone saved too little, each waited for the others."""

    def set_limit(above_w: float) -> None:
        watts = (GPUS * IDLE_W + above_w) / (1 - MARGIN)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])

    def clocks() -> dict[tuple[str, int], int]:
        return locked(cluster)

    with kept(cluster, FILE):
        set_limit(3 * 90.0)
        asked = ["--gres=gpu:1", "--comment=model=bert,freq=auto"]
        cluster.wait_all(
            [cluster.submit(user, asked, WAIT) for user in ("alice", "bob", "bob")], "RUNNING"
        )
        high = [0, 0, 0]

        def raised() -> bool:
            high[:] = sorted(clocks().values())
            return len(high) == 3 and high[0] > 1150

        # Those that start first have the power of the others until all have started.
        cluster.wait_until(raised, 90, lambda: str(clocks()))
        set_limit(3 * 50.0)

        def fallen() -> bool:
            """All of them, and by the last step so far that the limit holds."""
            now = clocks().values()
            above_w = sum(drawn(mhz) - IDLE_W for mhz in now)
            return len(now) == 3 and max(now) < high[0] - 100 and above_w <= 1.05 * 3 * 50.0

        cluster.wait_until(fallen, 90, lambda: str(clocks()))
        cluster.cancel_all()
        cluster.wait_until(lambda: clocks() == {}, 60, lambda: str(clocks()))


def test_a_moldable_job_without_a_model_keeps_its_number(cluster: Cluster) -> None:
    job = cluster.running_job("alice", ["--gpus=2", "--comment=gpus=1-4"], WAIT)
    assert sum(map(len, cluster.gpus(job).values())) == 2


@pytest.mark.parametrize("text", ["2kW", "eta=2", "-5", "0"])
def test_a_wrong_limit_is_refused(cluster: Cluster, text: str) -> None:
    out = cluster.sh("ctl", f"gpu-aware power set -- {text} 2>&1 || true")
    assert "is not off, watts, or eta=X" in out
    out = cluster.sh("ctl", "gpu-aware power set 500 2>&1 || true", user="alice")
    assert "cannot be written" in out
