"""Site reader: Slurm's nodes, partitions, QOS and network as the admission context of a round."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.admission.context import AdmissionContext, Known, PreemptionRules
from slurm_gpu_aware.admission.fitting import needs_sockets
from slurm_gpu_aware.admission.hints import class_of
from slurm_gpu_aware.admission.holds import Hold, hold_of, with_sockets
from slurm_gpu_aware.admission.left import hold_of_left
from slurm_gpu_aware.admission.snapshot import SiteProfile, build_cluster
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import guards_head
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.slurm.reader import SlurmReader
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    components_of,
)
from slurm_gpu_aware.slurm.topology import Network

log = logging.getLogger(__name__)

_EPILOG_S = 3.0  # a node on which an epilog runs for longer counts as busy until it ends
_CONFIG_S = 5.0  # age at which Slurm's configuration is read again (3 ms): it may hide jobs now
_QOS_S = 60.0  # age at which the QOS are
_QOS_WAIT_S = 0.5  # longest wait of a round for the QOS, which usually take 0.05 s


@dataclass(frozen=True)
class SiteState:
    """Slurm's records of one moment, Unix time ``now``."""

    jobs: Sequence[SlurmJob]
    nodes: Mapping[str, SlurmNode]
    partitions: Mapping[str, SlurmPartition]
    reservations: Sequence[SlurmReservation]
    now: float
    busy: frozenset[str] = frozenset()
    """Nodes on which no job starts, as an epilog takes its time there."""


class QosReader:
    """The last known QOS, read in a thread, so that a slurmdbd that hangs does not delay rounds."""

    def __init__(self, client: SlurmReader) -> None:
        self._client = client
        self._thread: threading.Thread | None = None
        self.known: Mapping[str, SlurmQos] = {}
        """QOS by name."""

    def refresh(self) -> None:
        """Ask unless a question is open, and wait a moment; a later answer counts, too."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="qos", daemon=True)
            self._thread.start()
        self._thread.join(_QOS_WAIT_S)

    def _read(self) -> None:
        try:
            self.known = {qos.name: qos for qos in self._client.qos()}
        except SourceError as exc:
            log.warning("QOS cannot be read; the last known ones count: %s", exc)
        except Exception:
            log.exception("QOS cannot be read; the last known ones count")


class SiteReader:
    """Reads the site for each round, and keeps what changes seldom."""

    def __init__(
        self,
        client: SlurmReader,
        config: Config,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._config = client, config
        self._clock, self._timer = clock, timer
        self._network = Network(client.topology, NETWORK_LEVELS)
        self._slurm: SlurmConfig | None = None
        self._qos = QosReader(client)
        self._read_at = self._qos_at = -float("inf")
        self._completing: dict[int, float] = {}
        """Record number of a job whose epilog runs -> first time seen."""

    def slurm(self) -> SlurmConfig:
        """Slurm's configuration, read every few seconds; once a minute the QOS if they preempt."""
        if self._slurm is None or self._timer() - self._read_at > _CONFIG_S:
            self._slurm = self._client.config()
            self._read_at = self._timer()
        if self._slurm.preempt_type == "qos" and self._timer() - self._qos_at > _QOS_S:
            self._qos_at = self._timer()
            self._qos.refresh()
        return self._slurm

    def prepare(self) -> None:
        """Read what changes seldom. Raises SourceError."""
        self.slurm()
        self._network.groups((), self._timer)

    def context(
        self,
        jobs: Sequence[SlurmJob],
        waiting: Sequence[GatedJob],
        reservations: Sequence[SlurmReservation],
        victims: Mapping[str, frozenset[str]],
        profile: Profile | None,
        known: Known,
    ) -> AdmissionContext:
        """The admission context for ``waiting``, the parked and released jobs.

        ``victims``: released job -> jobs that Slurm preempts for it. Raises SourceError.
        """
        nodes = {node.name: node for node in self._client.nodes()}
        now = self._clock()
        slurm = self.slurm()
        partitions = {p.name: p for p in self._client.partitions()}
        holds: list[Hold] = []
        not_ours = [one for one in reservations if not guards_head(one.name)]
        components = components_of(jobs)
        for gated in (one for one in waiting if one.id in victims):
            with contained("resources of a placed job", gated.id):
                asked = gated.job, gated.original, self._config, known.classes
                app_class = class_of(*asked).app_class
                taken = victims[gated.id]
                if gated.left:
                    others = components.get(gated.job.raw_id, ())
                    given = nodes, partitions, not_ours, app_class, now, others
                    holds.append(hold_of_left(gated, *given))
                elif gated.job.req_nodes:
                    holds.append(hold_of(gated, slurm, partitions, app_class, now, victims=taken))
        holds += known.holds
        seen = SiteState(
            jobs, nodes, partitions, reservations, now, self._busy(jobs, self._timer())
        )
        return self.context_of(seen, waiting, profile, known, holds)

    def context_of(
        self,
        seen: SiteState,
        waiting: Sequence[GatedJob],
        profile: Profile | None,
        known: Known,
        holds: Sequence[Hold] = (),
    ) -> AdmissionContext:
        """The admission context for ``waiting`` in a state of the site. Raises SourceError."""
        slurm, nodes = self.slurm(), seen.nodes
        rules = PreemptionRules(slurm, seen.partitions, self._qos.known)
        level_ratios = profile.level_ratios if profile is not None else {}
        penalties = self._config.placement.penalties_with(level_ratios)
        network = self._network.groups(penalties.general, self._timer)
        cluster = build_cluster(
            list(nodes.values()),
            seen.jobs,
            slurm,
            SiteProfile(self._config, penalties, profile, network, known.classes),
            holds=holds,
            busy_nodes=seen.busy,
            now=seen.now,
            rules=rules,
        )
        if any(needs_sockets(gated, slurm) for gated in waiting):
            cluster = with_sockets(cluster, nodes, seen.jobs, holds, seen.now)
        return AdmissionContext(
            self._config,
            slurm,
            nodes,
            seen.partitions,
            [one for one in seen.reservations if not guards_head(one.name)],
            cluster,
            seen.now,
            rules,
            known=known,
            fabric=self._network.fabric,
        )

    def _busy(self, jobs: Iterable[SlurmJob], now: float) -> frozenset[str]:
        """Nodes on which an epilog takes longer than `_EPILOG_S`."""
        ending = [job for job in jobs if job.state == "COMPLETING"]
        self._completing = {j.raw_id: self._completing.get(j.raw_id, now) for j in ending}
        slow = [job for job in ending if now - self._completing[job.raw_id] > _EPILOG_S]
        return frozenset(name for job in slow for name in job.nodes)
