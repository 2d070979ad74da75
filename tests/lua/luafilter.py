"""The real filter in a real Lua, with slurmctld's side simulated field by field."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lupa.lua51
import lupa.lua54

REPO = Path(__file__).resolve().parents[2]
LUA = REPO / "etc" / "lua"
SUCCESS, ERROR = 0, -1
RUNTIMES = {"5.1": lupa.lua51.LuaRuntime, "5.4": lupa.lua54.LuaRuntime}
CLASSES = ("A", "B", "C")
POLICIES = ("eft", "pal+mapa", "pal", "pm-first", "packed", "mapa-preserve", "topo-aware")
"""As shipped; ``test_comment_docs`` holds them against etc/ and docker/etc."""
ALICE, OPERATOR = 1000, 900

CONF = """
return {{ classes = {{"A", "B", "C"}},
  policies = {{"eft", "pal+mapa", "pal", "pm-first", "packed", "mapa-preserve", "topo-aware"}},
  submit_file = "{submit_file}", models = {{"a100", "v100"}}, max_gpus_per_node = 4,
  max_cpus_per_node = 16, max_memory_mb_per_node = 64000,
  partitions_with_others = {{}}, operators = {{ 900 }}, cli_filter = true, {more} }}
"""


EACH_COMPILED_ONCE = b"""
local compiled, slow = {}, dofile
function dofile(path)
    compiled[path] = compiled[path] or assert(loadfile(path))
    return compiled[path]()
end
return slow
"""
"""Each module of the filter loads its own copy of those that it needs: 80, of 14 files."""


@dataclass(frozen=True)
class Outcome:
    """What one call of the filter did."""

    rc: int
    messages: list[str]
    log: list[str]
    job: dict[str, Any]
    """All fields afterwards."""
    written: list[str]
    """Names of assigned fields, in order."""
    environment: dict[str, str]


def to_lua(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def from_lua(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return int(value) if isinstance(value, float) and value == int(value) else value


class Filter:
    """``gpu_aware.lua`` loaded from a folder, as slurmctld would."""

    def __init__(self, folder: Path, version: str = "5.1") -> None:
        self.folder = folder
        self.lua = RUNTIMES[version](encoding=None, unpack_returned_tuples=True)
        dofile = self.lua.execute(EACH_COMPILED_ONCE)
        self.harness = self.dofile(REPO / "tests" / "lua" / "slurmctld.lua")
        self.module = self.dofile(folder / "gpu_aware.lua")
        self.comment = self.dofile(folder / "gpu_aware_comment.lua")
        self.lua.globals()[b"dofile"] = dofile

    def dofile(self, path: Path) -> Any:
        return self.lua.eval(b"dofile")(str(path).encode())

    def table(self, values: Mapping[str, Any]) -> Any:
        return self.lua.table_from({k.encode(): to_lua(v) for k, v in values.items()})

    def submit(
        self,
        uid: int = ALICE,
        *,
        environment: Mapping[str, str] | None = None,
        fail_at: str | None = None,
        default_partition: str = "gpu",
        exclusive: Collection[str] = (),
        **fields: Any,
    ) -> Outcome:
        """Submit a batch job with these fields; ``script=None`` makes it interactive.

        ``exclusive``: partitions with OverSubscribe=EXCLUSIVE.
        """
        fields = {"script": "#!/bin/sh\n", **fields}
        self._parts = self._partitions(default_partition, exclusive)
        return self._call(self.module[b"submit"], fields, None, uid, environment, fail_at)

    def _partitions(self, default: str, exclusive: Collection[str]) -> Any:
        parts = self.lua.table()
        for name in ("cpu", "gpu"):
            shown = {"flag_default": int(name == default), "max_share": int(name not in exclusive)}
            parts[name.encode()] = self.table(shown)
        return parts

    def modify(
        self,
        record: Mapping[str, Any],
        uid: int = ALICE,
        *,
        exclusive: Collection[str] = (),
        **fields: Any,
    ) -> Outcome:
        self._parts = self._partitions("gpu", exclusive)
        return self._call(self.module[b"modify"], fields, record, uid, None, None)

    def _call(
        self,
        function: Any,
        fields: Mapping[str, Any],
        record: Mapping[str, Any] | None,
        uid: int,
        environment: Mapping[str, str] | None,
        fail_at: str | None,
    ) -> Outcome:
        given = {k: v for k, v in fields.items() if v is not None}
        env = self.table(environment or {})
        job, values, writes = self.harness[b"job"](
            self.table(given), env, fail_at.encode() if fail_at else None
        )
        self.harness[b"messages"] = self.lua.table()
        self.harness[b"log"] = self.lua.table()
        if record is None:
            rc = function(job, self._parts, uid)
        else:
            rec = self.harness[b"job"](self.table(record))[0]
            rc = function(job, rec, self._parts, uid)
        return Outcome(
            rc=int(rc),
            messages=[from_lua(m) for m in self.harness[b"messages"].values()],
            log=[from_lua(m) for m in self.harness[b"log"].values()],
            job={from_lua(k): from_lua(v) for k, v in values.items()},
            written=[from_lua(w) for w in writes.values()],
            environment={from_lua(k): from_lua(v) for k, v in env.items()},
        )

    def parse_comment(self, text: str | bytes) -> tuple[Any, str | None]:
        """(wishes as a dict or None, sentence or None) from the Lua side."""
        result = self.comment[b"parse"](to_lua(text), self.module[b"conf"])
        wishes, sentence = result[:2] if isinstance(result, tuple) else (result, None)
        if wishes is not None:
            wishes = {
                from_lua(k): from_lua(v)
                if isinstance(v, bytes | int | float)
                else tuple(map(int, v.values()))
                for k, v in wishes.items()
            }
        return wishes, from_lua(sentence)


@cache
def modules() -> dict[str, bytes]:
    """Name of a file of the filter -> its content."""
    files = LUA.glob("gpu_aware*.lua")
    return {file.name: file.read_bytes() for file in files if file.name != "gpu_aware_conf.lua"}


def install(folder: Path, conf: str | None) -> None:
    """Copy the modules as an administrator does, with a configuration or without one."""
    for name, content in modules().items():
        (folder / name).write_bytes(content)
    if conf is not None:
        (folder / "gpu_aware_conf.lua").write_text(conf)


MakeFilter = Callable[..., Filter]
