"""Trial: a held test job is changed as the selector changes jobs, so that what refuses is known.

A rule of the site (slurm_job_modify, another plugin, a limit) that refuses the selector's changes
would keep every parked job waiting. The test job never runs: Slurm holds it, and it is cancelled at
once, or by the next trial if this process dies.
"""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import AwareError, SourceError
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.gate.admin_comment import marked
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_job
from slurm_gpu_aware.gate.request_forms import Binding, Fields, differences
from slurm_gpu_aware.gate.restore import open_fields, prepared_fields
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.gres import gpu_slots
from slurm_gpu_aware.slurm.libslurm import SlurmError
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.slurm.words import plugins_of

NAME = "gpu-aware-trial"  # Name of test jobs; they belong to SlurmUser or root.
_COMMENT = "move=no"  # a job without a comment of ours is left to Slurm at some sites
_CLOCK_MHZ = 1000  # so that Extra and TresFreq are changed, too
_PARTITIONS = 3  # that are tried until one takes the test job


@dataclass(frozen=True)
class Trial:
    """Outcome of a trial."""

    passed: bool | None  # None: there was no test job to change.
    why: str = ""
    cure: str = ""


def is_trial(job: SlurmJob) -> bool:
    """Whether a job is the test job of a selector, or of doctor."""
    return job.name == NAME and job.user in _users()


def remove_trials(client: SlurmClient) -> None:
    """Cancel the test jobs that earlier processes left. Raises SourceError."""
    for job in client.jobs():
        if is_trial(job) and job.state == "PENDING":
            client.cancel_job(job.raw_id)


def try_changes(client: SlurmClient, config: Config) -> Trial:
    """Submit a test job, change it as this user, cancel it. Raises SourceError without answer."""
    remove_trials(client)
    try:
        job_id = _submitted(client, config)
    except SlurmError as exc:
        if not exc.refused:
            raise
        why = f"Slurm takes no test job: {exc}"
        cure = (
            f"let the user {_users()[0]} or root submit a GPU job (an account: 'sacctmgr add user"
            f" {_users()[0]} account=...'; a partition that allows it); without it, refusals show"
            " only when jobs are placed"
        )
        return Trial(None, why, cure)
    try:
        return _changed(client, config, job_id)
    finally:
        with suppress(SourceError):  # the next trial cancels it
            client.cancel_job(int(job_id))


def _users() -> tuple[str, str]:
    """Users that test jobs may belong to: that of this process, root."""
    return user_name(os.geteuid()), "root"


def _submitted(client: SlurmClient, config: Config) -> str:
    """Id of a new test job. Raises SlurmError of the first refusal if every try is refused."""
    names = {node.name for node in client.nodes() if node.gpus}
    partitions: Sequence[str] = config.site.partitions or [
        one.name for one in client.partitions() if names & set(one.nodes)
    ]
    refusals: list[SlurmError] = []
    # SlurmUser seldom has an account; root has one wherever there is accounting.
    for user, group in dict.fromkeys([(os.geteuid(), os.getegid()), (0, 0)]):
        for partition in partitions[:_PARTITIONS] or [""]:
            try:
                return client.submit_held(user, group, NAME, partition, _COMMENT)
            except SlurmError as exc:
                if not exc.refused:
                    raise
                refusals.append(exc)
    raise refusals[0]


def _changed(client: SlurmClient, config: Config, job_id: str) -> Trial:
    """The outcome of the changes of a test job."""
    gated = next((gated_job(job, config.gate) for job in client.jobs_of([job_id])), None)
    if gated is None or not gated.parked:
        return Trial(None, "the filter has not parked the test job", "see 'filter' in doctor")
    now = time.time()
    opening = (*open_fields(gated, now, JobPhase.RELEASED), ("ReservationName", ""))
    for fields in (_binding_fields(client, gated, now), opening):
        refused = client.update_jobs([JobUpdate(job_id, fields)])
        shown = client.jobs_of([job_id])
        if not shown or (refused and set(refused.values()) <= client.ended):
            return Trial(None, "the test job was cancelled meanwhile", "try again")
        wrong = list(refused.values()) or differences(shown[0], fields)
        if wrong:
            which = _refused_alone(client, job_id, fields) if refused else ""
            return Trial(False, f"a change of a job{which} is refused: {wrong[0]}", _cure(client))
    return Trial(True)


def _binding_fields(client: SlurmClient, gated: GatedJob, now: float) -> Fields:
    """Fields by which the selector would bind the job to one GPU of a node."""
    record = gated.job.admin_comment or ""
    inside = {n for p in client.partitions() if p.name in gated.job.partitions for n in p.nodes}
    node = next((one for one in client.nodes() if one.gpus and one.name in inside), None)
    if gated.original.left is not None or node is None:
        return (("AdminComment", marked(record, JobPhase.PREPARED, 0, now, "by-Slurm")),)
    slots, exact = gpu_slots(node)
    binding = Binding((node.name,), slots[:1] if exact else None, _CLOCK_MHZ)
    return prepared_fields(gated, binding, now, "trial")[0]


def _refused_alone(client: SlurmClient, job_id: str, fields: Fields) -> str:
    """`` (FIELD, FIELD)``: those that are refused if each is changed alone; empty: none is."""
    alone = [
        name for name, value in fields if client.update_jobs([JobUpdate(job_id, ((name, value),))])
    ]
    return f" ({', '.join(alone)})" if alone else ""


def _cure(client: SlurmClient) -> str:
    """What lets changes by this process pass."""
    settings, uid = client.settings(), os.geteuid()
    owner = re.fullmatch(r"(.*)\((\d+)\)", settings.get("SlurmUser", ""))
    if owner is not None and uid not in (0, int(owner[2])):
        return f"run the selector as SlurmUser ({owner[1]}), not as {_users()[0]}"
    others = [name for name in plugins_of(settings.get("JobSubmitPlugins")) if name != "lua"]
    also = f", and look at the job submit plugins {', '.join(others)}" if others else ""
    return (
        f"let changes by uid {uid} ({_users()[0]}) pass: the first line of slurm_job_modify in"
        f" job_submit.lua becomes 'if modify_uid == {uid} then return slurm.SUCCESS end'{also}"
    )


def main() -> None:
    """Print the outcome for doctor, which runs this as SlurmUser; ``argv[1]``: configuration."""
    try:
        config = load_config(sys.argv[1])
        trial = try_changes(open_client(config.selector.command_timeout_s), config)
    except AwareError as exc:
        trial = Trial(None, str(exc), "repair this, then run doctor again")
    sys.stdout.write(json.dumps(asdict(trial)))


if __name__ == "__main__":
    main()
