"""docs/comment.md says what the filter does: its tables go through the real Lua."""

import re
from typing import Any

import pytest
from luafilter import ERROR, POLICIES, REPO, SUCCESS, Filter, MakeFilter

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.gate.admin_comment import parse

TEXT = (REPO / "docs" / "comment.md").read_text()
INTERACTIVE = {"script": None}
# What Slurm 24.11's clients send for these options, as seen by job_submit.lua.
FIELDS: dict[str, dict[str, Any]] = {
    "--gres=gpu:2": {"tres_per_node": "gres/gpu:2"},
    "--gres=gpu:2,tmp:10": {"tres_per_node": "gres/gpu:2,gres/tmp:10"},
    "--gres=shard:2": {"tres_per_node": "gres/shard:2"},
    "--gres=gpu:1,shard:2": {"tres_per_node": "gres/gpu:1,gres/shard:2"},
    "--gres=gpu:g1:1": {"tres_per_node": "gres/gpu:g1:1"},
    "--gres=shard:g1:2": {"tres_per_node": "gres/shard:g1:2"},
    "--immediate": {"immediate": 1},
    '-L "a|b"': {"licenses": "a|b"},
    "--comment=place=off": {"comment": "place=off"},
    "--gres=gpu:1": {"tres_per_node": "gres/gpu:1"},
    ":": {"het_job_offset": 0},
    "-M a,b": {"clusters": "a,b"},
    "--gpus=2": {"tres_per_job": "gres/gpu:2"},
    "--gpus=3": {"tres_per_job": "gres/gpu:3"},
    "--gpus=4": {"tres_per_job": "gres/gpu:4"},
    "--gpus=5": {"tres_per_job": "gres/gpu:5"},
    "--gpus=8": {"tres_per_job": "gres/gpu:8"},
    "--gpus=v100:2": {"tres_per_job": "gres/gpu:v100:2"},
    "--gpus-per-node=2": {"tres_per_node": "gres/gpu:2"},
    "--gpus-per-task=1": {"tres_per_task": "gres/gpu=1", "tres_bind": "gres/gpu:per_task:1"},
    "--gpus-per-socket=1": {"tres_per_socket": "gres/gpu:1"},
    "--sockets-per-node=2": {"sockets_per_node": 2},
    "--ntasks-per-gpu=2": {"ntasks_per_tres": 2},
    "--cpus-per-gpu=4": {"cpus_per_tres": "gres/gpu:4"},
    "--gpu-bind=map_gpu:0,1": {"tres_bind": "gres/gpu:map_gpu:0,1"},
    "--mem-per-gpu=4G": {"mem_per_tres": "gres/gpu:4096"},
    "--exclusive": {"shared": 0},
    "--contiguous": {"contiguous": 1},
    "--switches=1": {"req_switch": 1},
    "--tmp=10G": {"pn_min_tmp_disk": 10240},
    "-B 2:4": {"sockets_per_node": 2, "cores_per_socket": 4},
    "--prefer=fast": {"prefer": "fast"},
    "--array=0-9%3": {"array_inx": "0-9%3"},
    '-C "fast|big"': {"features": "fast|big"},
    '-C "[fast*1&big*1]"': {"features": "[fast*1&big*1]"},
    "-N2": {"min_nodes": 2, "max_nodes": 2},
    "-n 3": {"num_tasks": 3},
    "-n4": {"num_tasks": 4},
    "-n2": {"num_tasks": 2},
    "sbatch": {},
    "salloc": INTERACTIVE,
    "srun": INTERACTIVE,
    "scrontab": {"cron_job": True, "tres_per_node": "gres/gpu:1"},
}


def table_rows(heading: str) -> list[tuple[str, str]]:
    """First two columns of the table whose header starts with ``heading``, marks removed."""
    lines = iter(TEXT.splitlines())
    for line in lines:
        if line.startswith(f"| {heading}"):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:3]]
        rows.append((cells[0].strip("`"), cells[1]))
    return rows


@pytest.mark.parametrize(("comment", "verdict"), table_rows("comment"))
def test_example_comments(filter_: Filter, comment: str, verdict: str) -> None:
    wishes, _ = filter_.parse_comment(comment)
    out = filter_.submit(tres_per_node="gres/gpu:2", comment=comment)
    if verdict.startswith("refused: "):
        assert out.rc == ERROR
        assert out.messages == [f"gpu-aware: {verdict.removeprefix('refused: ')}"]
    else:
        assert out.rc == SUCCESS
        assert "licenses" in out.written or comment == "place=off"
        assert (wishes is not None) == (verdict == "accepted")
        told = [text for text in out.messages if "the comment is not read" in text]
        assert len(told) == (verdict == "not ours, with a message")


@pytest.mark.parametrize(("command", "verdict"), table_rows("you type"))
def test_requests(make_filter: MakeFilter, command: str, verdict: str) -> None:
    options = "|".join(re.escape(o) for o in sorted(FIELDS, key=len, reverse=True))
    found = re.findall(rf"(?:^|(?<= ))(?:{options})(?= |$)", command)
    assert " ".join(found) == command, "an option that this test does not know"
    fields: dict[str, Any] = {}
    for option in found:
        fields |= FIELDS[option]
    out = make_filter().submit(**fields)
    record = parse(out.job.get("admin_comment"))
    assert ("gpuaware:1" in out.job.get("licenses", "")) == (record is not None)
    if out.rc == ERROR:
        happened = "refused"
    elif record is not None:
        happened = "GPUs chosen" if record.left is None else "left to Slurm"
    else:
        happened = "left to Slurm at once" if out.messages else "not touched"
    assert happened == verdict


def test_the_page_allows_what_is_shipped(make_filter: MakeFilter) -> None:
    """One list: the page's, the default, the example's and the container cluster's."""
    row = next(line for line in TEXT.splitlines() if line.startswith("| `place` |"))
    said = re.search(r"\(here (.+?)\)", row)
    assert said is not None
    shown = tuple(re.findall(r"`([^`]+)`", said[1]))
    assert shown == POLICIES == Config().placement.allowed
    assert load_config(REPO / "etc" / "config.toml").placement.allowed == shown
    assert load_config(REPO / "docker" / "etc" / "config.toml").placement.allowed == shown
    for folder in ("etc/lua", "docker/etc"):
        conf = (REPO / folder / "gpu_aware_conf.lua").read_text()
        found = re.search(r"policies = \{(.*?)\}", conf)
        assert found is not None
        assert tuple(re.findall(r'"([^"]+)"', found[1])) == shown
    for policy in shown:
        comment = f"place={policy}"
        assert make_filter().submit(tres_per_node="gres/gpu:2", comment=comment).rc == SUCCESS


def test_every_key_has_a_row() -> None:
    assert [key for key, _ in table_rows("key")] == [hint.key for hint in HINTS]
