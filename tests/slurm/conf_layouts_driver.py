"""Runs on the controller as root: a second slurmctld reads a layout before and after each change.

Fed to the Python of our installation. stdin is JSON: ``{"name", "files": {name: text}}``; stdout is
JSON: what slurmctld, slurmd and our reader said of the first files (``first``), of those that setup
wrote (``setup``) and of those that --roll wrote (``rolled``), and the names of files that are not
again what they were (``left``).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.deploy import files, setup
from slurm_gpu_aware.deploy.indexing import read_site
from slurm_gpu_aware.deploy.removal import Removal
from slurm_gpu_aware.deploy.site import find_site
from slurm_gpu_aware.slurm.conffile import read_conf

BASE = """\
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort=17817
SlurmdPort=17818
SelectType=select/cons_tres
MailProg=/bin/true
SlurmctldPidFile=@DIR@/ctl.pid
SlurmdSpoolDir=@DIR@/spool
StateSaveLocation=@DIR@/state"""
ASKED_S = 120.0


def said(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr if command[0] == "slurmd" else done.stdout


def by_slurm(folder: Path, state: Path) -> dict[str, object]:
    """Settings, nodes, and the devices of the first node with GPUs; or the end of the log."""
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    shutil.rmtree(state, ignore_errors=True)
    (state / "state").mkdir(parents=True)
    (state / "spool").mkdir()
    log = state / "log"
    with log.open("w") as stream:
        command = ["slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf")]
        daemon = subprocess.Popen(command, env=env, stdout=stream, stderr=stream)
    try:
        end = time.monotonic() + ASKED_S
        config = nodes = ""
        while not nodes.startswith("NodeName"):
            if daemon.poll() is not None or time.monotonic() > end:
                return {"failed": log.read_text()[-2000:]}
            time.sleep(0.05)
            config = said(["scontrol", "show", "config"], env)
            nodes = said(["scontrol", "-o", "show", "nodes"], env) if config else ""
    finally:
        daemon.kill()  # 24.11 hangs in some shutdowns, and no one needs its state
        daemon.wait(timeout=60)
    settings = dict(re.findall(r"^(\S+) += (.*?) *$", config, re.MULTILINE))
    found = {}
    for line in nodes.splitlines():
        fields = dict(re.findall(r"(\w+)=(.*?)(?= \w+=| *$)", line))
        found[fields.pop("NodeName")] = fields
    return {"settings": settings, "nodes": found}


def devices(folder: Path, node: str) -> list[list[str]]:
    """[type, file] of each GPU of a node, as slurmd reads gres.conf."""
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    text = said(["slurmd", "-G", "-N", node, "-f", str(folder / "slurm.conf")], env)
    found = re.findall(r"Gres Name=gpu (?:Type=(\S+) )?.*?File=(\S+)", text)
    return [list(each) for each in found] or [["none", text[-1500:]]]


def by_us(folder: Path) -> dict[str, object]:
    conf = read_conf(folder / "slurm.conf")
    keys = ("Prolog", "Epilog")
    settings = {key: conf.get(key) for key in conf.values}
    return {"settings": settings, "scripts": {key: conf.all(key) for key in keys}}


def tree(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_changes(changes: list[files.Change]) -> None:
    for change in changes:
        if files.diff(change):
            files.write(change)


def try_layout() -> None:
    given = json.load(sys.stdin)
    root = Path("/tmp/layouts", given["name"])
    shutil.rmtree(root, ignore_errors=True)
    folder, state = root / "etc", root / "run"
    for name, text in given["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        end = "\r\n" if "@BASE@\r" in text else "\n"
        base = BASE.replace("@DIR@", str(state)).replace("\n", end)
        for mark, meant in (("@BASE@", base), ("@DIR@", str(folder)), ("@SP@", " \t ")):
            text = text.replace(mark, meant)
        path.write_bytes(text.encode())
        if name.endswith(".sh"):
            path.chmod(0o755)
    (root / "config.toml").write_text(
        f'[store]\npath = "{root}/store.db"\n[events]\nsubmit_file = "{root}/submitted"\n'
    )
    config = load_config(root / "config.toml")
    first = tree(folder)
    out = {"first": by_slurm(folder, state) | {"ours": by_us(folder)}}
    write_changes(setup.in_place(find_site(config, folder, root / "units")[0])[0])
    out["setup"] = by_slurm(folder, state) | {"ours": by_us(folder)}
    again = setup.in_place(find_site(config, folder, root / "units")[0])[0]
    out["again"] = [str(change.path) for change in again if files.diff(change)]
    slurm, gres = folder / "slurm.conf", folder / "gres.conf"
    site = read_site(slurm, gres, {})
    chosen = [name for name, node in site.nodes.items() if node.indices]
    out["indexed"] = {name: len(site.nodes[name].indices) for name in chosen}
    if chosen:
        out["first"]["devices"] = devices(folder, chosen[-1])
        for some in (chosen[::2], chosen):  # a part of the nodes, then all
            changed = read_site(slurm, gres, {}).texts(some, features=True)
            write_changes([files.Change(path, text) for path, text in changed.items()])
        out["rolled"] = by_slurm(folder, state) | {"devices": devices(folder, chosen[-1])}
    plain = read_site(slurm, gres, {}).texts((), features=False)
    removal = Removal(find_site(config, folder, root / "units")[0], None, None, print)
    write_changes(removal.conf_changes(plain)[0])
    now = tree(folder)
    out["left"] = [name for name, data in first.items() if now.get(name) != data]
    shutil.rmtree(root)
    print(json.dumps(out))


try_layout()
