"""What orders of the queue gain and cost where accounts have fair shares: Philly's trace.

python benchmarks/reproduce/queue_order_accounts.py [--quick] [--write]    5 minutes on a core
"""

from collections.abc import Sequence
from dataclasses import replace

from cheats import SHARES
from common import arguments, finish, measured_data, paragraph, table
from eft import BASE, Load
from pal_bench import Bench, Size
from queue_order import OFF, VALUES, costs_of, rows_of

from slurm_gpu_aware.features.queue_order.simulated import RunOrder
from slurm_gpu_aware.features.queue_order.stage import OrderRule
from slurm_gpu_aware.simulator.trace import Trace, read_csv

PHILLY = "traces/philly/philly.csv"
JOBS, FIRST_JOBS, FULL = 700, (10_000, 30_000, 50_000, 70_000), 0.9
"""Jobs of each part of Philly, the first of them, and the share of the GPUs that they ask for."""
MOST_S = 7 * 86_400.0
FAIR = (
    *("packed@backfill", "packed@expected=0.1", "packed@expected=1"),
    *("eft", "eft@backfill", "eft@expected=0.1", "eft@expected=1"),
)
"""Cases with fair shares."""


def part_of(trace: Trace, first: int, gpus: int) -> Trace:
    """Jobs one after the other, so far apart that they ask for a share of ``gpus``."""
    known = [j for j in trace.jobs[first:] if j.gpus <= gpus // 2 and j.duration_s <= MOST_S]
    jobs, first_s = known[:JOBS], known[0].submit_s
    work_s = sum(job.gpus * job.duration_s for job in jobs)
    scale = work_s / (FULL * gpus) / (jobs[-1].submit_s - first_s)
    moved = (replace(j, submit_s=(j.submit_s - first_s) * scale, app_class="A") for j in jobs)
    return Trace.of("philly", [*moved])


def section(firsts: Sequence[int], processes: int | None) -> str:
    """Orders where fair shares count, too: the section of the page."""
    bench = Bench(Size(1, loads=()), processes)
    trace = read_csv(measured_data(PHILLY) / PHILLY)
    load = Load("Philly", [part_of(trace, first, 64) for first in firsts], 1)
    base = replace(BASE, order="multifactor", multifactor=SHARES)
    base = base.put(RunOrder(OrderRule(age_per_s=SHARES.age_per_s)))
    rows = []
    for known in ("run times", OFF, "time limits"):
        rows += rows_of(bench, load, "Longhorn, medians", known, FAIR, base)
    part = "" if firsts == FIRST_JOBS else " (a part of the runs)"
    accounts = len({job.account for job in trace.jobs})
    return "\n\n".join(
        [
            f"## Order of the queue with fair shares{part}",
            paragraph(
                f"As above, for {len(firsts)} parts of Philly's trace, of {JOBS} jobs each, on "
                f"one draw of 64 GPUs. Priorities are Slurm's multifactor; its {accounts} virtual "
                "clusters are accounts of equal shares (the trace names no users), and all of the "
                "fair share is worth 17 h of age. Jobs of more than 32 GPUs or a week are left "
                f"out; submissions are so far apart that {FULL:.0%} of the GPUs are asked for. The "
                "trace has no names, so earlier runs tell nothing."
            ),
            table(["workload", "scores", "known", "case", *VALUES], rows),
            *costs_of(rows),
        ]
    )


def main() -> None:
    options = arguments(__doc__ or "")
    text = section(FIRST_JOBS[:2] if options.quick else FIRST_JOBS, options.processes)
    finish("queue_order_accounts", text, write=options.write)


if __name__ == "__main__":
    main()
