"""Doctor: runs the checks of a live cluster."""

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
    """Run all checks; a check that raises counts as failed or skipped."""
    context = DoctorContext(config)
    results: list[Check] = []
    answering = True
    for name, needs_slurm, check in CHECKS:
        if needs_slurm and not answering:
            results.append(skipped(name, "Slurm does not answer"))
            continue
        try:
            results.extend(check(context))
        except StoreError as exc:
            results.append(skipped(name, str(exc), "see the store check"))
        except AwareError as exc:
            first = check is check_release
            cure = "start slurmctld, and run this on a host with Slurm's commands on PATH"
            again = "repair this, then run doctor again"
            results.append(failed(name, str(exc), cure if first else again))
            answering = answering and not first
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            results.append(
                skipped(name, f"{where}{exc.strerror}", "run it as root on the controller")
            )
    return results


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
"""(name, whether it needs Slurm, check) in the order of the output."""
