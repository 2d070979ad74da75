"""A trace from whatever file it comes in: told apart by what the file starts with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.alibaba import looks_like_alibaba, read_alibaba
from slurm_gpu_aware.simulator.mapa_jobs import looks_like_mapa, read_mapa
from slurm_gpu_aware.simulator.sacct_trace import read_sacct
from slurm_gpu_aware.simulator.topo_jobs import read_profile, read_workload
from slurm_gpu_aware.simulator.trace import Trace, read_csv
from slurm_gpu_aware.text_file import decoded, parse_json, read_data

__all__ = ["read_trace"]


def read_trace(
    path: Path | str,
    *,
    class_column: str = "class",
    default_class: str = "B",
    classes: Sequence[str] = ("A", "B", "C"),
    profile: Path | str | None = None,
) -> Trace:
    """Read jobs from a file.

    ================================  ==================================================
    starts with                       read as
    ================================  ==================================================
    ``{"jobs"`` or ``{"meta"``        output of ``sacct --json``
    another ``{``                     job file of Amaral et al.; needs ``profile``
    ``JobID|``                        output of ``sacct --parsable2``
    a row of five or six numbers      job file of MAPA
    columns num_gpu, gpu_milli, ...   Alibaba's 2023 trace
    anything else                     CSV, see :func:`trace.read_csv`
    ================================  ==================================================

    Raises
    ------
    SourceError
        The file cannot be read or is none of these.
    """
    file = Path(path)
    data = read_data(file)  # once: it may be a pipe
    start = data[:4096].decode("utf-8-sig", errors="replace").lstrip()
    line = start.split("\n", 1)[0]
    recorded = "|" in line and "JobID" in line.split("|")
    # users' comments may hold what is not UTF-8
    text = decoded(data, file, errors="replace" if recorded or start[:1] == "{" else "strict")
    if start.startswith("{"):
        if _is_sacct_json(parse_json(text, file)):
            recorded = True
        elif profile is None:
            raise SourceError(
                f"{file}: a job file without run times needs --profile FILE.json, "
                "the measured times alone and side by side"
            )
        else:
            return read_workload(file, read_profile(profile), text=text)
    if recorded:
        return read_sacct(file, text=text, classes=tuple(classes), default_class=default_class)
    if looks_like_mapa(line):
        return read_mapa(file, text=text, default_class=default_class)
    if looks_like_alibaba(line):
        return read_alibaba(file, text=text, default_class=default_class)
    return read_csv(file, text=text, class_column=class_column, default_class=default_class)


def _is_sacct_json(content: object) -> bool:
    return isinstance(content, dict) and isinstance(content.get("jobs"), list)
