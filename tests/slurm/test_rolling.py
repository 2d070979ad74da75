"""setup --roll on a live cluster: nodes change their GRES types, and no job notices.

The cluster is made plain first (``Gres=gpu:v100:4``); afterwards it is what it was.
"""

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from cluster import ENDED, NODES, Cluster
from idle_clock import Stopwatch
from site_files import CONFIG, GRES_CONF, SLURM_CONF
from test_limits import WAIT
from test_way_of_a_job import let_go, reconfigure

STATE = "/var/lib/slurm-gpu-aware/rollout.json"
PLAIN_GRES = """\
# Four GPUs on every node
AutoDetect=off
NodeName=n[1-4] Name=gpu Type=v100 File=/dev/nvidia[0-1] Cores=0-7
NodeName=n[1-4] Name=gpu Type=v100 File=/dev/nvidia[2-3] Cores=8-15
"""
INDEXED = "gpu:g0:1,gpu:g1:1,gpu:g2:1,gpu:g3:1"


def plain_conf(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if line.startswith("NodeName="):
            line = line.split(" Gres=")[0] + " Gres=gpu:v100:4  # four each"
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with nodes as a site has them that has never heard of us."""
    original = cluster.sh("ctl", ["cat", "/opt/cluster/etc/slurm.conf"])
    config = cluster.sh("ctl", ["cat", CONFIG])
    try:
        lay_out(cluster, plain_conf(original), PLAIN_GRES)
        # As setup --install writes it where no node has the feature yet
        conf = "/etc/slurm/gpu_aware_conf.lua"
        cluster.sh("ctl", f"sed -i 's/models = .*/models = {{}},/' {conf}")
        cluster.sh("ctl", ["touch", "-d", "+1 seconds", "/etc/slurm/job_submit.lua"])
        yield cluster
    finally:
        # One that a failed test has left would write its own files over ours.
        cluster.sh("ctl", ["pkill", "-KILL", "-f", "gpu-aware setup"], check=False)
        cluster.sh("ctl", ["tee", CONFIG], stdin=config)
        try:
            cluster.await_answer()
            cluster.end_all()  # a job that loses its GPUs' types would be requeued
        finally:
            try:
                lay_out(cluster, original, cluster.sh("ctl", ["cat", "/opt/cluster/etc/gres.conf"]))
                cluster.reset()
            finally:
                cluster.mode("aware")


def lay_out(cluster: Cluster, slurm_conf: str, gres_conf: str) -> None:
    """Change types on the idle cluster at once; a slurmd that registers before it has read the new
    files would be drained later."""
    before = cluster.slurmd_starts()
    time.sleep(1)  # they are whole seconds
    cluster.sh("ctl", f"rm -f {STATE} /etc/slurm/*.before-gpu-aware")
    cluster.sh("ctl", ["tee", GRES_CONF], stdin=gres_conf)
    cluster.sh("ctl", ["tee", SLURM_CONF], stdin=slurm_conf)
    cluster.sh("ctl", ["scontrol", "reconfigure"])
    first = "v100" if "v100" in gres_conf else "g0"

    def registered() -> bool:
        states = nodes(cluster)
        cluster.resume({name: state for name, (state, _) in states.items()})
        anew = {node for node, at in cluster.slurmd_starts().items() if at != before.get(node)}
        as_wanted = all(f"gpu:{first}" in g and s == "idle" for s, g in states.values())
        return anew == set(NODES) and as_wanted

    last = lambda: f"all nodes idle with gpu:{first}: {nodes(cluster)}"  # noqa: E731
    cluster.wait_until(registered, 120, last)


def nodes(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Node -> (state, GRES without sockets)."""
    out = cluster.sh("ctl", "sinfo -h -N -o '%N %T %G'", check=False)
    found = {}
    for line in out.splitlines():
        name, state, gres = line.split(None, 2)
        for socket in ("(S:0-1)", "(S:0)", "(S:1)"):
            gres = gres.replace(socket, "")
        found[name] = (state, gres)
    return found


def roll(cluster: Cluster, *args: str, timeout: float = 300) -> tuple[int, dict[str, Any], str]:
    """Run setup --roll (or --undo) to its end: (exit code, summary, talk)."""
    done = cluster.run("ctl", ["gpu-aware", "setup", *args, "--yes", "--json"], timeout=timeout)
    talk = done.stderr.decode()
    assert "Traceback" not in talk, talk
    assert "jobs may start" not in talk, talk
    return done.returncode, json.loads(done.stdout or b"{}"), talk


def results(summary: dict[str, Any]) -> dict[str, str]:
    return {o["node"]: o["result"] for o in summary["nodes"]}


class Load(threading.Thread):
    """Short GPU jobs, one after the other, in the forms that users have."""

    FORMS = (
        ("--gres=gpu:1", "--comment=class=A"),
        ("--gres=gpu:1", "--comment=place=off"),
        ("--gres=gpu:v100:2", "--comment=class=C"),
        ("--gres=gpu:2",),
        ("-N2", "--gpus-per-node=1", "--comment=class=B"),
        ("--gres=gpu:v100:1", "--comment=place=off"),
    )

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._end = threading.Event()
        self.jobs: list[str] = []
        self.refused: list[str] = []
        """What Slurm did not take within a minute."""

    def run(self) -> None:
        number = 0
        while not self._end.is_set():
            form = self.FORMS[number % len(self.FORMS)]
            number += 1
            self._submit(form, 1 + number % 3)
            self._end.wait(0.7)

    def _submit(self, form: Sequence[str], seconds: int) -> None:
        """For a moment after any ``scontrol reconfigure`` Slurm refuses all GPU jobs by itself."""
        watch = Stopwatch()
        while True:
            done = self._cluster.run(
                "ctl",
                ["sbatch", "--parsable", "-t5", *form],
                "alice",
                stdin=f"#!/bin/bash\nsleep {seconds}\ntrue\n",
            )
            said = done.stderr.decode()
            if done.returncode == 0:
                self.jobs.append(done.stdout.decode().split()[-1])
                return
            if "node configuration is not available" not in said or watch.idle_s > 60:
                self.refused.append(f"{form}: {said}")
                return
            time.sleep(0.3)

    def finish(self, deadline: float = 180) -> list[dict[str, str]]:
        """Stop submitting and wait for the last job; what became of each."""
        self._end.set()
        self.join(300)
        wanted = set(self.jobs)

        def left() -> list[str]:
            return [
                f"{j['JobId']} {j['JobState']} {j['Reason']} {j.get('TresPerNode')}"
                for j in self._cluster.jobs()
                if j["JobId"] in wanted and j["JobState"] not in ENDED
            ]

        self._cluster.wait_until(lambda: not left(), deadline, lambda: f"jobs end: {left()}")
        return [j for j in self._cluster.jobs() if j["JobId"] in wanted]


def assert_none_lost(load: Load, ended: list[dict[str, str]]) -> None:
    assert load.refused == []
    assert len(load.jobs) > 10
    missing = set(load.jobs) - {j["JobId"] for j in ended}
    wrong = [
        (j["JobId"], j["JobState"], j["Restarts"], j["NodeList"])
        for j in ended
        if (j["JobState"], j["Restarts"], j["ExitCode"]) != ("COMPLETED", "0", "0:0")
    ]
    assert not missing
    assert not wrong


def kill_now_and_then(cluster: Cluster, *args: str, times: int, chance: random.Random) -> None:
    """Start it and kill it with SIGKILL, again and again."""
    kill = ["pkill", "-KILL", "-f", "gpu-aware setup"]
    for _ in range(times):
        process = cluster.start_command("ctl", ["gpu-aware", "setup", *args])
        # From before the first change to the middle of a node
        time.sleep(chance.uniform(0.3, 3.0))
        dead = lambda p=process: cluster.run("ctl", kill).returncode == 0 or p.poll() is not None  # noqa: E731
        cluster.wait_until(dead, 60, "it has started, and is killed")
        cluster.finish(process, 60)


def test_under_load_and_killed_at_random_moments(plain: Cluster) -> None:
    before = plain.sh("ctl", f"cat {SLURM_CONF} {GRES_CONF}")
    chance = random.Random(8)
    load = Load(plain)
    load.start()
    try:
        kill_now_and_then(plain, "--roll", "--yes", times=5, chance=chance)
        code, summary, talk = roll(plain, "--roll")
        assert code == 0, talk
        assert set(results(summary).values()) <= {"changed", "already"}
        assert {g for _, g in nodes(plain).values()} == {INDEXED}
        kill_now_and_then(plain, "--undo", "--yes", times=4, chance=chance)
        code, summary, talk = roll(plain, "--undo")
        assert code == 0, talk
        assert {g for _, g in nodes(plain).values()} == {"gpu:v100:4"}
    finally:
        ended = load.finish()
    assert_none_lost(load, ended)
    # With no job left that asks for a feature, the files are what they were.
    code, _, talk = roll(plain, "--undo")
    assert code == 0, talk
    assert plain.sh("ctl", f"cat {SLURM_CONF} {GRES_CONF}") == before
    assert all("drain" not in state for state, _ in nodes(plain).values())


TYPED_FORMS = {
    "--gres=gpu:v100:2": 2,
    "--gpus-per-node=v100:2": 2,
    "--gpus=v100:2": 2,
    "-n2 --gpus-per-task=v100:1": 1,
    "--gpus-per-socket=v100:2 --sockets-per-node=1": 2,
}
"""Options -> GPUs that each task of ``srun`` sees."""
SEEN = "srun sh -c 'echo sees ${CUDA_VISIBLE_DEVICES-none}' || exit 9"


def submit_silently(cluster: Cluster, args: str, script: str = SEEN) -> str:
    """Submit as alice, for the first two nodes; sbatch says nothing but the id."""
    command = ["sbatch", "--parsable", "-H", "-x", "n[3-4]", *args.split()]
    done = cluster.run("ctl", command, "alice", stdin=f"#!/bin/bash\n{script}\n")
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().strip()


def test_typed_jobs_that_wait_run_after_their_nodes_have_changed(plain: Cluster) -> None:
    """Their type is gone, also for srun inside. One whose script asks for it is waited for."""
    jobs = {submit_silently(plain, form): count for form, count in TYPED_FORMS.items()}
    script = f"env | grep ^SLURM_GPUS_PER_NODE\nsrun --gpus-per-node=v100:1 true && {SEEN}"
    old = submit_silently(plain, "--gpus-per-node=v100:2", script)
    command = ["gpu-aware", "setup", "--roll", "--nodes", "n[1-2]", "--yes", "--json"]
    process = plain.start_command("ctl", command)

    def one_left() -> bool:
        state = nodes(plain)
        return (
            sorted(gres == INDEXED for _, gres in (state["n1"], state["n2"])) == [False, True]
            and "drain" not in state["n1"][0] + state["n2"][0]
        )

    plain.wait_until(one_left, 120, lambda: f"one of two nodes is changed: {nodes(plain)}")
    plain.sh("ctl", ["scontrol", "release", old])
    assert plain.wait(old, ENDED)["JobState"] == "COMPLETED"
    assert "SLURM_GPUS_PER_NODE=v100:2" in plain.output(old, "alice")
    out, told = plain.finish(process, 240)
    talk = told.decode()
    assert process.returncode == 0, talk
    summary = json.loads(out)
    assert results(summary) == {"n1": "changed", "n2": "changed"}
    assert summary["stranded_jobs"] == {}
    assert set(summary["untyped_jobs"]) == jobs.keys()
    assert "stays plain until these jobs have started or are cancelled, because" in talk
    assert f"job {old} can start only on nodes with GPUs of its type: its environment" in talk
    plain.sh("ctl", ["scontrol", "release", *jobs])
    for job_id, count in jobs.items():
        job = plain.wait(job_id, ENDED, deadline=120)
        assert job["JobState"] == "COMPLETED", plain.output(job_id, "alice")
        seen = [x for x in plain.output(job_id, "alice").split("\n") if x.startswith("sees")]
        assert {len(x.split(",")) for x in seen} == {count}, (job, seen)


def test_typed_jobs_that_are_left_behind_are_named(plain: Cluster) -> None:
    script = "srun --gres=gpu:v100:1 true"
    job = plain.submit("alice", ["-H", "-w", "n1", "--gpus=v100:1"], script)
    code, summary, talk = roll(plain, "--roll", "--nodes", "n1", "--strand")
    assert code == 3, talk
    assert list(summary["stranded_jobs"]) == [job]
    assert f"so they cannot start: {job}." in " ".join(talk.split())
    checks = json.loads(plain.run("ctl", ["gpu-aware", "doctor", "--json"]).stdout)["checks"]
    (check,) = (c for c in checks if c["name"] == "typed jobs")
    assert check["status"] == "failed"
    assert job in check["found"]
    answer = plain.sh("ctl", ["gpu-aware", "explain", job], user="slurm")
    assert "can no longer start" in " ".join(answer.split())
    # The others go on: the next run takes all nodes, and says the same of the job.
    code, summary, talk = roll(plain, "--roll")
    assert code == 3, talk
    assert results(summary) == {n: "already" if n == "n1" else "changed" for n in NODES}
    assert list(summary["stranded_jobs"]) == [job]
    told = plain.run("ctl", ["srun", "-t1", "--gpus=v100:1", "true"], "alice").stderr.decode()
    assert "--constraint=gpu_v100" in told
    plain.sh("ctl", "srun -t1 --gpus=1 --constraint=gpu_v100 true", "alice")


def test_some_nodes_indexed_and_some_plain(plain: Cluster) -> None:
    """On indexed nodes the GPUs are chosen, on plain ones the node; models work on both."""
    plain.sh("ctl", ["scontrol", "update", "nodename=n2", "state=drain", "reason=broken fan"])
    code, summary, _ = roll(plain, "--roll", "--nodes", "n[1-2]")
    assert code == 3
    assert results(summary) == {"n1": "changed", "n2": "skipped"}
    assert "broken fan" in next(o["why"] for o in summary["nodes"] if o["node"] == "n2")
    state = nodes(plain)
    assert [state[n][1] for n in NODES] == [INDEXED, *["gpu:v100:4"] * 3]
    assert state["n2"][0].startswith("drain")

    def placed(*args: str) -> tuple[dict[str, str], dict[str, Any]]:
        job = plain.submit("alice", args, "sleep 300")
        fields = plain.wait(job, "RUNNING")
        found: list[dict[str, Any]] = []

        def told() -> bool:  # by a copy of the ledger that lags a little
            answer = plain.sh("ctl", f"gpu-aware explain {job} --json", user="slurm")
            found[:] = json.loads(answer)["decisions"]
            return bool(found)

        plain.wait_until(told, 60, f"explain tells of job {job}")
        return fields, found[-1]

    fields, decision = placed("--gres=gpu:v100:2", "-w", "n1", "--comment=class=A")
    assert decision["exact"]
    asked = fields["TresPerNode"]
    assert asked.count("gpu:g") == 2
    given = plain.gpus(fields["JobId"])
    assert given == {"n1": tuple(decision["slots"][0])}
    fields, decision = placed("--gres=gpu:v100:2", "-w", "n3", "--comment=class=A")
    assert not decision["exact"]
    assert fields["NodeList"] == "n3" == decision["nodes"][0]
    assert "gpu:g" not in fields["TresPerNode"]
    # No typed request names both kinds: such a job is left to Slurm.
    wide = plain.running_job("alice", ["-N3", "--gpus-per-node=1"], "sleep 300")
    assert set(plain.gpus(wide)) == {"n1", "n3", "n4"}


def test_a_node_that_does_not_register_is_put_back(plain: Cluster) -> None:
    """The copies on the nodes are old: here the "distribution" takes the new lines out again."""
    before = plain.sh("ctl", ["cat", GRES_CONF])
    plain.sh("ctl", ["tee", "/tmp/old-gres.conf"], stdin=before)
    text = '[setup]\ndistribute = ["cp", "/tmp/old-gres.conf", "/etc/slurm/gres.conf"]\n'
    text += "register_timeout_s = 6.0\n"
    plain.sh("ctl", ["tee", "-a", CONFIG], stdin=text)
    running = plain.running_job("alice", ["--gres=gpu:1", "-w", "n2"], WAIT)
    code, summary, talk = roll(plain, "--roll", "--nodes", "n[1-2]")
    assert code == 1, talk
    (failed,) = (o for o in summary["nodes"] if o["result"] == "failed")
    assert failed["node"] == "n1"
    assert "not registered as configured" in failed["why"]
    assert "it was moved back" in failed["why"]
    plain.wait_until(lambda: nodes(plain)["n1"] == ("idle", "gpu:v100:4"), 90, "n1 is as it was")
    let_go(plain, "alice", running)
    assert plain.wait(running, "COMPLETED")["Restarts"] == "0"


def test_interrupted_while_it_waits(plain: Cluster) -> None:
    job = plain.running_job("alice", ["--gres=gpu:1", "-w", "n3"], "sleep 300")
    command = "echo $$ >/tmp/roll.pid; exec gpu-aware setup --roll --nodes n3 --yes --json"
    process = plain.start_command("ctl", ["sh", "-c", command])
    plain.wait_until(lambda: "drain" in nodes(plain)["n3"][0], 90, "n3 is drained")
    again = plain.run("ctl", ["gpu-aware", "setup", "--roll", "--yes"])
    assert again.returncode == 1
    assert b"another" in again.stderr
    plain.sh("ctl", "kill -INT $(cat /tmp/roll.pid)")
    out, talk = plain.finish(process, 60)
    assert process.returncode == 130
    assert b"waiting for 1 job" in talk
    assert results(json.loads(out)) == {"n3": "left"}
    state, gres = nodes(plain)["n3"]
    assert "drain" not in state
    assert gres == "gpu:v100:4"
    assert plain.job(job)["JobState"] == "RUNNING"


def test_slurmctld_hangs_when_it_is_reconfigured(plain: Cluster) -> None:
    """As 24.11.5 now and then does. Our supervisor restarts it, on a site an admin; it goes on.

    At the second time: the first brings features only, this one other types for n1.
    """
    wrapper = """\
#!/bin/sh
if [ "$1" = reconfigure ]; then
    echo x >>/tmp/hang/times
    [ "$(wc -l </tmp/hang/times)" -ne 2 ] || kill -STOP "$(services pid slurmctld)"
fi
exec /usr/bin/scontrol "$@"
"""
    plain.sh("ctl", "rm -rf /tmp/hang; mkdir /tmp/hang")
    plain.sh("ctl", ["tee", "/tmp/hang/scontrol"], stdin=wrapper)
    plain.sh("ctl", ["chmod", "755", "/tmp/hang/scontrol"])
    running = plain.running_job("alice", ["--gres=gpu:1", "-w", "n3"], "sleep 60")
    plain.await_saved()
    before = plain.service_pid("ctl", "slurmctld")
    command = "PATH=/tmp/hang:$PATH exec gpu-aware setup --roll --nodes n[1-2] --yes --json"
    done = plain.run("ctl", command, timeout=400)
    talk = done.stderr.decode()
    assert done.returncode == 0, talk
    assert results(json.loads(done.stdout)) == {"n1": "changed", "n2": "changed"}
    assert "slurmctld answers again, but the slurmds have not read their files" in talk
    # Features, n1 twice, n2; more if Slurm hangs by itself, too
    assert plain.sh("ctl", ["cat", "/tmp/hang/times"]).count("x") >= 4
    assert plain.service_pid("ctl", "slurmctld") != before
    state = nodes(plain)
    assert [state[n][1] for n in NODES] == [INDEXED, INDEXED, "gpu:v100:4", "gpu:v100:4"]
    assert all("drain" not in state[n][0] for n in NODES)
    job = plain.wait(running, "COMPLETED", deadline=180)
    assert job["Restarts"] == "0"
    assert job["RunTime"] >= "00:01:00"  # slurmctld hears of its end once it answers


def test_removal_loses_no_job(plain: Cluster) -> None:
    """By the guide: parked, placed and running jobs all end well, and nothing of ours is left."""
    assert roll(plain, "--roll")[0] == 0
    jobs = [plain.submit("alice", ["--gres=gpu:4", "--comment=class=A"], WAIT)]
    jobs += [plain.submit("alice", ["--gres=gpu:v100:4"], WAIT) for _ in range(3)]
    plain.wait_all(jobs, "RUNNING")
    jobs += [plain.submit("bob", ["--gres=gpu:v100:2", "--comment=class=B"]) for _ in range(4)]
    running = jobs[:4]
    jobs.append(plain.submit("bob", ["--gres=gpu:1", "--array=1-3"], "sleep 1"))
    # 1. the filter, 2. the gate, 3. the selector, 4. types, 5. the licence
    plain.sh("ctl", "cp /opt/cluster/etc/job_submit_plain.lua /etc/slurm/job_submit.lua")
    plain.sh("ctl", ["touch", "-d", "+2 seconds", "/etc/slurm/job_submit.lua"])
    plain.sh("ctl", ["gpu-aware", "release", "--all"])
    plain.service_down("ctl", "selectd")
    for job in running:
        let_go(plain, "alice", job)
    code, summary, talk = roll(plain, "--undo")
    assert code == 0, talk
    assert set(results(summary).values()) == {"changed"}

    def ended() -> bool:
        found = [j for j in plain.jobs() if j["JobState"] not in ENDED]
        return not found

    plain.wait_until(ended, 180, lambda: plain.sh("ctl", "squeue -o '%i %T %r %b %f %R'"))
    assert roll(plain, "--undo")[0] == 0
    found = [j for j in plain.jobs() if int(j["JobId"]) >= int(jobs[0])]
    found = [j for j in found if j["JobName"] != "gpu-aware-look"]  # asks a node for a file
    assert len(found) == 11
    assert {(j["JobState"], j["Restarts"]) for j in found} == {("COMPLETED", "0")}
    plain.sh("ctl", f"sed -i 's/^Licenses=gpuaware.*//' {SLURM_CONF}")
    reconfigure(plain)  # until Slurm knows the nodes' GPUs
    licences = plain.sh("ctl", ["scontrol", "show", "license"], check=False)
    assert "gpuaware" not in licences
    after = plain.submit("bob", ["--gres=gpu:v100:2"], "true")
    plain.wait(after, "COMPLETED")
