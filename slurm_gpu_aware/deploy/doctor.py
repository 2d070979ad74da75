"""Doctor: runs the checks of a live cluster."""

from __future__ import annotations

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import checks_ours as ours
from slurm_gpu_aware.deploy import checks_slurm as slurm
from slurm_gpu_aware.deploy.doctor_context import Check, DoctorContext, failed, skipped
from slurm_gpu_aware.errors import AwareError, StoreError

__all__ = ["run_checks"]

_CHECKS = (
    ("release", True, slurm.check_release),
    ("settings", True, slurm.check_settings),
    ("licence", True, slurm.check_licence),
    ("gate", True, slurm.check_gate),
    ("selector", False, ours.check_selector),
    ("filter", True, slurm.check_filter),
    ("gres types", True, slurm.check_types),
    ("store", False, ours.check_store),
    ("permissions", True, ours.check_permissions),
    ("profile", False, ours.check_profile),
    ("coverage", True, ours.check_coverage),
    ("prolog, epilog", True, ours.check_scripts),
    ("events", True, ours.check_events),
)
"""(name, whether it needs Slurm, check) in the order of the output."""


def run_checks(config: Config) -> list[Check]:
    """Run all checks; a check that raises counts as failed or skipped.

    An ``ok`` counts only if the check has found nothing else under its name.
    """
    context = DoctorContext(config)
    results: list[Check] = []
    answering = True
    for name, needs_slurm, check in _CHECKS:
        if needs_slurm and not answering:
            results.append(skipped(name, "Slurm does not answer"))
            continue
        found: list[Check] = []
        try:
            found.extend(check(context))
        except StoreError as exc:
            found.append(skipped(name, str(exc), "see the store check"))
        except AwareError as exc:
            cure = "repair this, then run doctor again"
            if name == "release":
                answering = False
                cure = "start slurmctld, and run this on a host with Slurm's commands on PATH"
            found.append(failed(name, str(exc), cure))
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            cure = "run it as root on the controller"
            found.append(skipped(name, f"{where}{exc.strerror}", cure))
        wrong = {c.name for c in found if c.status != "ok"}
        results += [c for c in found if c.status != "ok" or c.name not in wrong]
    return results
