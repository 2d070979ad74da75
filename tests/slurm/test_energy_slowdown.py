"""Clocks that save energy, on real Slurm: chosen from a sweep, counted by the GPUs' meters."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cluster import Cluster
from site_files import CONFIG, kept, new_store
from test_clockd import limits_on
from test_clocks_live import kinds, locked
from test_exploring import RECORDS, TRAIN, told
from test_way_of_a_job import let_go

from slurm_gpu_aware.features.energy.stage import EXACT

BOUND = 0.05
IDLE_W, MOST_W, TOP_MHZ = 42.0, 300.0, 1530
BASE_MHZ = 1312
"""Clock at which the fake GPUs need the times of their machine files."""
ALLOWED_ERROR = 0.02
LATE_S = 2.0
"""A busy machine reads the energy so long after it has set a clock, or undone it."""
WAIT = "sleep 300"
ITERATIONS, ITERATION_S = 100, 0.25
PROGRAM = f"""while [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.2; done
python3 - <<'END'
import os, time
node, gpu = os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_GPUS"]
worked = 0
for _ in range({ITERATIONS}):
    mhz = int(open(f"/shared/fakegpu/{{node}}/gpu{{gpu}}.locked_clocks").read().split()[0])
    lasts = {ITERATION_S} * (1 - SHARE + SHARE * {BASE_MHZ} / mhz)
    time.sleep(lasts)
    worked += lasts
print("worked", worked)
END"""
"""What the GPU needs for each iteration counts, not what a busy machine adds to it."""


LIMIT_SAVES = """
import sqlite3
with sqlite3.connect("/var/lib/slurm-gpu-aware/store.db", timeout=60) as db:
    print(db.execute("SELECT count(*) FROM timings WHERE limit_w > 0").fetchone()[0])
    of_top = "clock_mhz = 1530 AND limit_w = 150"
    print(db.execute(f"UPDATE timings SET power_w = 0.8 * power_w WHERE {of_top}").rowcount)
"""


@dataclass(frozen=True)
class Application:
    """What a job runs: ``clock_share`` of its time at BASE_MHZ scales with 1 / clock."""

    node: str
    user: str
    hint: str
    clock_share: float
    load: float

    def time(self, mhz: float) -> float:
        return 1 - self.clock_share + self.clock_share * BASE_MHZ / mhz

    def power(self, mhz: float) -> float:
        return IDLE_W + self.load * (MOST_W - IDLE_W) * (mhz / TOP_MHZ) ** 3


APPLICATIONS = (
    Application("n1", "alice", "class=A", 0.95, 0.9),
    Application("n2", "bob", "class=B", 0.6, 0.7),
    Application("n3", "alice", "class=C", 0.1, 0.5),
    Application("n4", "bob", "class=B,model=stencil", 0.3, 0.8),
)
"""Three classes as the fake GPUs have them, and an application with times of its own."""


@pytest.fixture
def saving(cluster: Cluster) -> Iterator[None]:
    """A site that lets jobs run 5% longer, and has swept its clocks; loads as of the jobs."""
    with kept(cluster, CONFIG):
        cluster.sh("ctl", f"sed -i '/^.classes/d; /^clock_mhz/d' {CONFIG}")
        said = f'[energy]\\nslowdown = {BOUND}\\nrecords = "{RECORDS}"'
        if cluster.suite == "sid":  # Slurm 24.11 cannot
            said += "\\nalloc_tres = true"
        cluster.sh("ctl", f"printf '\\n{said}\\n' >> {CONFIG}")
        cluster.sh("ctl", f"install -d -o slurm -m 1733 {RECORDS}; rm -f {RECORDS}/*")
        with new_store(cluster):
            swept = "gpu-aware-profile sweep --clocks 6 --allow-clock-changes --time-limit 600"
            cluster.sh("ctl", swept, timeout=600)
            shown = cluster.sh("ctl", ["gpu-aware-profile", "show", "--json"])
            found = re.search(r'"model": "([^"]+)"', shown)
            assert found is not None, shown
            own = APPLICATIONS[-1]
            lines = ["application,gpu_model,gpus,clock_mhz,time_s,power_w"]
            lines += [
                f"stencil,{found[1]},1,{mhz},{own.time(mhz)},{own.power(mhz)}"
                for mhz in (900, 1005, 1200, 1350, 1440, TOP_MHZ)
            ]
            cluster.sh("ctl", "printf '%s\\n' " + " ".join(lines) + " >/tmp/samples.csv")
            cluster.sh("ctl", ["gpu-aware-profile", "import", "/tmp/samples.csv"])
            cluster.sh("ctl", ["gpu-aware", "models", "fit"], timeout=120)
            cluster.kill("ctl", "selectd", "TERM")  # it reads models when it starts
            cluster.await_gate()
            for one in APPLICATIONS:
                loads = " ".join(f"/shared/fakegpu/{one.node}/gpu{n}.load" for n in range(4))
                cluster.sh("ctl", f"echo {100 * one.load:.0f} | tee {loads}")
            try:
                yield
            finally:
                cluster.sh("ctl", "rm -f /shared/fakegpu/*/gpu*.load")


def submitted_job(cluster: Cluster, one: Application, more: str = "", script: str = "") -> str:
    asked = ["--gres=gpu:1", "-w", one.node, f"--comment={one.hint}{more}"]
    return cluster.submit(one.user, asked, script or PROGRAM.replace("SHARE", str(one.clock_share)))


def energy_in_sacct(cluster: Cluster, job: str) -> dict[str, float]:
    """kWh by name, of the job's SystemComment; empty: it has none yet."""
    asked = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "SystemComment"]
    pairs = re.findall(r"(\w+)=([0-9.]+)kWh", cluster.sh("ctl", asked))
    return {name: float(kwh) for name, kwh in pairs}


def metered(cluster: Cluster, one: Application, gpu: int, mhz: int) -> tuple[float, float]:
    """(Seconds, kWh) of the last time that a GPU was locked, by the record of the fake driver."""
    out = cluster.sh("ctl", f"grep 'gpu{gpu} locked_clocks' /shared/fakegpu/{one.node}/history")
    changes = [line.split() for line in out.splitlines()[-2:]]
    assert [change[3] for change in changes] == [str(mhz), "reset"], out
    seconds = float(changes[1][0]) - float(changes[0][0])
    return seconds, seconds * one.power(mhz) / 3.6e6


def worked_s(cluster: Cluster, job: str, user: str) -> float:
    return float(cluster.output(job, user).split("worked")[1])


def energy_report(cluster: Cluster) -> dict[tuple[str, str], dict[str, Any]]:
    rows = json.loads(cluster.sh("ctl", ["gpu-aware", "report", "--json"]))["energy"]
    return {(row["by"], row["name"]): row for row in rows}


def test_each_job_saves_what_sacct_and_the_report_say(cluster: Cluster, saving: None) -> None:
    jobs = {}
    for one in APPLICATIONS:
        jobs[one] = submitted_job(cluster, one), submitted_job(cluster, one, f",freq={TOP_MHZ}")
    at: dict[str, tuple[int, int]] = {}
    for one, both in jobs.items():
        for job in both:
            cluster.wait(job, "RUNNING")
            (gpu,) = cluster.gpus(job)[one.node]
            cluster.wait_until(lambda at=(one.node, gpu): at in locked(cluster), 20, "its clock")
            at[job] = gpu, locked(cluster)[one.node, gpu]
    for one, both in jobs.items():
        for job in both:
            let_go(cluster, one.user, job)
    for one, (own, fast) in jobs.items():
        assert at[fast][1] == TOP_MHZ
        assert at[own][1] < TOP_MHZ, one
        chosen = cluster.explained(own)["why"]["energy"]
        assert abs(chosen["clock_mhz"] - at[own][1]) <= 1
        assert 0 < chosen["saves"] < 0.6
        assert chosen["at_most"] <= BOUND + EXACT
        assert "energy" not in cluster.explained(fast)["why"]
    for both in jobs.values():
        for job in both:
            cluster.wait(job, "COMPLETED", 90)
            saves = job == both[0]
            found = lambda job=job, saves=saves: (  # noqa: E731
                ("gpu_saved" in energy_in_sacct(cluster, job)) == saves
                and bool(energy_in_sacct(cluster, job))
            )
            cluster.wait_until(
                found, 120, lambda job=job: f"{job}: {energy_in_sacct(cluster, job)}"
            )
    saved = dict.fromkeys(("alice", "bob"), 0.0)
    for one, (own, fast) in jobs.items():
        energies = {job: energy_in_sacct(cluster, job)["gpu_energy"] for job in (own, fast)}
        for job, kwh in energies.items():
            late = LATE_S * one.power(at[job][1]) / 3.6e6
            wanted = pytest.approx(metered(cluster, one, *at[job])[1], rel=ALLOWED_ERROR, abs=late)
            assert kwh == wanted, job
            asked = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "AllocTRES"]
            joules = re.findall(r"energy=(\d+)", cluster.sh("ctl", asked))
            in_tres = [pytest.approx(3.6e6 * kwh, abs=4)] if cluster.suite == "sid" else []
            assert [float(amount) for amount in joules] == in_tres
        slow_s, fast_s = (worked_s(cluster, job, one.user) for job in (own, fast))
        assert slow_s / fast_s <= 1 + BOUND + 0.01, one
        spends = slow_s * one.power(at[own][1]) / (fast_s * one.power(TOP_MHZ))
        kwh = energy_in_sacct(cluster, own)["gpu_saved"]
        assert kwh / (kwh + energies[own]) == pytest.approx(1 - spends, abs=ALLOWED_ERROR), one
        saved[one.user] += kwh
    rows = energy_report(cluster)
    for user, kwh in saved.items():
        assert rows["user", user]["measured"] == 4
        assert rows["user", user]["saved_kwh"] == pytest.approx(kwh, rel=0.01)
        own_kwh = sum(
            energy_in_sacct(cluster, job)["gpu_energy"]
            for one in APPLICATIONS
            for job in (jobs[one] if one.user == user else ())
        )
        assert rows["user", user]["kwh"] == pytest.approx(own_kwh, rel=0.01)
    assert locked(cluster) == {}


def test_what_the_user_says_stays_and_deaths_leave_no_clock(cluster: Cluster, saving: None) -> None:
    own, one = APPLICATIONS[2], APPLICATIONS[1]
    asked = ["--gres=gpu:1", "-w", own.node, f"--comment={own.hint}", "--gpu-freq=900"]
    named = cluster.submit(own.user, asked, WAIT)
    hints = ",slower=0", ",freq=max"
    for job in (named, *(submitted_job(cluster, own, more, WAIT) for more in hints)):
        cluster.wait(job, "RUNNING")
        decision = cluster.explained(job)
        assert (decision["clock_mhz"], "energy" in decision["why"]) == (None, False)
    assert "gpu:900" in cluster.job(named)["TresFreq"]
    cluster.cancel_all()
    for moment in ("submitted", "running", "ending"):
        job = submitted_job(cluster, one, "", WAIT)

        def kill() -> None:
            cluster.run("ctl", 'kill -9 "$(services pid selectd)"')
            cluster.run(one.node, 'kill -9 "$(services pid clockd)"')

        if moment == "submitted":
            kill()
        cluster.wait(job, "RUNNING", 120)
        cluster.wait_until(lambda: len(locked(cluster)) == 1, 30, lambda: str(locked(cluster)))
        if moment == "running":
            kill()
            cluster.wait_until(lambda job=job: "started" in kinds(cluster, job), 60, "its start")
            assert len(locked(cluster)) == 1
        if moment == "ending":
            cluster.explained(job)  # the ledger has its decision
        cluster.sh("ctl", ["scancel", job])
        if moment == "ending":
            kill()
        cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))
    assert told(cluster, job)["decisions"][-1]["why"]["energy"]["saves"] > 0


def test_a_job_slower_than_allowed_has_its_default_clock_back(
    cluster: Cluster, saving: None
) -> None:
    """Its time depends on the clock by more than its class's, so that it is a tenth too slow.

    Its model is fitted to that, and the next such job has a clock with which it is in time.
    """
    one = APPLICATIONS[2]
    first = submitted_job(cluster, one, "", WAIT)
    cluster.wait(first, "RUNNING")
    slow_mhz = cluster.explained(first)["why"]["energy"]["clock_mhz"]
    cluster.sh("ctl", ["scancel", first])
    cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))
    share = (1.1 * (1 + BOUND) - 1) / (TOP_MHZ / slow_mhz - 1)
    program = TRAIN.replace("0.02 + 0.08", f"0.1 * {1 - share} + 0.1 * {share}")
    measured = (
        f"exec srun gpu-aware-profile job --model gas --class C --slice 8 --out {RECORDS}"
        f" -- python3 -c '{program}'"
    )
    job = submitted_job(cluster, one, "", measured)
    cluster.wait(job, "RUNNING")
    cluster.wait_until(lambda: len(locked(cluster)) == 1, 30, lambda: str(locked(cluster)))
    cluster.wait_until(
        lambda: "clock_checked" in kinds(cluster, job),
        *(120, lambda: f"{kinds(cluster, job)} {cluster.sh('ctl', f'tail -n 5 {RECORDS}/*')}"),
    )
    (found,) = [e["detail"] for e in told(cluster, job)["events"] if e["kind"] == "clock_checked"]
    assert found["slow"], found
    assert found["slower"] == pytest.approx(1.1 * (1 + BOUND) - 1, abs=0.03)
    cluster.wait_until(lambda: locked(cluster) == {}, 60, lambda: str(locked(cluster)))
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.wait_told(job, r"so\s+its\s+default\s+clock\s+is\s+back")
    # Its model knows both clocks then, and one between them that is within the bound.
    cluster.wait_until(
        lambda: "model_fitted" in kinds(cluster, job), 60, lambda: str(kinds(cluster, job))
    )
    cluster.wait_told(job, r"Model\s+alice/class\s+C\s+was\s+fitted\s+anew")
    cluster.sh("ctl", ["scancel", job])
    again = submitted_job(cluster, one, "", measured)
    # On another node: the program takes the clock of any GPU of its node.
    other = cluster.submit("bob", ["--gres=gpu:1", "-w", "n4", "--comment=class=C"], WAIT)
    cluster.wait_all((again, other), "RUNNING")
    chosen = [cluster.explained(later)["why"]["energy"]["clock_mhz"] for later in (again, other)]
    assert slow_mhz == chosen[1] < chosen[0] < TOP_MHZ
    cluster.wait_until(
        lambda: "clock_checked" in kinds(cluster, again), 120, lambda: str(kinds(cluster, again))
    )
    (found,) = [e["detail"] for e in told(cluster, again)["events"] if e["kind"] == "clock_checked"]
    assert not found["slow"], found
    assert 0.01 < found["slower"] < BOUND + 0.02
    cluster.cancel_all()

    def checked() -> list[tuple[object, ...]]:
        rows = json.loads(cluster.sh("ctl", ["gpu-aware", "report", "--json"]))["clocks"]
        return [tuple(row[key] for key in ("name", "jobs", "slow", "fitted")) for row in rows]

    cluster.wait_until(lambda: checked() == [("class C", 2, 1, 1)], 30, lambda: str(checked()))


def test_a_power_limit_that_saves_is_set_and_undone_whoever_dies(
    cluster: Cluster, saving: None
) -> None:
    """Of fake GPUs limits save what clocks save, so the store is told that one saves more."""
    one = APPLICATIONS[2]
    asked = f"--node {one.node} --class C --runs 1 --clocks 3 --power-limits 2"
    swept = f"gpu-aware-profile sweep {asked} --allow-clock-changes --time-limit 600"
    cluster.sh("ctl", swept, timeout=600)
    assert (limits_on(cluster), locked(cluster)) == ({}, {})
    assert cluster.sh("ctl", ["python3", "-c", LIMIT_SAVES]).split() == ["24", "4"]
    fitted = "gpu-aware models fit; gpu-aware models show C --slowdown 1"
    assert "1530 MHz, 150 W" in cluster.sh("ctl", fitted, timeout=300)
    for moment in ("queued", "running", "never"):
        cluster.kill("ctl", "selectd", "KILL" if moment == "queued" else "TERM")
        cluster.await_gate()
        job = submitted_job(cluster, one, ",slower=1", WAIT)
        cluster.wait(job, "RUNNING", 120)
        cluster.wait_until(lambda: len(locked(cluster)) == 1, 30, lambda: str(locked(cluster)))
        ((at, mhz),) = locked(cluster).items()
        chosen = cluster.explained(job)["why"]["energy"]
        assert (chosen["clock_mhz"], chosen["limit_w"], mhz) == (TOP_MHZ, 150, TOP_MHZ)
        assert limits_on(cluster) == {at: 150}
        if moment == "running":
            cluster.run("ctl", 'kill -9 "$(services pid selectd)"')
            cluster.run(one.node, 'kill -9 "$(services pid clockd)"')
        cluster.sh("ctl", ["scancel", job])
        undone = lambda: limits_on(cluster) == {} == locked(cluster)  # noqa: E731
        cluster.wait_until(undone, 60, lambda: f"{limits_on(cluster)} {locked(cluster)}")
    cluster.wait_told(job, r"1530\s+MHz\s+and\s+150\s+W,\s+at\s+most")
