"""Slurm tests run on a real cluster in containers, brought up once per test run.

``GPU_AWARE_REUSE=1`` takes the running project ``$GPU_AWARE_PROJECT``, copies the current source
into it, and leaves it running (with ``-n 0``).
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cluster import Cluster

HERE = Path(__file__).parent


LONGEST_FIRST = (
    *("test_due_dates", "test_one_queue", "test_rolling", "test_energy_slowdown"),
    *("test_holding_pool", "test_sizes", "test_survival", "test_two_controllers"),
    *("test_client", "test_exploring", "test_preemption", "test_nodes"),
    *("test_limits", "test_queue_order", "test_requests", "test_clockd", "test_way_of_a_job"),
    *("test_power", "test_metrics", "test_shards", "test_fairshare", "test_shadow"),
    *("test_conf_layouts", "test_moves", "test_watch", "test_owner_changes", "test_network"),
    *("test_test_only", "test_site_rules", "test_impossible"),
)
"""Files in the order in which clusters side by side take them: no long one at the end, alone."""
LAST = "test_hostile_values"
"""Slurm shows its jobs for some minutes more, and others read what all jobs show."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slurm)
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    order[LAST] = len(order) + 1
    rest = len(order) - 1
    items.sort(key=lambda item: order.get(item.path.stem, rest))  # stable


@pytest.fixture(scope="session")
def suite() -> str:
    """Which Slurm: trixie (24.11) or sid (26.05)."""
    return os.environ.get("GPU_AWARE_SUITE") or "trixie"


@pytest.fixture(scope="session")
def new_project() -> str:
    """Compose project that no other process of the tests uses."""
    return f"{os.environ.get('GPU_AWARE_PROJECT') or 'gpuaware'}-test-{os.getpid()}"


@pytest.fixture(scope="session")
def cluster(new_project: str, suite: str) -> Iterator[Cluster]:
    """The cluster: up when the first test wants it, gone at the end; one per worker of xdist."""
    reuse = os.environ.get("GPU_AWARE_REUSE") == "1"
    cluster = Cluster(
        os.environ.get("GPU_AWARE_PROJECT") or "gpuaware" if reuse else new_project, suite
    )
    if reuse and cluster.running():
        cluster.refresh()
        share_alike(cluster)
        yield cluster
        return
    try:
        cluster.up()
        share_alike(cluster)
        yield cluster
    finally:
        cluster.down()


def share_alike(cluster: Cluster) -> None:
    """No user falls behind another one within a test, by what ran before and by the minute."""
    where = ["user", "where", "name=alice,bob", "set", "fairshare=parent"]
    cluster.sh("ctl", ["sacctmgr", "-i", "modify", *where])


@pytest.fixture(autouse=True, scope="module")
def clean_first(cluster: Cluster) -> None:
    """A module's own fixtures start on an idle cluster too, without jobs of the module before."""
    cluster.reset()


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> None:
    """Each test starts on an idle cluster with everything up."""
    cluster.reset()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the cluster with a test that failed."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(found, Cluster) and found.running():  # it ends with the last
        report.sections.append(("logs of the cluster", found.logs()))
    return report
