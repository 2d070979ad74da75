"""Fields of Slurm's records that are read, by their names in ``slurm/slurm.h``.

`libslurm_build` writes the C code from this table, and `libslurm` splits its replies by it.
Standard library only, because it is read while the package is built.
"""

from typing import NamedTuple

NOT_SET = -2
UNLIMITED = -1


class RecordKind(NamedTuple):
    """One kind of record: numbers, then texts, by Slurm's names."""

    name: str
    numbers: tuple[str, ...]
    """Integers of any width; NO_VAL becomes `NOT_SET`, INFINITE becomes `UNLIMITED`."""
    texts: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


JOB = RecordKind(
    "job",
    _words(
        """job_id array_job_id array_task_id array_max_tasks het_job_id user_id priority
        restart_cnt submit_time eligible_time accrue_time deadline
        last_sched_eval start_time end_time time_limit time_min num_nodes max_nodes num_cpus
        num_tasks cpus_per_task ntasks_per_node ntasks_per_core threads_per_core
        sockets_per_node cores_per_socket core_spec contiguous pn_min_memory pn_min_cpus
        pn_min_tmp_disk req_switch segment_size exclusive oversubscribe bitflags
        oversized"""
    ),
    _words(
        """state reason array_task_str name user_name account qos partition req_nodes exc_nodes
        nodes dependency tres_req_str features prefer batch_features burst_buffer resv_name
        licenses admin_comment comment extra tres_per_node tres_per_job tres_per_task
        tres_per_socket tres_freq cpus_per_tres mem_per_tres gres_total shares
        job_size_str submit_line"""
    ),
)
"""``oversized``: a text was too long, and is empty here. ``submit_line``: the program only, as in
``srun``. ``shares``: per node a line
``node TAB CPUs TAB cores TAB MB TAB gres``; cores are ``*`` if not known."""

NODE = RecordKind(
    "node",
    _words(
        """cpus cpus_efctv threads sockets cores alloc_cpus real_memory mem_spec_limit
        alloc_memory slurmd_start_time"""
    ),
    _words("name state features gres gres_used gres_drain cpu_spec_list reason"),
)

PARTITION = RecordKind(
    "partition",
    _words("state_up max_time default_time max_nodes priority_tier max_share grace_time"),
    _words("name nodes topology_name line"),
)
"""``line``: as ``scontrol show partition`` prints it; only there are ExclusiveUser, JobDefaults
and, for a partition without its own, the cluster's PreemptMode."""

RESERVATION = RecordKind(
    "reservation",
    _words("start_time end_time"),
    _words("name node_list licenses tres_str flags comment"),
)

LICENSE = RecordKind("license", _words("available reserved"), _words("name nodes"))

RESULT = RecordKind("result", ("error_code",), ("job_id", "message"))
"""Result of an update for one record."""

ENDED = _words(
    """ESLURM_ALREADY_DONE ESLURM_INVALID_JOB_ID ESLURM_JOB_FINISHED ESLURM_JOB_NOT_PENDING
    ESLURM_JOB_NOT_PENDING_NOR_RUNNING ESLURM_JOB_STARTED ESLURM_TRANSITION_STATE_NO_UPDATE"""
)
"""Errors of an update of a job that has started or ended."""
UPDATE_TEXTS = _words(
    """admin_comment comment cpus_per_tres exc_nodes extra features licenses name partition
    req_nodes reservation tres_bind tres_freq tres_per_job tres_per_node tres_per_socket
    tres_per_task"""
)
UPDATE_NUMBERS = _words(
    """begin_time bitflags cpus_per_task max_cpus max_nodes min_cpus min_nodes ntasks_per_node
    num_tasks pn_min_cpus priority time_limit"""
)
"""Fields of ``job_desc_msg_t`` that an update may set. The client sets some of them; the tests use
the others to act as a user."""
