#!/usr/bin/env python3
"""Write what follows from the code: reference pages, example files of etc/.

``docs/generate.py`` writes, ``docs/generate.py --check`` exits 1 if a file is not current.
"""

import ast
import inspect
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from gpu_aware_profile.cli import cli as profile_cli
from slurm_gpu_aware import filter_rules
from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.filter_conf import lua_value
from slurm_gpu_aware.deploy.setup import settings_of
from slurm_gpu_aware.deploy.site import NodeGpus, Site, cores_of, gres_lines, node_lines
from slurm_gpu_aware.exporter.registry import METRICS
from slurm_gpu_aware.features import hints
from slurm_gpu_aware.model import job_phase
from slurm_gpu_aware.simulator.columns import columns
from slurm_gpu_aware.slurm.conffile import ConfFiles

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "profiling")))
CONFIG = ROOT / "etc" / "config.toml"
NODES = [NodeGpus(f"n{i}", (0, 1, 2, 3), "a100", cores_of((0, 0, 1, 1), 2, 16)) for i in (1, 2)]
EXAMPLE = "# Example, written by docs/generate.py; `gpu-aware setup` writes yours.\n"

_ENTRY = re.compile(r"(# )?([a-z_]+|\"[0-9:-]+\") = (.+)")
_SECTION = re.compile(r"(?:# )?\[([a-z_A-Z.-]+)\]")

CLI_HEAD = """\
# Commands

Written by `docs/generate.py` from the commands themselves; do not edit.

| command | for |
| --- | --- |
| `gpu-aware explain`, `gpu-aware queue`, `gpu-aware status`, `gpu-aware place` | everybody |
| `gpu-aware simulate`, `gpu-aware report` | everybody; of the history what `sacct` shows |
| `gpu-aware models` | administrators: performance models; `show` and `plot` everybody |
| `gpu-aware power` | administrators: the power limit; `show` everybody |
| `gpu-aware tune` | administrators: compare policies on the site's jobs |
| `gpu-aware setup`, `gpu-aware doctor`, `gpu-aware release`, `gpu-aware selectd` | administrators |
| `gpu-aware clockd` | compute nodes run it: the [agent for clocks](power.md) |
| `gpu-aware metrics` | the [exporter for Prometheus](metrics.md); every user may run it |
| `gpu-aware-profile classify`, `job`, `pattern` | users: what an application is like |
| `gpu-aware-profile`, all else | administrators: measure GPUs, show, import and export |
| `gpu-aware-clock` | Slurm's prolog and epilog on compute nodes call it |

Results go to stdout, everything else to stderr. Everything that prints a table also has `--json`.
Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage, 130 interrupted; `gpu-aware doctor`
exits with 3 if a check failed, `gpu-aware setup` and `gpu-aware-profile` as their own help says.
"""

CONFIG_HEAD = """\
# Configuration

Written by `docs/generate.py` from `etc/config.toml`, the commented file with all defaults; do not
edit.

One TOML file: the one named by `gpu-aware --config FILE`, else by `$GPU_AWARE_CONFIG`, else
`/etc/slurm-gpu-aware/config.toml`. Without a file the defaults hold. An unknown key or a bad value
stops the start with a sentence that names file, key and reason. After a change run
`gpu-aware setup --install` (the filter reads a copy of some values) and restart the selector.
"""


def commands(group: click.Group, name: str, above: click.Context | None = None) -> Iterator[str]:
    """Help of a group and of each of its commands as Markdown."""
    word, mark = name.split()[-1], "##" if above is None else "###"
    settings = group.context_settings
    context = click.Context(group, info_name=word, parent=above, max_content_width=88, **settings)
    yield f"\n{mark} {name}\n\n```text\n{group.get_help(context)}\n```\n"
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}", context)
            continue
        inner = click.Context(command, info_name=word, parent=context, max_content_width=88)
        yield f"\n### {name} {word}\n\n```text\n{command.get_help(inner)}\n```\n"


def cli_page() -> str:
    """docs/cli.md."""
    pages = [*commands(cli, "gpu-aware"), *commands(profile_cli, "gpu-aware-profile")]
    return CLI_HEAD + "".join(pages)


def configuration_page() -> str:
    """docs/configuration.md."""
    out = [CONFIG_HEAD]
    comment: list[str] = []
    section = False
    for line in CONFIG.read_text(encoding="utf-8").splitlines():
        head, entry = _SECTION.fullmatch(line), _ENTRY.fullmatch(line)
        if head:
            name = (
                head.group(1)
                .replace("classes.A", "classes.NAME")
                .replace("policies.topo-aware", "policies.NAME")
            )
            out.append(f"\n## [{name}]\n")
            if comment and section:
                out.append(f"\n{' '.join(comment)}\n")
            out.append("\n| key | default | meaning |\n| --- | --- | --- |\n")
            section = True
        elif entry and section:
            absent, key, value = entry.groups()
            default = f"absent (example: `{value}`)" if absent else f"`{value}`"
            out.append(f"| `{key}` | {default} | {' '.join(comment)} |\n")
        elif line.startswith("# "):
            comment.append(line[2:])
            continue
        comment = []
    return "".join(out)


def gres_example() -> str:
    """etc/examples/gres.conf."""
    return EXAMPLE + "\n".join(gres_lines(NODES)) + "\n"


def slurm_example() -> str:
    """etc/examples/slurm.conf: our lines only."""
    empty = ConfFiles(Path("no slurm.conf"), missing_ok=True)
    values, _ = settings_of(Site(Config(), Path("/etc/slurm"), Path(), empty, {}, ()))
    lines = [*(f"{k}={v}" for k, v in values.items()), *node_lines(NODES)]
    return EXAMPLE + "\n".join(lines) + "\n"


def lua_rules() -> str:
    """etc/lua/gpu_aware_rules.lua: the table of `filter_rules`, its names in lower case; hints."""
    rules = {k.lower(): v for k, v in vars(filter_rules).items() if k.isupper() and k[0] != "_"}
    rules["sentences"] = {**filter_rules.SENTENCES, **hints.SENTENCES}
    rules["hints"] = [hint.table() for hint in hints.HINTS]
    head = (
        "-- Written by docs/generate.py from filter_rules.py and features/hints.py. Do not edit.\n"
    )
    return f"{head}return {lua_value(rules)}\n"


FILES = {
    "etc/lua/gpu_aware_rules.lua": lua_rules,
    "docs/cli.md": cli_page,
    "docs/configuration.md": configuration_page,
    "etc/examples/gres.conf": gres_example,
    "etc/examples/slurm.conf": slurm_example,
}


def between(page: str, start: str, text: str) -> str:
    """A page with ``text`` behind its line ``<!-- START ... -->``, up to ``<!-- end -->``."""
    pattern = rf"(<!-- {re.escape(start)}[^\n]*-->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda m: m[1] + text + m[2], page, count=1, flags=re.DOTALL)


def phase_meanings() -> dict[str, str]:
    """Phase -> its docstring in the source."""
    entries = ast.parse(inspect.getsource(job_phase.JobPhase)).body[0].body
    meanings = {}
    for entry, text in itertools.pairwise(entries):
        if isinstance(entry, ast.Assign) and isinstance(text, ast.Expr):
            meaning = ast.literal_eval(text.value)
            meanings[ast.literal_eval(entry.value)] = " ".join(meaning.split())
    return meanings


def architecture_page() -> str:
    """docs/architecture.md with its tables of phases and of packages."""
    meanings = phase_meanings()
    rows = ["| phase | meaning | next phase, and what brings it about |", "| --- | --- | --- |"]
    for phase, following in job_phase.TRANSITIONS.items():
        ways = "<br>".join(f"*{then}*: {why}" for then, why in following.items())
        rows.append(f"| **{phase}** | {meanings[phase]} | {ways or 'none'} |")
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    page = between(page, "phases:", "\n" + "\n".join(rows) + "\n\n")
    held = runpy.run_path(str(ROOT / "tests" / "unit" / "test_architecture.py"))
    for marker, root, allowed in (
        ("packages:", "ROOT", "ALLOWED"),
        ("measuring:", "PROFILING", "PROFILING_ALLOWED"),
    ):
        rows = list(package_rows(held[root], held[allowed], held["SHARED"]))
        page = between(page, marker, "\n" + "\n".join(rows) + "\n\n")
    return page


def package_rows(root: Path, allowed: Mapping[str, set[str]], shared: set[str]) -> Iterator[str]:
    """What each package of a folder holds and may import, as the test of the architecture says."""
    yield "| package | what it holds | may import |"
    yield "| --- | --- | --- |"
    for room, below in allowed.items():
        module = root / room / "__init__.py"
        if module.exists():
            text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or room
            used = ", ".join(f"`{name}`" for name in sorted(below - shared))
            yield f"| `{room}` | {text.splitlines()[0].replace('``', '`')} | {used or 'none'} |"


def readme() -> str:
    """README.md with what the commands of its example print."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- example:.*?```sh\n(.*?)```", page, re.DOTALL)
    shown = run_example(example)
    return between(page, "output:", f"\n```text\n{shown}```\n\n")


def run_example(commands: str) -> str:
    """What a shell example prints, without the lines that install the package."""
    program = f"echo; {shlex.quote(sys.executable)} -m slurm_gpu_aware.cli.main"
    installs = r"(?m)^(python3 -m venv|pip install) .*\n"
    script = re.sub(r"(?m)^gpu-aware\b", lambda _: program, re.sub(installs, "", commands))
    environment = {
        **os.environ,
        "GPU_AWARE_CONFIG": os.devnull,
        "PYTHONPATH": PYTHONPATH,
        "COLUMNS": "100",
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["/bin/sh", "-euc", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout.lstrip()


def simulator_page() -> str:
    """The page of the simulator, with the numbers of a run and their headers."""
    head = ["key", "table of `simulate`", "page of `report`"]
    rows = [
        f"| `{column.key}` | {column.table} | {column.page} |"
        for column in columns()
        if column.table or column.page
    ]
    text = "\n".join(["", f"| {' | '.join(head)} |", "| --- | --- | --- |", *rows, "", ""])
    return between((ROOT / "docs/simulator.md").read_text(encoding="utf-8"), "columns:", text)


def metrics_page() -> str:
    """The page of metrics with the table of all of them."""
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    text = "\n".join(["", *rows, "", ""])
    return between((ROOT / "docs/metrics.md").read_text(encoding="utf-8"), "metrics:", text)


FILES |= {
    "docs/metrics.md": metrics_page,
    "docs/architecture.md": architecture_page,
    "docs/simulator.md": simulator_page,
    "README.md": readme,
}


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    stale = [
        name
        for name, text in FILES.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text()
    ]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"{name} is not current: run docs/generate.py\n")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(FILES[name](), encoding="utf-8")
        sys.stderr.write(f"wrote {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
