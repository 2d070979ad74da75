"""Doctor: the checks of a live cluster, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.checks_ours import (
    check_coverage,
    check_events,
    check_permissions,
    check_profile,
    check_scripts,
    check_selector,
    check_store,
)
from slurm_gpu_aware.deploy.checks_slurm import (
    check_filter,
    check_gate,
    check_licence,
    check_release,
    check_settings,
    check_types,
)
from slurm_gpu_aware.deploy.doctor_context import Check, DoctorContext, failed, skipped
from slurm_gpu_aware.errors import AwareError, StoreError

__all__ = ["CHECKS", "run_checks"]


def run_checks(config: Config) -> list[Check]:
    """Run all checks; one that cannot be carried out counts as failed."""
    context = DoctorContext(config)
    found: list[Check] = []
    answering = True
    for name, needs_slurm, check in CHECKS:
        if needs_slurm and not answering:
            found.append(skipped(name, "Slurm does not answer"))
            continue
        try:
            found.extend(check(context))
        except StoreError as exc:
            found.append(skipped(name, str(exc), "see the store check"))
        except AwareError as exc:
            first = check is check_release
            cure = "start slurmctld, and run this on a host with Slurm's commands on PATH"
            found.append(failed(name, str(exc), cure if first else "cure this, then run it again"))
            answering = answering and not first
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            found.append(
                skipped(name, f"{where}{exc.strerror}", "run it as root on the controller")
            )
    return found


CHECKS: tuple[tuple[str, bool, Callable[[DoctorContext], Iterable[Check]]], ...] = (
    ("release", True, check_release),
    ("settings", True, check_settings),
    ("licence", True, check_licence),
    ("gate", True, check_gate),
    ("selector", False, check_selector),
    ("filter", True, check_filter),
    ("gres types", True, check_types),
    ("store", False, check_store),
    ("permissions", True, check_permissions),
    ("profile", False, check_profile),
    ("coverage", True, check_coverage),
    ("prolog, epilog", True, check_scripts),
    ("events", True, check_events),
)
"""Name, whether it needs Slurm to answer, and the check; in the order in which they are shown."""
