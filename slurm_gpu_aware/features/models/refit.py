"""Fit of one application's model anew, for the selector: a process of its own, so no round waits.

``python -m slurm_gpu_aware.features.models.refit STORE NAME GPU_MODEL TIME`` stores the model as
one of that Unix time. It writes JSON: ``says`` how good the model is, or the ``error`` why there is
none. If it fails, as at a store that is busy for long, it writes nothing there.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.models.performance_model import (
    APPLICATION,
    CLASS,
    NOT_LOCKED,
    TIME_NOISE,
    NamedSample,
    PerformanceModel,
)
from slurm_gpu_aware.features.models.site_models import fit_one, newest_class, of_one_program
from slurm_gpu_aware.features.models.store import (
    GpuKind,
    ModelRow,
    application_samples,
    gpu_kinds,
    put_model,
    read_models,
)
from slurm_gpu_aware.features.models.throughput import Conditions
from slurm_gpu_aware.store.database import open_store

_BUSY_S = 120.0  # Longest wait for other writers: no one waits for the fit.


def model_row(kind: str, model: PerformanceModel, fitted_at: float) -> ModelRow:
    """A fitted model as it is stored. ``fitted_at``: Unix time."""
    content = json.dumps(model.values())
    return ModelRow(kind, model.name, model.gpu_model, fitted_at, content)


def refit(path: Path, name: str, gpu_model: str, at: float) -> str:
    """Fit the model of an application to its samples in a store; return how good it is.

    The stored model of its class is its prior. Raises SourceError or StoreError: there is none.
    """
    with open_store(path) as store:
        store.wait_at_most(_BUSY_S)
        samples = [one for one in application_samples(store, name) if one.gpu_model == gpu_model]
        if not samples:
            raise SourceError("none of its measurements are stored")
        app_class = newest_class(samples)
        known = read_models(store, math.inf).rows.get((CLASS, app_class, gpu_model))
        default_mhz = gpu_kinds(store).get(gpu_model, GpuKind()).max_mhz
        base = None if known is None else known[1]
        fit = fit_one(APPLICATION, samples, app_class, base, default_mhz)
        if fit.model is None:
            raise SourceError(fit.reason)
        if default_mhz and _is_contradicted(fit.model, of_one_program(samples), default_mhz):
            raise SourceError("its other measurements contradict this job")
        put_model(store, model_row(APPLICATION, fit.model, at))
    return fit.model.confidence()


def _is_contradicted(
    model: PerformanceModel, samples: Sequence[NamedSample], default_mhz: float
) -> bool:
    """Whether the job that was measured last is slower than the model thinks possible.

    A model follows the median of all samples, so one job among many may not move it. Its jobs
    would get the same clock again.
    """
    newest = max(one.taken_at for one in samples)
    both = [one.sample for one in samples if one.taken_at == newest]
    times = {one.clock_mhz: one.time_s for one in both}
    if len(both) != 2 or NOT_LOCKED not in times:
        return False
    clock_mhz = max(times)
    two = np.ones(2)
    at = Conditions(
        both[0].gpus * two,
        both[0].nodes * two,
        model.measured.batch_size * two,
        np.array([clock_mhz, default_mhz]),
    )
    time_s, _, error = model.corrected(at)
    most = time_s[0] * (1.0 + error[0]) / time_s[1]
    return bool(times[clock_mhz] / times[NOT_LOCKED] - TIME_NOISE > most)


def main() -> int:
    """Run it with the arguments of the process; return the exit code."""
    path, name, gpu_model, at = sys.argv[1:]
    try:
        answer = {"says": refit(Path(path), name, gpu_model, float(at))}
    except SourceError as exc:
        answer = {"error": str(exc)}
    except StoreError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
