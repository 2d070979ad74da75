"""Pending jobs that wait at no gate."""

from dataclasses import replace

import numpy as np

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.left import part_of, spread
from slurm_gpu_aware.admission.node_use import gets_whole_nodes, is_alone, sharing_of
from slurm_gpu_aware.admission.reach import may_get, of_partitions, open_to, wanted
from slurm_gpu_aware.admission.snapshot import is_usable, standing_of
from slurm_gpu_aware.bounds import MAX_GPUS
from slurm_gpu_aware.model.arrays import BoolArray
from slurm_gpu_aware.model.request import LeftToSlurm, NodeRules, Request
from slurm_gpu_aware.slurm.records import SlurmJob


class Outside:
    """Pending jobs that wait at no gate. Equal ones cost little: a user may submit thousands."""

    def __init__(self, context: AdmissionContext) -> None:
        self.context = context
        self._masks: dict[object, BoolArray] = {}
        self._numbers: dict[object, int] = {}
        self._places = {name: i for i, name in enumerate(context.cluster.nodes)}

    def request(self, job: SlurmJob) -> Request:
        """Where Slurm might start it now, without what it may get of nodes that no round knows."""
        partitions, places = self.context.partitions, self._places
        whole = gets_whole_nodes(job, partitions)
        part = replace(part_of(job), whole=whole)
        if not part.gpus:  # of sockets and cores in other words it may need all
            cpus = max(part.cpus, job.min_cpus_node * part.min_nodes)
            part = replace(part, cpus=cpus, whole=part.whole or bool(job.unsupported))
        if part.min_nodes > 1 and (others := self.others(job)):
            part = spread(part, max(1, part.min_nodes - others))
        return Request(
            job_id=job.id,
            gpus=min(max(1, part.gpus), MAX_GPUS),
            app_class="",
            user=job.user,
            nodes=NodeRules(
                self._mask(job),
                required=tuple(places[name] for name in job.req_nodes if name in places),
                whole=part.whole,
                alone=is_alone(job, partitions),
                sharing=sharing_of(job, partitions),
            ),
            time_limit_s=job.longest_s,
            priority=standing_of(job, partitions),
            left=LeftToSlurm("it waits at no gate", (part,)),
        )

    def others(self, job: SlurmJob) -> int:
        """Number of usable nodes that no round knows and that a job without GPUs may get."""
        if part_of(job).gpus:
            return 0
        nodes, key = self.context.nodes, wanted(job)
        if key not in self._numbers:
            _, there = may_get(job, self.context)
            self._numbers[key] = sum(is_usable(nodes[name]) for name in there)
        return self._numbers[key]

    def _mask(self, job: SlurmJob) -> BoolArray:
        """(N,) nodes that it may get."""
        context, lone = self.context, is_alone(job, self.context.partitions)
        key = job.partitions, job.features, job.exc_nodes, job.reservation, lone and job.user
        if key not in self._masks:
            names = open_to(job, context.nodes, context.reservations, context.now)
            names.difference_update(job.exc_nodes)
            there = np.array([name in names for name in self._places], dtype=np.bool_)
            others = (one for one in context.cluster.running if lone and one.user != job.user)
            there[[node for one in others for node in one.on_nodes]] = False
            self._masks[key] = there & of_partitions(job, context)[0]
        return self._masks[key]
