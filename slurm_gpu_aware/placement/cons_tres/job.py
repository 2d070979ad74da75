"""A job, a node and its share of the job, as Slurm's select/cons_tres counts them."""

from __future__ import annotations

from dataclasses import dataclass

Links = tuple[tuple[int, ...], ...]
"""(W, W) links between the GPUs of a node, Slurm's ``links_cnt``; the diagonal is not read."""


@dataclass(frozen=True)
class Job:
    """The request of one job. A count of 0: not given."""

    per_node: int
    """``--gres=gpu:N``, ``--gpus-per-node``."""
    per_task: int
    """``--gpus-per-task``."""
    per_job: int
    """``--gpus``; with ``per_task`` the GPUs of all tasks, as ``gres_job_state_validate`` sets."""
    tasks: int
    """``-n``; Slurm then counts one task per node for the CPUs, and none elsewhere."""
    tasks_per_node: int
    """``--ntasks-per-node``."""
    cpus_per_task: int
    cpus_per_gpu: int
    min_nodes: int
    max_nodes: int
    """0: no limit."""
    tried_nodes: int
    """Nodes that Slurm tries to give, its ``req_nodes``."""
    bound: bool = False
    """``--gres-flags=enforce-binding``."""
    whole: bool = False
    """``--exclusive``."""

    @property
    def one_socket(self) -> bool:
        """Whether it needs one socket of a node only (``_socks_per_node`` in job_test.c)."""
        if max(self.min_cpus, self.tasks * self.cpus_per_task) // max(self.min_nodes, 1) > 1:
            return False
        gpus = self.per_node or self.per_task * self.tasks or self.per_job // self.min_nodes
        return self.cpus_per_gpu * gpus <= 1

    @property
    def min_cpus(self) -> int:
        """Least CPUs of the job."""
        tasks = self.tasks or max(self.tasks_per_node, 1) * self.min_nodes
        return max(tasks * self.cpus_per_task, self.min_nodes)

    @property
    def min_gpu_cpus(self) -> int:
        """Least CPUs of a node by ``--cpus-per-gpu`` (``gres_select_util_job_min_cpu_node``)."""
        tasks = max(self.tasks_per_node, 0)
        return self.cpus_per_gpu * (self.per_node or self.per_task * tasks or 1)

    def min_job_gpu_cpus(self, nodes: int) -> int:
        """Least CPUs of the job by ``--cpus-per-gpu`` (``gres_select_util_job_min_cpus``)."""
        return self.cpus_per_gpu * (self.per_job or self.per_node * nodes)

    def all_tasks(self, nodes: int) -> int:
        """Tasks to spread over its nodes (``_get_task_count`` in dist_tasks.c)."""
        if self.tasks:
            return self.tasks
        if self.tasks_per_node:
            return self.tasks_per_node * nodes
        cpus = max(self.min_cpus, nodes * self.cpus_per_task, self.min_job_gpu_cpus(nodes))
        return max(cpus // self.cpus_per_task, 1)


@dataclass(frozen=True)
class Room:
    """What is free on a node, by S sockets."""

    cores: tuple[int, ...]
    """(S,) free cores."""
    threads: int
    """CPUs of a core."""
    anywhere: int
    """Free GPUs that are bound to no socket, or to all."""
    by_socket: tuple[int, ...]
    """(S,) free GPUs bound to each socket."""

    @property
    def cpus(self) -> int:
        """Free CPUs."""
        return sum(self.cores) * self.threads

    @property
    def gpus(self) -> int:
        """Free GPUs."""
        return self.anywhere + sum(self.by_socket)


@dataclass
class Share:
    """What a node can give a job; the evaluation of nodes narrows it down."""

    cpus: int
    tasks: int
    min_cpus: int
    """CPUs that its GPUs need at least."""
    cores: tuple[int, ...]
    """(S,) cores that the job may get."""
    gpus: int
