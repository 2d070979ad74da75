"""A site's own job_submit.lua takes the filter in with two lines, as docs/admin.md gives them."""

import re
from pathlib import Path
from typing import Any

import pytest
from luafilter import ALICE, ERROR, LUA, OPERATOR, REPO, SUCCESS, Filter, MakeFilter

OWN = """
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.account == "closed" then
        slurm.log_user("account is closed")
        return slurm.ERROR
    end
    job_desc.partition = "gpu"
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if job_desc.account == "broken" then error("the site's own mistake") end
    if modify_uid ~= 0 and job_desc.account == "closed" then return slurm.ERROR end
    return slurm.SUCCESS
end
{lines}
return slurm.SUCCESS
"""


def two_lines() -> str:
    text = (REPO / "docs" / "admin.md").read_text()
    (lines,) = re.findall(r"```lua\n(.*?)```", text, re.S)
    assert len(lines.strip().splitlines()) == 2
    return str(lines)


def join(filter_: Filter, script: str) -> Filter:
    """Load a job_submit.lua; what the filter is asked from now on goes through its globals."""
    path = filter_.folder / "job_submit.lua"
    path.write_text(script)
    filter_.dofile(path)
    both: Any = filter_.lua.globals()
    filter_.module = {b"submit": both[b"slurm_job_submit"], b"modify": both[b"slurm_job_modify"]}
    return filter_


@pytest.fixture(params=["5.1", "5.4"])
def joined(request: pytest.FixtureRequest, make_filter: MakeFilter) -> Filter:
    filter_ = make_filter(request.param)
    lines = two_lines().replace("/etc/slurm/", f"{filter_.folder}/")
    return join(filter_, OWN.replace("{lines}", lines))


def test_the_site_goes_first_and_a_gpu_job_is_parked(joined: Filter) -> None:
    done = joined.submit(tres_per_node="gres/gpu:2")
    assert done.rc == SUCCESS
    assert done.job["partition"] == "gpu"
    assert done.job["licenses"] == "gpuaware:1"


def test_what_the_site_refuses_is_not_ours_any_more(joined: Filter) -> None:
    done = joined.submit(tres_per_node="gres/gpu:2", account="closed")
    assert (done.rc, done.messages, done.written) == (ERROR, ["account is closed"], [])


def test_both_guard_changes(joined: Filter) -> None:
    record = joined.submit(tres_per_node="gres/gpu:2").job
    assert joined.modify(record, ALICE, licenses="gpuaware:1").rc == ERROR
    assert joined.modify(record, ALICE, time_limit=10).rc == SUCCESS
    with pytest.raises(Exception, match="the site's own mistake"):
        joined.modify(record, ALICE, account="broken")


def test_a_sites_rule_for_users_keeps_no_gpu_job_parked(joined: Filter) -> None:
    """The selector is SlurmUser, not root; jobs that are not ours stay under the rule."""
    ours, other = joined.submit(tres_per_node="gres/gpu:2").job, joined.submit().job
    assert joined.modify(ours, OPERATOR, account="closed").rc == SUCCESS
    assert joined.modify(ours, OPERATOR, account="broken").rc == SUCCESS
    assert joined.modify(ours, ALICE, account="closed").rc == ERROR
    assert joined.modify(other, OPERATOR, account="closed").rc == ERROR
    back = {"account": "closed", "admin_comment": "gpuaware/1;tn=gres/gpu:2"}
    assert joined.modify(other, OPERATOR, **back).rc == SUCCESS


@pytest.mark.parametrize("version", ["5.1", "5.4"])
def test_a_script_without_functions_joins_too(version: str, make_filter: MakeFilter) -> None:
    filter_ = make_filter(version)
    path = Path(f"{filter_.folder}/gpu_aware.lua")
    script = f'dofile("{path}").join()\n'
    assert join(filter_, script).submit(tres_per_node="gres/gpu:1").job["licenses"] == "gpuaware:1"


@pytest.mark.parametrize("version", ["5.1", "5.4"])
def test_our_own_script(version: str, make_filter: MakeFilter) -> None:
    filter_ = make_filter(version)
    join(filter_, (LUA / "job_submit.lua").read_text())
    record = filter_.submit(tres_per_node="gres/gpu:1").job
    assert record["licenses"] == "gpuaware:1"
    assert filter_.modify(record, ALICE, licenses="gpuaware:1").rc == ERROR
    (filter_.folder / "gpu_aware.lua").write_text("this is no Lua")
    join(filter_, (LUA / "job_submit.lua").read_text())
    assert filter_.submit(tres_per_node="gres/gpu:1").written == []
