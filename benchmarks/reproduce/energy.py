"""Clocks that save energy: choices on measured cards, and jobs that run at them.

python benchmarks/reproduce/energy.py [--quick] [--write]    half an hour; --quick: two minutes
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import arguments, finish, paragraph, percent, run, shared, standard_error, table
from energy_cards import CARD, CARDS, KERNELS, MAX_W, STAGES, choices, curves
from when_it_pays import BASE, NODES, SETTINGS, WIDTH, site_of, trace_of

from slurm_gpu_aware.features.energy.declared import EnergyConfig
from slurm_gpu_aware.features.energy.stage import EXACT
from slurm_gpu_aware.features.power.simulated import RunPower
from slurm_gpu_aware.model.size_table import SizeTable
from slurm_gpu_aware.simulator.parallel import Run
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.settings import (
    LIMIT_FACTOR,
    SimSettings,
    parse_policy,
)
from slurm_gpu_aware.simulator.trace import Trace

IDLE_W = 50.0
SEEDS = 24
"""Each of the eight traces of Sia-Philly three times, on other GPUs."""
SIMULATED = (0.02, 0.03, 0.05, 0.1)
SIA, IN_ORDER = replace(BASE, sia=True), "Sia-Philly, no backfill"
CASES = {"Synergy-like": BASE, "Sia-Philly": SIA, IN_ORDER: SIA}
"""With EASY backfill, but for the last."""
ASKED = 0.12
"""Share of energy that sites would like to save at a small bound."""


def _sized(one: SizeTable, gpus: int) -> SizeTable:
    """The table of a job of several GPUs, each as one alone."""
    limited = one.limited and replace(one.limited, power_w=one.limited.power_w * gpus)
    return replace(one, gpus=np.array([gpus]), power_w=one.power_w * gpus, limited=limited)


def _possible(true: Mapping[str, SizeTable], trace: Trace, bound: float) -> float:
    """Share of the energy of all jobs that the best setting of each within a bound saves."""
    spent = saved = 0.0
    for job in trace.jobs:
        _, _, time_s, power_w, _ = true[job.app_class].settings(0)
        joules = job.gpus * job.duration_s * time_s * power_w / time_s[-1]
        spent += float(joules[-1])
        saved += float(joules[-1] - joules[time_s <= time_s[-1] * (1.0 + bound)].min())
    return saved / spent


def with_curves(
    trace: Trace, true: Mapping[str, SizeTable], known: Mapping[str, SizeTable]
) -> tuple[Trace, dict[str, SizeTable]]:
    """The trace with the table of each job, and what the planner knows by application.

    Time limits are those of When it pays: they do not depend on the slowest clock of a table.
    """
    tables, planner, jobs = {}, {}, []
    for job in trace.jobs:
        name = f"{job.app_class}-{job.gpus}"
        if name not in tables:
            tables[name] = _sized(true[job.app_class], job.gpus)
            planner[name] = _sized(known[job.app_class], job.gpus)
        limit_s = LIMIT_FACTOR * job.duration_s
        jobs.append(replace(job, model=name, table=tables[name], time_limit_s=limit_s))
    return replace(trace, jobs=tuple(jobs)), planner


def needed(data: Path, seeds: Sequence[int]) -> str:
    """The bound that most of the work, which is compute bound, needs to save what is asked for."""
    true, _ = curves(data)
    traces = [trace_of(CASES["Sia-Philly"], seed) for seed in seeds]
    for bound in np.arange(0.02, 0.1, 0.001).tolist():
        saved = float(np.mean([_possible(true, trace, bound) for trace in traces]))
        if saved >= ASKED:
            break
    return paragraph(
        f"The best measured settings save {ASKED:.0%} of Sia-Philly's energy from a bound of"
        f" {percent(bound)} on. Its jobs all wait behind long ones, so their completion times grow"
        " by as much as run times do; with backfill single traces scatter by far more."
    )


class Variant(NamedTuple):
    """What runs."""

    policy: str
    bound: float | None = None
    """On time; None: no clocks that save energy."""
    limits: bool = True
    """Whether power limits are chosen, too."""
    eta: float = math.inf
    """Power limit of the site."""
    from_median: bool = False
    """As of `EnergyConfig`."""

    @property
    def words(self) -> str:
        """The setting of the GPUs."""
        if self.bound is not None:
            more = ", from the median GPU" if self.from_median else ""
            return f"{self.bound:.0%}{more if self.limits else ', clocks only'}"
        if self.policy.endswith(":zeus"):
            return "Zeus"
        return "default" if self.eta == math.inf else f"PowerFlow, eta {self.eta:g}"

    def settings(self, planner: Mapping[str, SizeTable]) -> SimSettings:
        """Those of a run; ``planner``: tables that the planner knows, by application."""
        if not self.limits:
            planner = {name: replace(one, limited=None) for name, one in planner.items()}
        power = RunPower(IDLE_W, MAX_W, eta=self.eta, known=planner)
        sections = []
        if self.bound is not None:
            sections.append(EnergyConfig(self.bound, from_median=self.from_median))
        return parse_policy(self.policy, SETTINGS.put(power, *sections))


DEFAULT, PACKED = Variant("eft"), Variant("packed")
VARIANTS = (
    *(PACKED, DEFAULT, Variant("eft", 0.03, limits=False)),
    *(Variant("eft", bound) for bound in SIMULATED),
    *(Variant("eft", bound, from_median=True) for bound in (0.03, 0.05)),
    *(Variant("eft:zeus"), Variant("eft:powerflow", eta=0.8)),
)


def simulated(data: Path, seeds: Sequence[int], processes: int | None) -> str:
    """Table of energy and time of runs with and without."""
    true, known = curves(data)
    runs, rows = [], []
    of_case = {case: [trace_of(case, seed) for seed in seeds] for case in CASES.values()}
    for name, case in CASES.items():
        sites = [site_of(case, seed) for seed in seeds]
        made = [with_curves(trace, true, known) for trace in of_case[case]]
        for variant in VARIANTS:
            for site, (trace, planner) in zip(sites, made, strict=True):
                settings = replace(variant.settings(planner), backfill=name != IN_ORDER)
                runs.append(Run(trace, site.cluster, site.truth, settings))
    results = iter(run("clocks that save energy", runs, processes))
    for name, case in CASES.items():
        of = {variant: [next(results) for _ in seeds] for variant in VARIANTS}
        for variant, own in of.items():
            possible = ""
            if (bound := variant.bound) is not None:
                each = [_possible(true, trace, bound) for trace in of_case[case]]
                possible = percent(-float(np.mean(each)))
            assert not any(result.killed.any() for result in own), "a limit is too short"
            cells, packed = (_compared(own, of[base]) for base in (DEFAULT, PACKED))
            row = [name, variant.policy.split(":")[0], variant.words, cells[0], possible]
            rows.append([*row, *cells[1:], packed[0], packed[-1]])
    heads = ["jobs", "policy", "setting, bound", "energy of jobs", "best measured", "all energy"]
    against = ["energy of jobs against packed", "JCT against packed"]
    return table([*heads, "average JCT", *against], rows)


def _compared(own: Sequence[Result], base: Sequence[Result]) -> list[str]:
    """Change of the energy of jobs, of all energy and of the average JCT: mean over the seeds, of
    the last with its standard error."""
    readings = (_of_jobs, _of_all, lambda result: float(result.jct_s().mean()))
    cells = []
    for read in readings:
        logs = np.log([read(a) / read(b) for a, b in zip(own, base, strict=True)])
        cells.append(f"{100 * np.expm1(logs.mean()):+.1f}%")
    return [*cells[:-1], f"{cells[-1]} ± {standard_error(logs)}"]


def _of_jobs(result: Result) -> float:
    assert result.energy is not None
    return float(result.energy.job_j.sum())


def _of_all(result: Result) -> float:
    assert result.energy is not None
    at_s = result.energy.at_s
    return result.energy.total_j(float(at_s[0]), float(at_s[-1]))


def section(data: Path, seeds: Sequence[int], processes: int | None, *, quick: bool) -> str:
    """The section of the page."""
    return "\n\n".join(
        [
            "## Clocks that save energy",
            paragraph(
                "A model is fitted to a third of the settings that were measured (of ten clocks or"
                " fewer: four), and chooses the setting with the least energy within a bound on"
                " time, for the upper end of its held-out error. Share: of what the best measured"
                " setting within the bound saves. Clock and limit: three programs on A100 PCIe and"
                " RTX PRO 6000, SM clock and power limit together, three draws; a power limit"
                " counts as the clock at which the model's power meets it, and between two limits"
                " that were measured at its clock by the line between them. What came is linear"
                " between limits. Training stages: A100 and A40; kernels: 20 on V100 and RTX8000,"
                " from four clocks each."
            ),
            choices(data, quick=quick),
            paragraph(
                f"Jobs that run at these clocks: {NODES * WIDTH} GPUs, jobs and time limits as in"
                " When it pays, with the same completion times at default clocks. Curves are"
                f" those of {CARD}: class A as pi-solver, B as breeze, C and D as babelstream,"
                " linear between the five measured clocks, and at each of them between seven power"
                f" limits; idle GPUs draw {IDLE_W:g} W. The planner knows models that are fitted to"
                f" these settings. Geometric mean change over {len(seeds)} seeds against eft at"
                " default clocks, with the standard error; last, against packed at default clocks."
                " The bound counts from a job's own GPUs, or, as from_median, so that these and the"
                " clock together stay within it. With backfill, but for the last part. Best"
                " measured:"
                " what the best setting of each job within the bound saves, where it ran at the"
                f" default clock; the runs allow {100 * EXACT:g} points more, as times are"
                " measured. Zeus chooses the clock of each job by half energy, half time; PowerFlow"
                " chooses the jobs that run, and their clocks, anew in each round under a limit of"
                " the site."
            ),
            simulated(data, seeds, processes),
            needed(data, seeds),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    data = shared(CARDS, STAGES, KERNELS)
    if data is None:  # there is no shape to make up: the point is what real cards save
        raise SystemExit(1)
    seeds = range(2 if options.quick else SEEDS)
    text = section(data, seeds, options.processes, quick=options.quick)
    finish("energy", text, write=options.write)


if __name__ == "__main__":
    main()
