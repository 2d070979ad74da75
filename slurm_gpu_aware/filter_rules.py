"""Rules that the Lua filter and Python share.

``docs/generate.py`` writes the constants to ``etc/lua/gpu_aware_rules.lua``.
A pattern is a Python regular expression and a Lua pattern of the same meaning; both sides add the
anchors.
"""

from slurm_gpu_aware import bounds

MAX_GPUS = bounds.MAX_GPUS
INDEX_TYPES = bounds.INDEX_TYPES
MAX_TEXT = 1024
"""Bytes of a text that is parsed, and of an AdminComment; Slurm refuses longer ones."""
NAME = "[A-Za-z][A-Za-z0-9_-]*"  # Classes, licences, reservations.
POLICY = "[a-z][a-z0-9+_-]*"
FEATURE = "[a-z0-9][a-z0-9_.-]*"  # GPU models, in lower case.
MAX_NAME = 64

# Names of ours in Slurm.
LICENCE = "gpuaware"
RESERVATION = "gpuaware_gate"  # Default names of the gate's licence and reservation.
HOLDING_POOL = "gpuaware_pool"
"""Licence of the reservations in which parked jobs wait, and the start of their names."""
HEAD = "gpuaware_head"
"""Start of the names of the reservations that hold GPUs for the first job that waits."""
CHANGED_LICENCES = 2
"""Number of the gate's licence of a job that its owner has changed (`gate.gated_job`)."""
EXTRA_CLOCK = "freq="  # Start of the entry of Extra that sets a job's clock.

# --comment=class=A,bw=high (docs/comment.md)
MAX_SHOWN = 40  # Characters of a user's text in a sentence.
COMMENT_MARK = "gpu:"  # Start of our part of a longer comment: ``run 7 gpu:class=A``.
TEST_MARK = f"{COMMENT_MARK}test-only"
"""End of the comment of a test (``--test-only``): `etc/lua/gpu_aware_cli_filter.lua` adds it."""
ENVIRONMENT = "GPU_AWARE"  # Environment variable of a batch job with the same text as a comment.
SENTENCES = {
    "twice": "gpu-aware: comment key '%s' is given twice; give it once",
    "not_valid": "gpu-aware: %s=%s is not valid; valid: %s",
    "foreign": f"gpu-aware: {ENVIRONMENT}=%s is not a list of key=value; valid keys: %s",
    "hint": "gpu-aware: the comment is not read, because not all of it is key=value with keys of"
    f" ours; to say more than these, write for example 'my text {COMMENT_MARK}%s'; valid keys: %s",
    "gpus_later": "gpu-aware: a waiting job cannot be given GPUs; cancel it and submit it again"
    " with them",
    "gpus_kept": "gpu-aware: Slurm keeps the GPUs of a waiting job whose request is cleared; cancel"
    " it and submit it again",
    "bare": "gpu-aware: Slurm does not know the TRES %s; write for example gres/gpu:2",
    "opened": "gpu-aware: Slurm places this job as it was submitted; cancel it and submit it again"
    " to change this",
    "starts": "gpu-aware: Slurm is about to start this job; hold it (scontrol hold), wait some"
    " seconds, and change it then",
    "test_held": f"gpu-aware: with {COMMENT_MARK}test-only in its comment Slurm only tests this"
    " job; cancel it and submit it again without",
    "marked": f"gpu-aware: {COMMENT_MARK}test-only at the end of a comment is for --test-only;"
    " write something else there",
    "no_scrontab": "gpu-aware: scrontab is not enabled here; after enabling it an admin runs"
    " 'gpu-aware setup --install'",
    "moved_whole": "gpu-aware: while GPU jobs wait, a waiting job cannot move to partition %s: it"
    " might get whole nodes before them; cancel it and submit it again there",
    "moved_in": "gpu-aware: a waiting job that gets GPUs cannot move to partition %s; cancel it and"
    " submit it again there",
}
"""Refusals of what is ours, and the hint on a comment that only looks like it. Those about the keys
of features stand in `features.hints`."""

# Files from which the filter knows earlier runs (features/due_dates/shortest_runs.py).
RUNS_FOLDER = ".runs"  # End of the path of their folder, behind ``events.submit_file``.
MAX_RUNS_BYTES = 65_536  # Bytes of a file that is read; 200 names take less.
MAX_RUN_NAME = bounds.MAX_JOB_NAME  # Bytes of a name; names that begin alike share a line.

# The AdminComment of a parked job: gpuaware/1;tn=gres/gpu:2;nn=2-2
RECORD = "gpuaware/"  # Start of a record of any version.
RECORD_VERSION = f"{RECORD}1;"
MAX_RECORD = 960  # Bytes that the filter may write; the rest is for the job marker.
RECORD_SAFE = "A-Za-z0-9_.:/=,+*@-"  # Characters of a value that are not percent-encoded.
RECORD_KEYS = (
    ("tn", "tres_per_node"),
    ("tj", "tres_per_job"),
    ("tt", "tres_per_task"),
    ("ts", "tres_per_socket"),
    ("tb", "tres_bind"),
    ("cg", "cpus_per_tres"),
    ("mg", "mem_per_tres"),
    ("nn", "nodes"),
    ("lic", "licenses"),
    ("feat", "features"),
    ("rn", "req_nodes"),
    ("xn", "exc_nodes"),
    ("nt", "num_tasks"),
    ("cpt", "cpus_per_task"),
    ("tpn", "ntasks_per_node"),
    ("tpg", "ntasks_per_tres"),
    ("spn", "sockets_per_node"),
    ("mc", "min_cpus"),
    ("mcn", "min_cpus_node"),
    ("mem", "memory"),
    ("tf", "tres_freq"),
    ("mt", "model"),
    ("ex", "exclusive"),
    ("ia", "interactive"),
    ("bt", "begin_s"),
    ("env", "environment"),
    ("ac", "admin_comment"),
    ("lf", "left"),
    ("rs", "resizable"),
    ("pt", "partial"),
)
"""(key, field of `gate.admin_comment.OriginalRequest`), in the order of the record."""

WHOLE_NODES = "it gets whole nodes with all their GPUs"
"""Why a job that asks for no GPUs is left to Slurm in its turn."""

# Unsupported options: such a job is left to Slurm.
SOCKETS_PER_NODE = "--sockets-per-node (-B)"  # Supported with ``--gpus-per-socket`` only.
UNSUPPORTED_BOUNDS = (
    ("contiguous", "--contiguous", 16),
    ("req_switch", "--switches", 32),
    ("pn_min_tmp_disk", "--tmp", 32),
    ("sockets_per_node", SOCKETS_PER_NODE, 16),
    ("cores_per_socket", "--cores-per-socket (-B)", 16),
    ("core_spec", "--core-spec", 16),
    ("thread_spec", "--thread-spec", 16),
    ("segment_size", "--segment", 16),
    ("prefer", "--prefer", 0),
    ("batch_features", "--batch", 0),
    ("burst_buffer", "--bb", 0),
)
"""(field, option, bits or 0 for a text) of bounds on a job's nodes that the planner does not
check."""

TYPED_ENVIRONMENT = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
    "SLURM_GRES",
    "SLURM_STEP_GRES",
)
"""Variables of a batch job from which srun takes GPUs, with a GPU type if sbatch was given one."""

SIZED_ENVIRONMENT = ("SLURM_GPUS", "SLURM_GPUS_PER_NODE")
"""Variables of a batch job by which srun asks for a number of GPUs. With gpus=MIN-MAX they are
empty, which srun takes as not given."""


def guards_head(reservation: str) -> bool:
    """Whether a reservation is one that holds GPUs for the first job that waits."""
    return reservation.startswith(f"{HEAD}_")


def in_holding_pool(reservation: str | None) -> bool:
    """Whether a reservation is one of the holding pool's."""
    return reservation is not None and f"{reservation}_".startswith(f"{HOLDING_POOL}_")
