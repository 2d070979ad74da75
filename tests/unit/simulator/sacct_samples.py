"""A job as sacct shows it: rows of its text, records of its JSON."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_gpu_aware.simulator.sacct_trace import read_sacct
from slurm_gpu_aware.simulator.trace import Trace
from slurm_gpu_aware.slurm.sacct import SACCT_FIELDS

ROW = {
    "JobID": "7",
    "User": "alice",
    "Account": "bio",
    "Partition": "gpu",
    "Submit": "1790000000",
    "Eligible": "1790000000",
    "Start": "1790000100",
    "ElapsedRaw": "300",
    "TimelimitRaw": "60",
    "State": "COMPLETED",
    "AllocTRES": "billing=4,cpu=4,gres/gpu:g0=1,gres/gpu:g2=1,gres/gpu=2,mem=4G,node=1",
    "ReqTRES": "billing=4,cpu=4,gres/gpu=2,mem=4G,node=1",
    "NNodes": "1",
    "NodeList": "n2",
    "Priority": "4294",
    "JobName": "train",
    "Comment": "class=A",
}
NUMBER = {"set": True, "infinite": False}
RECORD: dict[str, Any] = {
    "job_id": 7,
    "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}},
    "user": "alice",
    "name": "train",
    "account": "bio",
    "partition": "gpu",
    "time": {
        "submission": 1790000000,
        "eligible": 1790000000,
        "start": 1790000100,
        "elapsed": 300,
        "limit": {**NUMBER, "number": 60},
    },
    "state": {"current": ["COMPLETED"], "reason": "None"},
    "tres": {
        "allocated": [
            {"type": "cpu", "name": "", "count": 4},
            {"type": "energy", "name": "", "count": -2},
            {"type": "gres", "name": "gpu", "count": 2},
            {"type": "gres", "name": "gpu:g0", "count": 1},
            {"type": "gres", "name": "gpu:g2", "count": 1},
            {"type": "node", "name": "", "count": 1},
        ],
        "requested": [{"type": "gres", "name": "gpu", "count": 2}],
    },
    "allocation_nodes": 1,
    "nodes": "n2",
    "priority": {**NUMBER, "number": 4294},
    "comment": {"administrator": "", "job": "class=A", "system": ""},
}
"""The same job."""


def row(job: str = "7", **changes: str) -> dict[str, str]:
    """The row of such a job, with other cells."""
    return ROW | {"JobID": job, **changes}


def sacct_text(*rows: Mapping[str, str] | str, columns: Sequence[str] = SACCT_FIELDS) -> str:
    """Output of sacct; a row that is a text stands there as it is."""
    cells = (one if isinstance(one, str) else cells_of(one, columns) for one in rows)
    return "\n".join(["|".join(columns), *cells]) + "\n"


def cells_of(row: Mapping[str, str], columns: Sequence[str] = SACCT_FIELDS) -> str:
    return "|".join(row.get(name, "") for name in columns)


def read_rows(*rows: Mapping[str, str] | str, columns: Sequence[str] = SACCT_FIELDS) -> Trace:
    return read_sacct("h", text=sacct_text(*rows, columns=columns))


def record(job_id: int = 7, **changes: Any) -> dict[str, Any]:
    """The record of such a job, with other fields."""
    return copy.deepcopy(RECORD) | {"job_id": job_id, **changes}


def read_records(*jobs: object) -> Trace:
    return read_sacct("h", text=json.dumps({"jobs": jobs}))
