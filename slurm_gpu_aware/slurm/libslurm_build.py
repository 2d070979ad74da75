"""Builder of ``_libslurm``: cffi in API mode on Slurm's public library.

The compiler takes the layout of Slurm's structures from the installed headers, so one source serves
all releases. ``SLURM_INCLUDE_DIR`` and ``SLURM_LIB_DIR`` name a Slurm outside of the compiler's
paths. Setuptools runs this module when the package is installed (``setup.py``).
"""

import os
import runpy
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
_FIELDS = runpy.run_path(str(HERE / "libslurm_fields.py"))

_STATEMENTS = {
    ("job", "job_id"): "NUMBER(JOB_ID(record));",
    ("job", "exclusive"): "NUMBER(JOB_EXCLUSIVE(record));",
    ("job", "oversubscribe"): "NUMBER((uint64_t)JOB_OVERSUBSCRIBE(record));",
    ("job", "segment_size"): "NUMBER(JOB_SEGMENT_SIZE(record));",
    ("job", "oversized"): "NUMBER((uint64_t)oversized);",
    # Flags that would hide the state: the reservation is gone, held after a requeue
    # (requeuehold State=SpecialExit), a signal is under way.
    ("job", "state"): (
        "put_text(out, slurm_job_state_string(record->job_state & ~(JOB_RESV_DEL_HOLD"
        " | JOB_REQUEUE_HOLD | JOB_SPECIAL_EXIT | JOB_SIGNALING)));"
    ),
    ("job", "reason"): "put_reason(out, record);",
    ("job", "shares"): "put_shares(out, record);",
    ("job", "submit_line"): "put_program(out, JOB_SUBMIT_LINE(record));",
    ("node", "alloc_cpus"): "NUMBER((uint64_t)allocated_cpus(record));",
    ("node", "alloc_memory"): "NUMBER(allocated_memory(record));",
    ("node", "state"): (
        "put_made(out, slurm_node_state_string_complete(record->node_state), MAX_TEXT);"
    ),
    ("node", "features"): "put_text(out, record->features_act);",
    ("partition", "topology_name"): "put_text(out, PARTITION_TOPOLOGY(record));",
    ("partition", "line"): "put_made(out, slurm_sprint_partition_info(record, 1), 16 * MAX_LIST);",
    ("license", "nodes"): "put_text(out, LICENSE_NODES(record));",
    ("reservation", "flags"): "put_made(out, slurm_reservation_flags_string(record), MAX_TEXT);",
}
"""C statement that writes a field which is not a member of the same name."""
_LISTS = {"array_task_str", "exc_nodes", "node_list", "nodes", "req_nodes"}
"""Texts that can be long."""
_TYPES = {
    "job": "job_info_t",
    "node": "node_info_t",
    "partition": "partition_info_t",
    "reservation": "reserve_info_t",
    "license": "slurm_license_info_t",
}


def _most(text: str) -> str:
    return "MAX_LIST" if text in _LISTS else "MAX_TEXT"


def _writer(kind: str, numbers: tuple[str, ...], texts: tuple[str, ...]) -> str:
    """C function that writes one record."""
    lines = [f"static void put_{kind}(aware_reply *out, {_TYPES[kind]} *record)", "{"]
    if "oversized" in numbers:
        plain = [text for text in texts if (kind, text) not in _STATEMENTS]
        lines.append("\tint oversized = 0;")
        lines += [f"\toversized |= too_long(record->{t}, {_most(t)});" for t in plain]
    lines.append("\tsize_t at = begin_record(out);")
    written = {number: f"NUMBER(record->{number});" for number in numbers}
    written |= {text: f"put_bounded(out, record->{text}, {_most(text)});" for text in texts}
    lines += [f"\t{_STATEMENTS.get((kind, name), written[name])}" for name in written]
    return "\n".join([*lines, "\tend_record(out, at);", "}\n"])


def _setter() -> str:
    """C function that fills an update."""
    lines = ["static void set_job(job_desc_msg_t *job, char **texts, int64_t *numbers)", "{"]
    for i, text in enumerate(_FIELDS["UPDATE_TEXTS"]):
        lines.append(f"\tif (texts[{i}]) job->{text} = texts[{i}];")
    for i, number in enumerate(_FIELDS["UPDATE_NUMBERS"]):
        lines.append(f"\tif (numbers[{i}] >= 0) job->{number} = numbers[{i}];")
    return "\n".join([*lines, "}\n"])


def _source() -> str:
    kinds = [_FIELDS[name] for name in ("JOB", "NODE", "PARTITION", "RESERVATION", "LICENSE")]
    generated = "\n".join(_writer(*kind) for kind in kinds) + _setter()
    text = (HERE / "libslurm_records.c").read_text(encoding="utf-8")
    includes = ["ctype.h", "errno.h", "inttypes.h", "signal.h", "stdio.h", "stdlib.h"]
    includes += ["string.h", "unistd.h"]
    includes += ["slurm/slurm.h", "slurm/slurm_errno.h", "slurm/slurm_version.h"]
    head = "\n".join(f"#include <{name}>" for name in includes)
    return f"{head}\n{text.replace('/* GENERATED RECORDS */', generated)}"


def _folder(variable: str) -> list[str]:
    return [os.environ[variable]] if os.environ.get(variable) else []


builder = FFI()
builder.cdef(
    """
    typedef struct { char *data; size_t size; ...; } aware_reply;
    void aware_free(aware_reply *);
    int aware_jobs(int64_t, int64_t *, aware_reply *);
    int aware_job(uint32_t, aware_reply *);
    int aware_nodes(aware_reply *);
    int aware_partitions(aware_reply *);
    int aware_reservations(aware_reply *);
    int aware_licenses(aware_reply *);
    int aware_settings(aware_reply *);
    int aware_update_job(char *, char **, int64_t *, aware_reply *);
    int aware_submit_held(uint32_t, uint32_t, char *, char *, char *, int64_t *);
    int aware_cancel_job(char *);
    int aware_requeue_job(char *);
    int aware_create_reservation(char *, char *, char *, char *, char *, char *, int64_t,
                                 int64_t, uint64_t);
    int aware_move_reservation(char *, char *, int64_t, int64_t);
    int aware_delete_reservation(char *);
    int aware_update_node(char *, uint32_t, char *);
    void slurm_init(const char *);
    char *slurm_strerror(int);
    #define RESERVE_FLAG_ANY_NODES ...
    #define RESERVE_FLAG_IGN_JOBS ...
    #define RESERVE_FLAG_NO_HOLD_JOBS ...
    #define RESERVE_FLAG_OVERLAP ...
    #define RESERVE_FLAG_PURGE_COMP ...
    #define NODE_STATE_DRAIN ...
    #define NODE_RESUME ...
    #define ESLURM_IN_STANDBY_MODE ...
    #define ESLURM_RESERVATION_INVALID ...
    #define ESLURM_RSV_ALREADY_STARTED ...
    #define SLURM_NO_CHANGE_IN_DATA ...
    """
)
builder.cdef("".join(f"#define {name} ...\n" for name in _FIELDS["ENDED"]))
builder.set_source(
    "slurm_gpu_aware.slurm._libslurm",
    _source(),
    libraries=["slurm"],
    include_dirs=_folder("SLURM_INCLUDE_DIR"),
    library_dirs=_folder("SLURM_LIB_DIR"),
    # Without headers or a compiler the package is installed without the client.
    optional=True,
)

if __name__ == "__main__":
    builder.compile(verbose=True)
