"""What slurmctld's filter says to a job that it must refuse."""

from __future__ import annotations

import re

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.slurm.commands import run_command

_NO_RIGHT = re.compile(r"(?i)account|association|root|denied")


def filter_answer(config: Config) -> tuple[bool | None, str]:
    """(whether the filter works, slurmctld's answer); None: this user may not submit jobs.

    The job has a wrong comment and is only tested, not submitted. Raises SourceError.
    """
    words = ["sbatch", "--test-only", "--gres=gpu:1", "--comment=class=gpu-aware-doctor"]
    words += [f"--partition={name}" for name in config.site.partitions[:1]]
    _, output = run_command([*words, "--wrap=:"], config.selector.command_timeout_s, check=False)
    line = " ".join(output.split())[-160:] or "the job was accepted"
    if "gpu-aware:" in output:
        return True, line
    if "class" not in output and _NO_RIGHT.search(output):
        return None, line
    return False, line
