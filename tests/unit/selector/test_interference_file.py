"""Files of run times alone and beside another job."""

import json

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.selector.policy_options import read_interference

PROFILE = {
    "solo": {
        "net": {
            "1": {
                "num_gpus": {
                    "1": {"intra-socket": 10.0, "inter-socket": 0},
                    "2": {"intra-socket": 20.0, "inter-socket": 30.0},
                    "x": {"intra-socket": 1.0},
                }
            }
        }
    },
    "collocation": {
        "net": {
            "1": {
                "num_gpus": {
                    "1": {"net": {"1": {"num_gpus": {"1": 12.0, "2": 0}}}},
                    "2": {"net": {"1": {"num_gpus": {"2": "fast"}}}},
                }
            },
            "2": 7,
        }
    },
}


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_profile_with_holes_and_errors(tmp_path):
    profile, bad = read_interference(written(tmp_path, "p.json", PROFILE))
    one = ("net/1", 1)
    assert profile.solo == {one: 10.0, ("net/1", 2): 20.0}
    assert profile.together == {(one, one): 12.0}
    assert bad == (
        "solo net/1: 'x' is no GPU count",
        "collocation net/1 on 2 beside net/1 on 2: 'fast' is no run time",
        "collocation net/2: expected an object, not 7",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[]", "expected a JSON object"), ("{}", "no object 'solo'")],
)
def test_files_of_another_kind(tmp_path, content, message):
    with pytest.raises(SourceError, match=message):
        read_interference(written(tmp_path, "p.json", content))
    with pytest.raises(SourceError, match="cannot be read"):
        read_interference(tmp_path / "none.json")
