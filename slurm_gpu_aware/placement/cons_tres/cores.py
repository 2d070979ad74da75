"""Cores of a node beside its GPUs: which ones Slurm leaves to a job, and which it gives.

Names in the docstrings are functions of Slurm's source: ``src/plugins/topology/common/`` has
``gres_filter.c`` and ``eval_nodes.c``, ``src/plugins/select/cons_tres/`` the others.
"""

from dataclasses import replace

from slurm_gpu_aware.placement.cons_tres.job import Job, Room, Share

_NO_LIMIT = 1 << 32


def usable(job: Job, room: Room) -> tuple[int, int] | None:
    """GPUs beside free cores, and the most GPUs the node gives (0: no limit); None: it has no room.

    ``_can_job_run_on_node`` in job_test.c, ``gres_select_filter_remove_unusable``. The first number
    orders nodes: "Favor nodes with more co-located GPUs".
    """
    if not room.cpus or room.cpus < job.cpus_per_task * _least_tasks(job):
        return None
    near = room.anywhere
    near += sum(gpus for gpus, cores in zip(room.by_socket, room.cores, strict=True) if cores)
    total = near if job.bound else room.gpus
    most = 0 if job.whole else job.per_node or job.per_job
    if job.cpus_per_gpu:
        by_cpus = room.cpus // job.cpus_per_gpu
        if by_cpus == 0:
            return None
        most = min(most, by_cpus) if most else by_cpus
    least = max(job.per_node or 1, job.per_task * max(job.tasks_per_node, 1))
    if total < least or (most and most < least):
        return None
    return (min(near, most) if most else near), most


def bound_to_one_socket(room: Room) -> Room:
    """What a bound job by ``--gpus`` that needs one socket may use, in releases up to 25.05.

    ``_build_sock_gres_by_topo`` in gres_sock_list.c: the socket with the most GPUs, of equal ones
    the last.
    """
    able = [s for s, cores in enumerate(room.cores) if cores and room.by_socket[s]]
    if len(able) < 2:
        return room
    best = max(able, key=lambda s: (room.by_socket[s], s))
    kept = [s == best or s not in able for s in range(len(room.cores))]
    return replace(
        room,
        cores=tuple(c if keep else 0 for c, keep in zip(room.cores, kept, strict=True)),
        by_socket=tuple(g if keep else 0 for g, keep in zip(room.by_socket, kept, strict=True)),
    )


def _least_tasks(job: Job) -> int:
    """Tasks that the node must be able to run."""
    if job.tasks_per_node:
        return job.tasks_per_node
    return max(job.tasks, 1) if job.max_nodes == 1 else 1


class Filter:
    """One call of ``gres_filter_sock_core``: the sockets and cores that a job may have on a node.

    On the first pass GPUs must lie beside the cores. ``capped``: releases from 25.11 on give a node
    no more tasks than the job has. ``limit``: CPUs to which an earlier evaluation has cut the node.
    """

    def __init__(
        self, job: Job, room: Room, *, first: bool, capped: bool, limit: int | None = None
    ) -> None:
        self.job, self.room, self.first, self.capped = job, room, first, capped
        self.near_only = first or job.bound
        self.cores = list(room.cores)
        self.all = sum(room.cores)
        self.cpus = room.cpus if limit is None else min(limit, room.cpus)
        self.by_socket = list(room.by_socket)
        self.gpus = room.gpus
        self.wanted = [False] * len(room.cores)
        self.per_gpu = job.cpus_per_gpu or (self._per_gpu() if first else 0)

    def _per_gpu(self) -> int:
        """``_estimate_cpus_per_gres``: CPUs per GPU for which a first pass looks."""
        job = self.job
        if not job.tasks or not job.per_job:
            return 0
        if job.tasks >= job.per_job and job.tasks % job.per_job == 0:
            return job.tasks // job.per_job * job.cpus_per_task
        if job.per_job % job.tasks == 0:
            of_task = job.per_job // job.tasks
            if job.cpus_per_task % of_task == 0:
                return job.cpus_per_task // of_task
        return 0

    def share(self, most: int, left: int, nodes: int) -> Share | None:
        """What the node can give; None: nothing.

        ``most`` as in `usable`; ``left``: GPUs that the job still needs; ``nodes``: nodes that it
        still needs at least.
        """
        low, high = self._tasks()
        if high == 0:
            return None
        wanted = self._most_gpus(most, left, nodes, low, high)
        if wanted is None:
            return None
        found = self._sockets(wanted, low)
        if self.per_gpu:
            by_cpus = self.cpus // self.per_gpu
            wanted = min(by_cpus, wanted) if wanted else by_cpus
            found = min(found, wanted)
        if wanted:
            found = min(found, wanted)
        if self.job.per_node:
            found = min(found, self.job.per_node)
        if not found or found < self.job.per_node or found < self.job.per_task:
            return None
        return self._cut(found, low, self._tasks_by_gpus(found, low, high))

    def _tasks(self) -> tuple[int, int]:
        """``eval_nodes_select_cores``: fewest and most tasks on the node; most 0: it fits not."""
        job = self.job
        if job.tasks_per_node:
            low = high = job.tasks_per_node
        elif job.tasks and job.max_nodes == 1:
            low = high = job.tasks
        elif job.tasks == 1 or 0 < job.tasks == job.min_nodes == job.max_nodes:
            low = high = 1
        else:
            low, high = 1, _NO_LIMIT
        by_cpus = self.cpus // job.cpus_per_task
        high = 0 if by_cpus < low else min(high, by_cpus)
        return low, min(high, job.tasks) if self.capped and job.tasks else high

    def _most_gpus(self, most: int, left: int, nodes: int, low: int, high: int) -> int | None:
        """``_set_max_gres``: the most GPUs of the node, 0 without a limit; None: too few."""
        job, rest = self.job, 0
        if job.per_job:
            rest = left - (nodes - 1) if left > 0 else max(job.per_node, job.per_task, 1)
        if self.capped and job.per_task:
            if job.per_task * low > rest:
                return None
            rest = min(rest, job.per_task * high)
        if not most:
            return 0
        limit = rest if 0 < rest < most else most
        return None if job.per_node > limit else limit

    def _sockets(self, wanted: int, low: int) -> int:
        """Mark the sockets that the job wants, most free cores first; return GPUs beside them."""
        job, found, enough = self.job, self.room.anywhere, False
        least = -(-max(low, 1) * job.cpus_per_task // self.room.threads)
        order = sorted(range(len(self.cores)), key=lambda s: -self.cores[s])
        for s in order:
            here = self.by_socket[s]
            if self.near_only and self.per_gpu:
                here = min(here, self.cores[s] * self.room.threads // self.per_gpu)
            if self.room.anywhere + here == 0:
                if job.bound:
                    self.gpus -= self.by_socket[s]
                    self.by_socket[s] = 0
                if self.first and self.all > least:
                    gone = min(self.cores[s], self.all - least)
                    self.cores[s] -= gone
                    self.all -= gone
                    if gone:
                        self.cpus = min(self.cpus, self.all * self.room.threads)
            if self.near_only and not self.cores[s]:
                continue
            found += here
            if (not enough and here) or self.room.anywhere:
                self.wanted[s] = True
            if (wanted and found >= wanted) or (job.per_node and found >= job.per_node):
                enough = True
        return found

    def _tasks_by_gpus(self, found: int, low: int, high: int) -> int:
        """The most tasks on the node with these GPUs."""
        job = self.job
        if self.per_gpu:
            cpus = self.per_gpu * found
            too_few = cpus < max(low * job.cpus_per_task, job.cpus_per_task)
            high = low if too_few else min(high, cpus // job.cpus_per_task)
        if job.per_task:
            high = min(high, found // job.per_task)
        return high // low * low

    def _cut(self, found: int, low: int, high: int) -> Share | None:
        """Leave the cores that the tasks need, spread over the wanted sockets."""
        if high == 0:
            return None
        job, threads = self.job, self.room.threads
        if job.per_task:
            found = min(found, high * job.per_task)
        if self.near_only:
            for s, wanted in enumerate(self.wanted):
                if not wanted and self.cores[s]:
                    self.cores[s] = 0
                    self.cpus = min(self.cpus, sum(self.cores) * threads)
        need = -(-high * job.cpus_per_task // threads)
        while high >= low and need > sum(self.cores):
            high -= 1
            need = -(-high * job.cpus_per_task // threads)
            if job.per_task:
                found = min(found, high * job.per_task)
        if self.per_gpu:
            of_gpus = (job.per_node or job.per_task * high or found or 1) * self.per_gpu
            high = min(high, of_gpus)
            need = max(need, -(-of_gpus // threads))
        if job.bound:
            need = max(need, sum(self.wanted))
        if need > sum(self.cores) or high == 0 or (job.bound and need * threads > self.cpus):
            return None
        return self._spread(found, high, need)

    def _spread(self, found: int, tasks: int, need: int) -> Share | None:
        """Take cores away until ``need`` are left: from sockets not wanted, then the fullest."""
        job, threads, cores = self.job, self.room.threads, self.cores
        spare = sum(cores) - need
        if spare and not self.near_only:
            for s, wanted in enumerate(self.wanted):
                if not wanted:
                    gone = min(spare, cores[s])
                    cores[s] -= gone
                    spare -= gone
        while spare > 0 and any(self.wanted):
            able = [s for s, wanted in enumerate(self.wanted) if wanted and cores[s]]
            if not able:
                break
            cores[max(able, key=lambda s: (cores[s], -s))] -= 1
            spare -= 1
        self.cpus = min(self.cpus, sum(cores) * threads)
        gpus = self.gpus
        if self.per_gpu:
            gpus = min(self.cpus // self.per_gpu, gpus)
            if job.per_node > gpus or job.per_task > gpus:
                return None
        least = need if job.bound or job.cpus_per_gpu else 0
        if not job.cpus_per_gpu:
            self.cpus = min(self.cpus, max(tasks * job.cpus_per_task, least * threads))
        return Share(self.cpus, tasks, least * threads, tuple(cores), min(found, gpus))


def tasks_of(job: Job, shares: list[Share], threads: list[int]) -> list[tuple[int, int]] | None:
    """CPUs and tasks of each node (``_dist_tasks_compute_c_b``); None: too few for all tasks."""
    limits = [s.gpus // job.per_task if job.per_task else s.tasks for s in shares]
    total = job.all_tasks(len(shares))
    cpus, tasks = [0] * len(shares), [0] * len(shares)

    def add(n: int) -> None:
        nonlocal total
        total -= 1
        tasks[n] += 1
        cpus[n] += min(job.cpus_per_task, shares[n].cpus - cpus[n])

    def room(n: int) -> bool:
        return shares[n].cpus - cpus[n] >= job.cpus_per_task

    def fits(n: int, *, by_gpus: bool) -> bool:
        full = job.tasks_per_node and tasks[n] >= job.tasks_per_node
        return room(n) and not full and (not by_gpus or limits[n] > tasks[n])

    for n in range(len(shares)):
        if total and shares[n].cpus:
            add(n)
    for n in range(len(shares)):  # on cores that the job has already
        for _ in range(cpus[n] % threads[n] // job.cpus_per_task):
            if total and fits(n, by_gpus=True):
                add(n)
    by_gpus = True
    while total > 0:
        more = False
        for n in range(len(shares)):
            for _ in range(max(1, threads[n] // job.cpus_per_task)):
                if total and fits(n, by_gpus=by_gpus):
                    add(n)
                    more = more or room(n)
        if total and not more:
            if job.per_task or not by_gpus:
                return None
            by_gpus = False  # a limit that comes from nothing asked is soft
    least = [min(max(c, s.min_cpus), s.cpus) for c, s in zip(cpus, shares, strict=True)]
    return list(zip(least, tasks, strict=True))


def cyclic(job: Job, share: Share, cpus: int, threads: int) -> tuple[int, ...] | None:
    """(S,) cores that the job gets on each socket in turn (``_cyclic_sync_core_bitmap``)."""
    left, given = list(share.cores), [0] * len(share.cores)
    if job.cpus_per_task > 1:  # the CPUs of a task on one socket
        for s in range(len(left)):
            whole = left[s] * threads // job.cpus_per_task * job.cpus_per_task
            while left[s] and whole > 0 and cpus > 0:
                left[s] -= 1
                given[s] += 1
                whole -= threads
                cpus -= threads
    while cpus > 0:
        able = [s for s in range(len(left)) if left[s]]
        if not able:
            return None
        for s in able:
            if cpus > 0:
                left[s] -= 1
                given[s] += 1
                cpus -= threads
    return tuple(given)
