"""Jobs that Slurm places pass no job before them, also beside a reservation of others."""

from hypothesis import given, settings
from hypothesis import strategies as st
from make import NOW, as_gated, asked, context_of, plan_round, request_of, slurm_job, slurm_node
from small_requests import NAMES, left_of

from slurm_gpu_aware.admission.left import hold_of_left
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.slurm.records import NodeShare, SlurmReservation

COURSE = "n2"
"""The node that a reservation keeps."""


def ends_within(number, node, slot, limit_s):
    share = NodeShare(node, 1, 500, (slot,))
    where = {"nodes": (node,), "shares": (share,), "start_s": NOW - 10.0, "end_s": NOW + limit_s}
    return slurm_job(number, state="RUNNING", **where)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_gpu_of_three_heads_goes_to_a_job_behind_them(data):
    """Three jobs of a node each, on three nodes whose GPUs become free one by one.

    Jobs of the reservation are on their way to its node; a job behind the three runs for longer.
    """
    course = SlurmReservation("course", NOW - 9.0, NOW + 9e4, frozenset({COURSE}))
    used = {name: data.draw(st.sets(st.integers(0, 3), max_size=4)) for name in NAMES}
    nodes = [slurm_node(name, used[name]) for name in NAMES]
    each = [(name, slot) for name in NAMES for slot in sorted(used[name])]
    jobs = [
        ends_within(100 + i, *gpu, data.draw(st.sampled_from([60.0, 170.0, 171.0])))
        for i, gpu in enumerate(each)
    ]
    site = context_of(nodes, reservations=[course])
    holds = []
    for number in range(data.draw(st.integers(0, 3))):
        text = f"gres/gpu:{data.draw(st.integers(1, 4))}"
        record = f"gpuaware/1;tn={text};lf=x"
        job = slurm_job(
            200 + number,
            tres_per_node=text,
            reservation=course.name,
            admin_comment=record,
            time_limit_s=3600.0,
        )
        given_ = site.nodes, site.partitions, [course], "B", NOW
        holds.append(hold_of_left(as_gated(job), *given_))
    site = context_of(nodes, reservations=[course], jobs=jobs, holds=holds)
    heads = [request_of(slurm_job(n, priority=9), asked("gpu:4"), site) for n in (1, 2, 3)]
    low = slurm_job(9, priority=1, time_limit_s=3600.0, tres_per_node="gres/gpu:1")
    queue = [*heads, left_of(low, asked("gpu:1"), site)]
    plan = plan_round(queue, site.cluster, PlanSettings(reservations=16), NOW)
    assert "9" not in {one.job_id for one in plan.assignments}
