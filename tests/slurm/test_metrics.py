"""The exporter on a live cluster, scraped by Debian's Prometheus: each query and rule gives data.

The programs come from Debian's package (docker/prometheus.sh) and run in the controller's
container, as the exporter does, which an ordinary user runs.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster import GATE, ROOT, Cluster
from site_files import STORE, kept, new_store
from test_drift import slowness
from test_power import FILE, GPU_W, GPUS, IDLE_W

DASHBOARD = ROOT / "etc/grafana/gpu-aware.json"
RULES = ROOT / "etc/prometheus/gpu-aware.rules.yml"
HOME = "/tmp/prometheus"
WATCH_FILE = str(Path(STORE).with_name("watch.json"))
WATCHED = {
    "schema": "gpu-aware-watch/1",
    "at": 1,
    "gpus": [{"node": "n1", "gpu": gpu, "state": ("ill", "slow")[gpu]} for gpu in (0, 1)],
}
SLOW = ("n2", 1)
MAP = "/run/gpu-aware-job-map"
CONF = "/etc/slurm-gpu-aware/clock.conf"
PROMETHEUS = f"""\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{HOME}/rules.yml]
scrape_configs:
  - job_name: gpu-aware
    static_configs: [{{targets: ["127.0.0.1:9836"]}}]
  - job_name: dcgm
    metrics_path: /dcgm.txt  # text/plain: Prometheus 3 takes no other type
    static_configs: [{{targets: ["127.0.0.1:9400"]}}]
"""
ASK = """\
import json, sys, urllib.parse, urllib.request
for line in sys.stdin:
    query = urllib.parse.urlencode({"query": json.loads(line)})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/query?{query}") as answer:
            print(json.dumps(json.load(answer)["data"]["result"]))
    except OSError as exc:
        print(json.dumps(f"{exc}: {getattr(exc, 'read', str)()}"))
"""
SCRAPE = """\
import time, urllib.request
began = time.monotonic()
with urllib.request.urlopen("http://127.0.0.1:9836/metrics") as answer:
    text = answer.read()
print(time.monotonic() - began)
print(text.decode())
"""


class MeteredSite:
    """A cluster whose exporter a Prometheus scrapes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, *queries: str) -> list[Any]:
        """Results of queries now; a text: Prometheus refuses it."""
        given = "".join(json.dumps(query) + "\n" for query in queries)
        out = self.cluster.sh("ctl", ["python3", "-c", ASK], stdin=given)
        return [json.loads(line) for line in out.splitlines()]

    def wait_for_data(self, queries: Mapping[str, str], deadline: float = 120) -> dict[str, Any]:
        """Results of queries, once each has given data; names those that do not.

        After a scrape that failed, as on a busy machine, a query gives none.
        """
        without, found = dict(queries), dict[str, Any]()

        def all_answer() -> bool:
            answers = self.ask(*without.values())
            for name, answer in zip(list(without), answers, strict=True):
                assert not isinstance(answer, str), f"{name}: {answer}"
                if answer:
                    found[name] = answer
                    del without[name]
            return not without

        self.cluster.wait_until(all_answer, deadline, lambda: f"no data: {without}")
        return found

    def scrape(self) -> tuple[float, str]:
        """Duration of a scrape, s, and the page."""
        took, _, text = self.cluster.sh("ctl", ["python3", "-c", SCRAPE]).partition("\n")
        return float(took), text


@pytest.fixture(scope="module")
def programs(suite: str) -> Path:
    """The folder of prometheus and promtool."""
    subprocess.run([ROOT / "docker/prometheus.sh", suite], check=True, timeout=600)
    return ROOT / "build/prometheus" / suite


def run_job(cluster: Cluster, name: str, seconds: int, *options: str) -> str:
    args = ["--gres=gpu:1", f"--job-name={name}", "--comment=class=A", "--time=10", *options]
    return cluster.submit("alice", args, f"sleep {seconds}")


def shadow_sees_a_job(cluster: Cluster) -> None:
    """Slurm starts a job whose gate an operator has opened, while the shadow looks."""
    process = cluster.start_command("ctl", ["gpu-aware", "selectd", "--shadow"], "slurm")
    try:
        report = "gpu-aware report --shadow --json"
        look = "the shadow looks"
        cluster.wait_until(lambda: '"until": null' not in cluster.sh("ctl", report), 60, look)
        job = run_job(cluster, "seen", 300)
        cluster.sh("ctl", ["gpu-aware", "release", job])
        cluster.wait_until(lambda: '"compared": 1' in cluster.sh("ctl", report), 60, look)
        cluster.sh("ctl", ["scancel", job])
    finally:
        cluster.sh("ctl", "pkill -f '[s]electd --shadow'", check=False)
        cluster.finish(process, 60)


def made_state(cluster: Cluster) -> None:
    """What metrics tell: slow and ill GPUs, runs with estimates, a queue, a node out of service."""
    cluster.sh("ctl", f"cat >{WATCH_FILE}", stdin=json.dumps(WATCHED), user="slurm")
    sweep = ["gpu-aware-profile", "sweep"]
    cluster.sh("ctl", sweep, user="slurm", timeout=300)
    node, gpu = SLOW
    slow = f"A={1.15 * slowness(cluster, node, gpu)}"
    cluster.sh("ctl", ["fake-gpu", "slow", f"/shared/fakegpu/{node}", str(gpu), slow])
    cluster.sh("ctl", sweep, user="slurm", timeout=300)
    cluster.wait(run_job(cluster, "train", 3), "COMPLETED")
    count = "grep -c 'rest on [1-9]' /var/log/cluster/selectd.log || true"
    before = cluster.sh("ctl", count)
    cluster.service_down("ctl", "selectd")  # it reads earlier runs at its start
    # The gate outlives a slow machine
    cluster.sh("ctl", ["scontrol", "update", f"reservation={GATE}", "endtime=now+1hour"])
    shadow_sees_a_job(cluster)
    cluster.service_up("ctl", "selectd")
    cluster.wait_until(lambda: cluster.sh("ctl", count) != before, 60, "earlier runs")
    cluster.await_gate()
    cluster.wait(run_job(cluster, "train", 3), "COMPLETED")
    cluster.sh("ctl", ["scontrol", "update", "nodename=n4", "state=drain", "reason=test"])
    for node in ("n1", "n2", "n3"):
        job = run_job(cluster, "long", 900, "-w", node)
        cluster.wait(job, "RUNNING")
    run_job(cluster, "waits", 60, "--gres=gpu:4", "-w", "n1")


@pytest.fixture
def metered(cluster: Cluster, programs: Path) -> Iterator[MeteredSite]:
    for name in ("prometheus", "promtool"):
        cluster._docker("cp", str(programs / name), f"{cluster._id('ctl')}:/usr/local/bin/{name}")
    cluster.sh("ctl", f"rm -rf {HOME}; install -d -m 777 {HOME}")
    rules = re.sub(r"\n +for: \w+", "", RULES.read_text())
    cluster.sh("ctl", f"cat >{HOME}/rules.yml", stdin=rules)
    cluster.sh("ctl", f"cat >{HOME}/prometheus.yml", stdin=PROMETHEUS)
    started = []
    with kept(cluster, FILE), new_store(cluster):
        watts = GPUS * (IDLE_W + GPU_W)
        cluster.sh("ctl", ["gpu-aware", "power", "set", str(round(watts))])
        cluster.await_gate()
        try:
            commands = [
                ("bob", ["gpu-aware", "metrics", "--interval", "1"]),
                (
                    "bob",
                    [
                        *("prometheus", f"--config.file={HOME}/prometheus.yml"),
                        *(
                            "--web.listen-address=127.0.0.1:9090",
                            f"--storage.tsdb.path={HOME}/data",
                        ),
                    ],
                ),
                ("root", ["python3", "-m", "http.server", "-b", "127.0.0.1", "-d", HOME, "9400"]),
            ]
            started += [cluster.start_command("ctl", argv, user) for user, argv in commands]
            made_state(cluster)
            yield MeteredSite(cluster)
        finally:
            names = ("[p]rometheus --config", "[g]pu-aware metrics", "[h]ttp.server -b")
            for name in names:  # a pattern that its own shell does not match
                cluster.sh("ctl", ["pkill", "-f", name], check=False)
            for process in started:
                process.kill()
                process.wait()
            programs_there = "/usr/local/bin/prometheus /usr/local/bin/promtool"
            cluster.sh("ctl", f"rm -rf {HOME} {WATCH_FILE} {programs_there}")


def queries_of_dashboard() -> dict[str, str]:
    """Panel and number -> query, as Grafana sends it."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "30s")
        for panel in panels
        for target in panel.get("targets", ())
    }


def queries_of_rules() -> dict[str, str]:
    """Alert -> its expression without the threshold."""
    text = RULES.read_text()
    found = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text))
    assert len(found) == text.count("alert:")
    cut = {name: re.sub(r" (==|>|<) [\d.]+$", "", expr) for name, expr in found.items()}
    assert all(cut[name] != found[name] for name in found)
    return cut


def dcgm_page(metered: MeteredSite) -> str:
    """What dcgm-exporter of n1 would say: its labels, for the GPUs that ours are to join with."""
    asked = {"scores": 'gpu_aware_gpu_pm_score_ratio{Hostname="n1",class="A"}'}
    scores = metered.wait_for_data(asked)["scores"]
    names = ("gpu", "UUID", "modelName", "Hostname")
    rows = [
        ",".join(f'{name}="{row["metric"][name]}"' for name in names) + ',hpc_job="1"'
        for row in scores
    ]
    return "".join(f"DCGM_FI_DEV_POWER_USAGE{{{row}}} 300\n" for row in rows)


def test_prometheus_gets_data_for_the_dashboard_and_the_rules(metered: MeteredSite) -> None:
    cluster = metered.cluster
    metered.wait_for_data({"page": "gpu_aware_build_info"})
    _, text = metered.scrape()
    cluster.sh("ctl", f"cat >{HOME}/page.prom", stdin=text)
    lint = cluster.run("ctl", f"promtool check metrics <{HOME}/page.prom 2>&1").stdout.decode()
    # modelName is dcgm-exporter's.
    said = [line for line in lint.splitlines() if "camelCase" not in line]
    assert said == []
    assert "rules found" in cluster.sh("ctl", ["promtool", "check", "rules", f"{HOME}/rules.yml"])

    metered.wait_for_data(queries_of_dashboard(), 180)
    metered.wait_for_data(queries_of_rules())

    firing = 'ALERTS{alertstate="firing",alertname="%s"}'
    names = ("GpuAwareGpuSlow", "GpuAwareNodesOut")
    fires = metered.wait_for_data({name: firing % name for name in names})
    (slow,) = fires["GpuAwareGpuSlow"]
    gpu = slow["metric"]
    assert (gpu["Hostname"], int(gpu["slurm_index"]), gpu["class"]) == (*SLOW, "A")

    series = metered.wait_for_data({"all": '{__name__=~"gpu_aware_.+"}'})["all"]
    # A label that Prometheus renamed
    assert {label for one in series for label in one["metric"] if "exported_" in label} == set()

    cluster.sh("ctl", f"cat >{HOME}/dcgm.txt", stdin=dcgm_page(metered))
    page = (ROOT / "docs/metrics.md").read_text()
    joins = dict(enumerate(re.findall(r"```promql\n(.*?)```", page, re.DOTALL)))
    assert joins
    metered.wait_for_data({str(number): query for number, query in joins.items()})


def test_the_gpus_of_jobs_are_those_that_slurm_gave(metered: MeteredSite) -> None:
    cluster = metered.cluster
    given = {
        (job["JobId"], node, gpu)
        for job in cluster.jobs()
        if job["JobState"] == "RUNNING"
        for node, gpus in cluster.gpus(job["JobId"]).items()
        for gpu in gpus
    }
    assert len(given) == 3

    labels: list[dict[str, str]] = []

    def agree() -> bool:
        (rows,) = metered.ask("gpu_aware_job_info")
        labels[:] = [row["metric"] for row in rows]
        return given == {(x["hpc_job"], x["Hostname"], int(x["slurm_index"])) for x in labels}

    cluster.wait_until(agree, 60, "gpu_aware_job_info")
    assert all(row["UUID"].startswith("GPU-") for row in labels)


def test_no_scrape_waits_for_slurmctld_and_only_loopback_listens(metered: MeteredSite) -> None:
    cluster = metered.cluster
    metered.wait_for_data({"up": 'gpu_aware_source_up{source="slurm"} == 1'})
    assert cluster.sh("ctl", "ss -Hltn 'sport = :9836'").split()[3] == "127.0.0.1:9836"
    cluster.sh("ctl", "kill -STOP $(services pid slurmctld)")
    try:
        end, durations = time.monotonic() + 8, list[float]()
        while time.monotonic() < end:
            took, text = metered.scrape()
            durations.append(took)
            assert "gpu_aware_gpu_pm_score_ratio" in text
            time.sleep(1)
        assert min(durations[-3:]) < 1.0  # a busy machine may hold up one of them
        # Refreshes go on, and the age of Slurm's answer is said.
        age = (
            "gpu_aware_refresh_timestamp_seconds - ignoring (source)"
            ' gpu_aware_source_timestamp_seconds{source="slurm"} > 4'
        )
        (late,) = metered.wait_for_data({"age": age}, 60)["age"]
        assert float(late["value"][1]) > 4
    finally:
        cluster.sh("ctl", "kill -CONT $(services pid slurmctld)")


def test_the_job_map_of_dcgm_exporter_follows_a_job(cluster: Cluster) -> None:
    """By NVML's order, which on n3 is not Slurm's; written and removed by the real hooks."""
    cluster.sh("n3", f"cp -p {CONF} {CONF}.kept; echo 'job_map = {MAP}' >>{CONF}")
    services = [("n3", "clockd")]
    try:
        for container, service in services:
            cluster.service_down(container, service)
            cluster.service_up(container, service)
        job = cluster.running_job("alice", ["--gres=gpu:2", "-w", "n3"], "sleep 300")
        ((_, gpus),) = cluster.gpus(job).items()
        machine = json.loads(cluster.sh("n3", ["cat", "/etc/gpu-aware-fake/n3.json"]))
        order = [gpu["minor"] for gpu in machine["gpus"]]
        wanted = sorted(str(order.index(gpu)) for gpu in gpus)

        def shown() -> list[str]:
            return cluster.sh("n3", f"cd {MAP} && grep -lx {job} [0-9]* || true").split()

        cluster.wait_until(lambda: shown() == wanted, 60, lambda: f"{shown()}, wanted {wanted}")
        cluster.sh("ctl", ["scancel", job])
        cluster.wait_until(lambda: shown() == [], 60, "the map is empty")
    finally:
        cluster.cancel_all()
        cluster.sh("n3", f"mv {CONF}.kept {CONF}; rm -rf {MAP}")
        for container, service in services:
            cluster.service_down(container, service)
            cluster.service_up(container, service)
