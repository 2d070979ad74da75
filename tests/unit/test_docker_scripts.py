"""docker/cluster without Docker: what it says, and what it would ask Docker for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[2] / "docker"
FAKE = '#!/bin/sh\necho "$GPU_AWARE_IMAGE $*" >>"$ASKED"\necho 0123456789ab\n'


@pytest.fixture
def cluster(tmp_path):
    """Run docker/cluster of a copied checkout; returns the process, and what Docker was asked."""
    fake = tmp_path / "bin" / "docker"
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)

    def run(*args, checkout="one", **environment):
        folder = tmp_path / checkout / "docker"
        if not folder.exists():
            folder.mkdir(parents=True)
            for name in ("cluster", "image-name.sh", "compose.yml"):
                shutil.copy(DOCKER / name, folder)
        asked = tmp_path / "asked"
        asked.write_text("")
        path = f"{fake.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [folder / "cluster", *args],
            env={**os.environ, "PATH": path, "ASKED": str(asked), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, asked.read_text()

    return run


def test_as_without_a_command_says_its_own_usage(cluster):
    done, asked = cluster("as", "alice")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: docker/cluster as alice CMD")
    assert asked == ""
    done, asked = cluster("as", "alice", "squeue", "-a")
    assert done.returncode == 0
    assert asked.endswith(" 0123456789ab squeue -a\n")


def test_checkouts_side_by_side_start_their_own_images(cluster):
    def image(**more):
        _, asked = cluster("ps", **more)
        return asked.splitlines()[-1].split()[0]

    one, two = image(), image(checkout="two")
    assert one.startswith("slurm-gpu-aware:trixie-")
    assert one == image(GPU_AWARE_PROJECT="another")
    assert one != two
    assert image(GPU_AWARE_SUITE="sid") == one.replace("trixie", "sid")


def test_what_is_built_is_what_is_started():
    assert '-t "$(docker/image-name.sh "$suite")"' in (DOCKER / "image.sh").read_text()
    assert "image: ${GPU_AWARE_IMAGE:?" in (DOCKER / "compose.yml").read_text()
