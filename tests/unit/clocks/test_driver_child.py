"""The one child that makes all calls of the agent: it may end or hang at any time."""

from fake_nvml import FakeNode

CODE = """
import json, os, time
from slurm_gpu_aware.clocks.driver import OneChild, read_meters
state = os.environ["FAKE_NVML_STATE"]
os.makedirs(state, exist_ok=True)
def ask(index, limit_s=5.0):
    (result,) = read_meters([index], limit_s)
    return result.error, OneChild.kept and OneChild.kept._id
def fault(**more):
    fault = {"call": "nvmlDeviceGetUUID", **more}
    with open(f"{state}/new", "w") as file:
        json.dump({"faults": [fault] if more else []}, file)
    os.replace(f"{state}/new", f"{state}/override.json")
def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return list(map(int, file.read().split()))
out = {}
with OneChild():
    first = ask(0)
    out["same"] = ask(1) == first
    os.kill(first[1], 9)
    second = ask(2)
    out["after its death"] = second[0], second[1] not in (None, first[1])
    fault(error=999)
    out["an error"] = ask(3)
    fault()
    third = ask(3)
    out["then a new one"] = third[0], third[1] not in (None, second[1])
    fault(hang_s=60)
    began = time.monotonic()
    out["a hang"] = ask(3, 0.3)
    out["in time"] = time.monotonic() - began < 30
    fault()
    out["after it"] = ask(3)[0]
    out["children"] = len(children())
out["at the end"] = children()
print(json.dumps(out))
"""


def test_a_child_that_ends_hangs_or_fails_is_replaced(library, tmp_path):
    assert FakeNode(library, tmp_path).python(CODE) == {
        "same": True,
        "after its death": ["", True],
        "an error": ["Unknown Error", None],
        "then a new one": ["", True],
        "a hang": ["no answer within 0.3 s", None],
        "in time": True,
        "after it": "",
        "children": 1,
        "at the end": [],
    }
