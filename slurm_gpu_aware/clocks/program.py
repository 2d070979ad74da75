"""The command ``gpu-aware-clock``."""

from __future__ import annotations

import os
import sys
import time

from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.clocks.accounts import Accounts
from slurm_gpu_aware.clocks.hooks import Hook
from slurm_gpu_aware.clocks.notes import NO_JOB, Notes
from slurm_gpu_aware.clocks.records import spool, syslog, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """usage: gpu-aware-clock prolog | epilog | reset-all [--every]

  prolog     lock the clocks that the job of this environment asks for; open its energy account
  epilog     close its account; reset the clocks that were locked for it
  reset-all  at the start of a node: reset what a crash left locked; --every: all GPUs
Exit code 0 whatever happens to a clock (see the spool), 2 for wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point. Never raises, and fails only for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + "\n")
        return 0
    if words not in (["prolog"], ["epilog"], ["reset-all"], ["reset-all", "--every"]):
        sys.stderr.write(USAGE + "\n")
        return 2
    said: list[str] = []
    try:
        conf = read_clock_conf()
        said += [conf.complaint] if conf.complaint else []
        notes, env = Notes(conf.locks), dict(os.environ)
        accounts = Accounts(conf.accounts) if conf.accounts else None
        if words[0] == "reset-all":
            env["SLURM_JOB_ID"] = NO_JOB
        job_map = None
        if conf.job_map:
            from slurm_gpu_aware.clocks.accounts import JobMap

            job_map = JobMap(conf.job_map)
        hook = Hook(env, notes, time.time(), accounts, job_map=job_map)
        if words[0] == "prolog":
            hook.prolog()
        elif words[0] == "epilog":
            hook.epilog()
        else:
            hook.reset_all(every="--every" in words)
        said += [*hook.said, *(to_json(record) for record in hook.records)]
        spool(conf.spool, hook.records, notes, slurm_user=conf.slurm_user)
    except Exception as exc:  # a hook that raises would drain the node
        said.append(f"{words[0]}: {type(exc).__name__}: {exc}")
    try:
        syslog(said)
    except Exception:  # noqa: S110
        pass
    return 0
