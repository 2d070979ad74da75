"""Request forms of the load on the foreign site, and what each job sees, known from its form alone.

Also read by the container's Python: standard library only.
"""

from dataclasses import dataclass

__all__ = ["FORMS", "Form", "form_of"]


@dataclass(frozen=True)
class Form:
    """One way to ask for a job."""

    name: str
    options: str
    """As typed, split at blanks; ``_`` stands for a blank."""
    gpus: int
    """GPUs that a run of the job gets, over all its nodes."""
    model: str = ""
    """Their model; empty: any."""
    tool: str = "sbatch"
    step: str = ""
    """Options of the srun inside."""
    tasks: int = 1
    """Tasks of the step."""
    per_task: int = 0
    """GPUs that each task sees; 0: all of the job on its node."""
    nodes: int = 1
    """Nodes of the job; 0: as many as Slurm likes."""
    runs: int = 1
    """Tasks of an array."""
    also: str = ""
    """``after`` the user's job before it; ``held`` for two steps, ``held a while`` for less;
    ``requeue`` once, by its owner."""
    placed: bool = True
    """Whether slurm-gpu-aware chooses its GPUs."""
    refused: str = ""
    """What the user is told to ask instead where each GPU has its own type (docs/admin.md)."""

    @property
    def words(self) -> list[str]:
        """The options as an argument list."""
        return [word.replace("_", " ") for word in self.options.split()]


FORMS = (
    Form("gres", "--gres=gpu:2", 2),
    Form("gres-model", "--gres=gpu:a100:1", 1, "a100"),
    Form("cpu", "-p cpu", 0, placed=False),
    Form("gpus", "--gpus=2", 2, nodes=0),
    Form("srun-gres", "--gres=gpu:1", 1, tool="srun"),
    Form("gpus-model", "--gpus=a100:2", 2, "a100", nodes=0),
    Form("array", "--array=1-3 --gres=gpu:1", 1, runs=3),
    Form("per-node-model", "--gpus-per-node=v100:2", 2, "v100"),
    Form("salloc-gres", "--gres=gpu:2", 2, tool="salloc"),
    Form("class", "--comment=class=A --gres=gpu:2", 2),
    Form("per-task-model", "-n2 --gpus-per-task=a100:1", 2, "a100", tasks=2, per_task=1, nodes=0),
    Form("after", "--gres=gpu:v100:1", 1, "v100", also="after"),
    Form("comment-of-tool", "--comment=run_7,_first --gres=gpu:1", 1),
    Form("two-nodes", "-N2 --gpus-per-node=1", 2, nodes=2, tasks=2),
    Form("srun-model", "--gres=gpu:a100:1", 1, "a100", tool="srun"),
    Form("licence", "-L matlab:1 --gres=gpu:1", 1),
    Form("srun-gpus", "--gpus=1", 1, tool="srun", placed=False),
    Form("salloc-two-nodes", "-N2 --gres=gpu:1", 2, tool="salloc", nodes=2, tasks=2, placed=False),
    Form(
        "srun-per-task",
        "-n2 --gpus-per-task=1",
        2,
        tool="srun",
        tasks=2,
        per_task=1,
        nodes=0,
        placed=False,
    ),
    Form("qos", "-q long --gpus=1", 1),
    Form("two-nodes-model", "-N2 --gpus-per-node=a100:1", 2, "a100", nodes=2, tasks=2),
    Form("salloc-model", "--gres=gpu:v100:1", 1, "v100", tool="salloc"),
    Form(
        "salloc-gpus-model",
        "--gpus=v100:1",
        1,
        "v100",
        tool="salloc",
        placed=False,
        refused="--constraint=gpu_v100",
    ),
    Form("begin", "--begin=now+12 --gpus-per-node=a100:1", 1, "a100"),
    Form("per-task", "-n2 --gpus-per-task=1", 2, tasks=2, per_task=1, nodes=0),
    Form("whole-node", "--gres=gpu:v100:4 --comment=class=C", 4, "v100"),
    Form("array-model", "--array=1-3%1 --gpus=v100:1", 1, "v100", runs=3),
    Form("comment-link", "--comment=https://ci.hill.org/7,class=A --gres=gpu:1", 1),
    Form("cpus-per-gpu", "--gres=gpu:2 --cpus-per-gpu=2", 2),
    Form("partition", "-p short --gres=gpu:1 --mem-per-gpu=1000", 1),
    Form("feature", "-C old --gpus=1", 1, "v100"),
    Form("node", "-w a2 --gres=gpu:1", 1, "a100"),
    Form("requeue", "--requeue --gres=gpu:1", 1, also="requeue"),
    # Held across steps of the walk, the rollout among them
    Form("held-gres", "--gres=gpu:a100:1", 1, "a100", also="held"),
    Form("held-per-node", "--gpus-per-node=v100:2", 2, "v100", also="held"),
    Form("held-gpus", "--gpus=a100:2", 2, "a100", nodes=0, also="held a while"),
    Form(
        "held-per-task",
        "-n2 --gpus-per-task=v100:1",
        2,
        "v100",
        tasks=2,
        per_task=1,
        nodes=0,
        also="held a while",
    ),
    Form("held-plain", "--gres=gpu:1 --comment=class=B", 1, also="held"),
)


def form_of(name: str) -> Form:
    """The form of a job by its name, ``FORM.NUMBER``."""
    return next(form for form in FORMS if form.name == name.partition(".")[0])
