"""What differs by design, and the row of a request.

A difference that no entry of `EXPLAINED` covers makes the test fail. An entry covers single
differences, not whole cells, and only where its check holds.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from requests_cells import Cell
from requests_seen import Seen, differences

__all__ = ["EXPLAINED", "HEADER", "Explained", "judge", "row_of"]

Check = Callable[[Seen, Seen], bool]


@dataclass(frozen=True)
class Explained:
    """Why some difference is right."""

    reason: str
    request: str
    """Pattern that the request matches."""
    covers: str
    """Pattern that a line of `differences` matches from its start."""
    check: Check
    """What must hold in plain Slurm's and in our pass, or nothing is explained."""


def _refused_by_us(plain: Seen, ours: Seen) -> bool:
    return ours.verdict == "refused" and "names one GPU of a node" in ours.ours


def _model(plain: Seen, ours: Seen) -> bool:
    return plain.verdict == "refused" and ours.verdict == "ran" and ours.placed == "gpus"


def _same_sums(plain: Seen, ours: Seen) -> bool:
    return (
        len(plain.shares) == len(ours.shares)
        and sum(s[2] for s in plain.shares) == sum(s[2] for s in ours.shares)
        and len({s[2] for s in ours.shares}) == 1
        and len({s[2] for s in plain.shares}) > 1
    )


def _same_cpus(plain: Seen, ours: Seen) -> bool:
    return _same_sums(plain, ours) and sum(s[0] for s in plain.shares) == sum(
        s[0] for s in ours.shares
    )


def _cpus_by_gpus(plain: Seen, ours: Seen) -> bool:
    """Slurm gives every node the CPUs of the node with most GPUs; ours are those of its GPUs."""
    return _same_sums(plain, ours) and len({s[0] for s in ours.shares}) == 1


def _even_tasks(plain: Seen, ours: Seen) -> bool:
    return (
        sum(s[0] for s in plain.shares) == sum(s[0] for s in ours.shares)
        and [s[2] for s in plain.shares] == [s[2] for s in ours.shares]
        and len(set(ours.shares)) == 1
    )


def _tasks_of_all_nodes(plain: Seen, ours: Seen) -> bool:
    return (
        _both_ran(plain, ours)
        and [s[2] for s in plain.shares] == [s[2] for s in ours.shares]
        and len(ours.steps["plain"].tasks) in (0, sum(s[2] for s in ours.shares))
    )


def _smaller_step(plain: Seen, ours: Seen) -> bool:
    return ours.placed == "gpus" and plain.shares == ours.shares and len(ours.shares) == 1


def _same_shares(plain: Seen, ours: Seen) -> bool:
    return ours.placed == "gpus" and plain.shares == ours.shares


def _only_with_us(plain: Seen, ours: Seen) -> bool:
    return plain.verdict in ("waits", "refused") and ours.verdict == "ran"


def _all_of_the_node(plain: Seen, ours: Seen) -> bool:
    return _smaller_step(plain, ours) and ours.steps["one"].gpus == (ours.shares[0][2],)


def _as_the_step_asked(plain: Seen, ours: Seen) -> bool:
    return _both_ran(plain, ours) and set(ours.steps["gpus"].gpus) == {1}


def _both_ran(plain: Seen, ours: Seen) -> bool:
    return plain.verdict == ours.verdict == "ran"


SPREAD = (
    r"shares|(batch|direct|plain|one|gres|gpus|per-task)(\.\d+)? (gpus|said|status|[A-Z_]*GPU|GPU_|"
    r"CUDA_|SLURM_GPUS_ON_NODE|SLURM_CPUS_ON_NODE|SLURM_JOB_CPUS_PER_NODE|SLURM_(STEP_)?TASKS_PER)"
)
"""What follows from another spread of GPUs, and so of tasks, over the same nodes."""

EXPLAINED: tuple[Explained, ...] = (
    Explained(
        "GPU types name single GPUs here: a model is asked for by a feature, which the filter does",
        r"gpu:v100:",
        r"",
        _model,
    ),
    Explained(
        "the type of one GPU of a node is not for users to ask for; refused with a sentence",
        r"gpu:g\d",
        r"",
        _refused_by_us,
    ),
    Explained(
        "Slurm would take uneven numbers of GPUs; the nodes of a job get the same number",
        r"--gpus=|--gpus-per-task=",
        SPREAD,
        _same_cpus,
    ),
    Explained(
        "Slurm would take uneven numbers of GPUs, and for all nodes the CPUs that the widest needs;"
        " the nodes of a job get the same number of GPUs, and their CPUs",
        r"--gpus(-per-task)?=.*--cpus-per-gpu=",
        SPREAD + "|allocated: |.* SLURM_NPROCS|.* SLURM_NTASKS|plain tasks",
        _cpus_by_gpus,
    ),
    Explained(
        "Slurm would fill the first node with tasks; tasks are spread as evenly as the GPUs",
        r"-n \d+ --gpus(-per-node)?=",
        SPREAD,
        _even_tasks,
    ),
    Explained(
        "Slurm counts the tasks of the fewest nodes and gives too few CPUs for those of all, so"
        " that its srun is refused; with us tasks and CPUs follow the nodes taken",
        r"--nodes=\d-\d (.* )?--ntasks-per-gpu",
        r"shares|allocated|NumTasks|(batch|plain|one|gres|gpus|per-task)(\.\d+)? ",
        _tasks_of_all_nodes,
    ),
    Explained(
        "the CPUs of each GPU are told to Slurm as CPUs of each task; steps see no difference",
        r"--cpus-per-gpu",
        r"CPUs/Task",
        _both_ran,
    ),
    Explained(
        "Slurm's record counts the tasks of the fewest nodes, ours those of the nodes taken; steps"
        " see no difference",
        r"--nodes=\d-\d .*--ntasks-per-node|--nodes=\d-\d --gres=gpu:1 --ntasks-per-node",
        r"NumTasks",
        _both_ran,
    ),
    Explained(
        "Slurm 26.05 takes SLURM_TRES_PER_TASK from the job, whose GPUs are typed per node: a step"
        " with fewer tasks takes all GPUs of its node, but each task sees its own",
        r"--gpus-per-task=|--tres-per-task=",
        r"\S+ SLURM_TRES_PER_TASK|(one|gres|gpus|per-task)\.\d+ SLURM_GPUS_ON_NODE",
        _both_ran,
    ),
    Explained(
        "Slurm 26.05 takes SLURM_TRES_PER_TASK from the job, whose GPUs are typed per node: with"
        " --gpu-bind=none or closest, a step with fewer tasks sees all GPUs of its node",
        r"--gpus-per-task=1.*--gpu-bind=(none|closest)",
        r"one gpus|one\.\d+ (CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|SLURM_STEP_GPUS)",
        _all_of_the_node,
    ),
    Explained(
        "Slurm 26.05 takes SLURM_TRES_PER_TASK from the job, whose GPUs are typed per node: a step"
        " that asks for --gpus=1 gets one, not the two of a task, and says that it has not two",
        r"--gpus-per-task=2",
        r"gpus (said|gpus)|gpus\.\d+ (CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|SLURM_STEP_GPUS)",
        _as_the_step_asked,
    ),
    Explained(
        "Slurm chooses other cores of the node (not by socket of the GPUs), so a step with fewer"
        " GPUs gets another share of the CPUs",
        r"--gpus=|--gpus-per-task=|--gpus-per-socket=",
        r"(one|gres|gpus|per-task)\.\d+ SLURM_CPUS_ON_NODE",
        _same_shares,
    ),
    Explained(
        "Slurm 24.11 never starts it, or refuses it; with us it runs as on 26.05",
        r"--ntasks-per-gpu=1 -c 2",
        r"",
        _only_with_us,
    ),
)


def judge(cell: Cell, plain: Seen, ours: Seen) -> tuple[list[str], list[str]]:
    """(reasons of the explained differences, differences that nothing explains)."""
    reasons: dict[str, None] = {}
    rest = []
    for line in differences(plain, ours):
        entry = next(
            (
                e
                for e in EXPLAINED
                if re.search(e.request, cell.request)
                and re.match(e.covers, line)
                and e.check(plain, ours)
            ),
            None,
        )
        if entry is None:
            rest.append(line)
        else:
            reasons[entry.reason] = None
    return list(reasons), rest


# The row of a request ---------------------------------------------------------------------------

PLACED = {
    "gpus": "GPUs chosen",
    "nodes": "nodes chosen, GPUs by Slurm",
    "slurm": "left to Slurm by the selector",
    "parked": "NOT CHOSEN",
    "": "not a job of ours",
}
STEPS = ("plain", "one", "gres", "gpus", "per-task")
HEADER = (
    "by",
    "request",
    "nodes",
    "CPUs",
    "MB",
    "GPUs",
    "`srun`",
    "`-n1`",
    "`--gres=gpu:1`",
    "`--gpus=1`",
    "`--gpus-per-task=1`",
    "with us",
)


def row_of(cell: Cell, plain: Seen, ours: Seen) -> str:
    """One line of the document."""
    reasons, rest = judge(cell, plain, ours)
    if rest:
        verdict = "DIFFERS: " + "; ".join(rest)[:200]
    elif ours.left:
        verdict = f"the same; left to Slurm: {ours.left}"
    elif reasons:
        verdict = "; ".join(reasons)
    elif ours.verdict != "ran":
        verdict = "the same"
    else:
        verdict = f"the same; {PLACED[ours.placed]}"
    if ours.verdict == "ran" and reasons and not rest:
        verdict = f"{PLACED[ours.placed]}; {verdict}"
    words = [cell.tool, f"`{cell.request}`", *_given(plain), verdict]
    return "| " + " | ".join(word.replace("|", "\\|").replace("\n", " ") for word in words) + " |"


def _given(seen: Seen) -> list[str]:
    if seen.verdict != "ran":
        text = seen.said if seen.verdict == "refused" else f"{seen.verdict}: {seen.reason}"
        text = re.sub(r"^\w+: error: ", "", text, flags=re.M)
        text = re.sub(r"^.*(allocation failure|Batch job submission failed): ", "", text)
        return ["", "", "", "", f"{seen.verdict}: {text}" if text not in seen.verdict else text] + [
            ""
        ] * 4
    given = [str(len(seen.shares)), *(_sum_of(seen, i) for i in range(3))]
    if "direct" in seen.steps:
        return [*given, seen.steps["direct"].short, "", "", "", ""]
    return [*given, *(seen.steps[s].short if s in seen.steps else "" for s in STEPS)]


def _sum_of(seen: Seen, part: int) -> str:
    values = [share[part] for share in seen.shares]
    if len(set(values)) == 1:
        return f"{len(values)}x{values[0]}" if len(values) > 1 else str(values[0])
    return "+".join(map(str, values))
