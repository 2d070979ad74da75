"""The example policy of ``docs/architecture.md``, and its registration."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from make import plan_round

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement import policy as registry
from slurm_gpu_aware.planning.plan import PlanSettings

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
PACKAGE = "slurm_gpu_aware.placement.policies"


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which the page's example is registered."""
    section = PAGE.read_text().partition("## Add a policy\n")[2]
    code, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    ((name, where),) = re.findall(r'"([^"]+)": "([^"]+)",', line)
    module = ModuleType(f"{PACKAGE}.{where.partition('.')[0]}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(registry._POLICIES, name, where)
    return str(name)


def test_the_example_places_waits_and_says_why(name: str) -> None:
    queue = [Request("1", 3, priority=2.0), Request("2", 3, max_nodes=1, priority=1.0)]
    cluster = Cluster.uniform(1, 8)
    plan = plan_round(queue, cluster, PlanSettings(policy=name), 0.0)
    assert [(a.policy, a.slots) for a in plan.assignments] == [
        (name, ((0, 1, 2),)),
        (name, ((3, 4, 5),)),
    ]
    options = {name: {"gpus": 4}}
    plan = plan_round(queue, cluster, PlanSettings(policy=name), 0.0, policy_options=options)
    (waiting,) = plan.waiting
    assert "policy spare keeps 4 GPUs of each node free" in waiting.reason
    assert "4 GPUs of each node stay free" in plan.assignments[0].why.text


def test_its_options_check_themselves(name: str) -> None:
    with pytest.raises(PolicyError, match="policy 'spare': gpus must be a whole number"):
        registry.make_policy(name, {"gpus": -1})
    with pytest.raises(PolicyError, match="no option 'gpu'; its options: gpus"):
        registry.make_policy(name, {"gpu": 1})


@pytest.mark.parametrize("name", registry.policy_names())
def test_every_registered_class_has_the_name_of_its_line(name: str) -> None:
    assert registry.policy_class(name).name == name
