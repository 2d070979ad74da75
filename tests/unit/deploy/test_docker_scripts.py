"""docker/cluster without Docker: what it says, and what it would ask Docker for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[3] / "docker"
FAKE = '#!/bin/sh\necho "$GPU_AWARE_IMAGE $*" >>"$ASKED"\necho 0123456789ab\n'


@pytest.fixture
def docker_cluster(tmp_path):
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


def test_as_without_a_command_says_its_own_usage(docker_cluster):
    done, asked = docker_cluster("as", "alice")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: docker/cluster as alice CMD")
    assert asked == ""
    done, asked = docker_cluster("as", "alice", "squeue", "-a")
    assert done.returncode == 0
    assert asked.endswith(" 0123456789ab squeue -a\n")


def test_checkouts_side_by_side_start_their_own_images(docker_cluster):
    def image(**more):
        _, asked = docker_cluster("ps", **more)
        return asked.splitlines()[-1].split()[0]

    one, two = image(), image(checkout="two")
    assert one.startswith("slurm-gpu-aware:trixie-")
    assert one == image(GPU_AWARE_PROJECT="another")
    assert one != two
    assert image(GPU_AWARE_SUITE="sid") == one.replace("trixie", "sid")


def test_what_is_built_is_what_is_started():
    assert '-t "$(docker/image-name.sh "$suite" "$kind")"' in (DOCKER / "image.sh").read_text()
    assert "image: ${GPU_AWARE_IMAGE:?" in (DOCKER / "compose.yml").read_text()


FAKE_IMAGES = """#!/bin/sh
# $IMAGES: a line 'NAME NUMBER' for each name
case $1 in
images) awk -v name="$3" '$1 == name { print $2 }' "$IMAGES" ;;
rmi)
    awk -v name="$3" '$1 != name && $2 != name' "$IMAGES" >"$IMAGES.new"
    mv "$IMAGES.new" "$IMAGES"
    ;;
esac
"""


def test_clean_removes_the_images_of_its_own_checkout_alone(tmp_path):
    """It removed whatever was called slurm-gpu-aware, other checkouts' images and the base, too."""
    fake = tmp_path / "bin" / "docker"
    fake.parent.mkdir()
    fake.write_text(FAKE_IMAGES)
    fake.chmod(0o755)
    folder = tmp_path / "one" / "docker"
    folder.mkdir(parents=True)
    for name in ("image-name.sh", "remove-images.sh"):
        shutil.copy(DOCKER / name, folder)
    shutil.copy(DOCKER.parent / "Makefile", folder.parent)
    own = [
        subprocess.run(
            [folder / "image-name.sh", suite], capture_output=True, text=True, check=True
        ).stdout.strip()
        for suite in ("trixie", "sid")
    ]
    others = [
        "slurm-gpu-aware:trixie-1 aa",  # of equal content
        "slurm-gpu-aware:sid-1 cc",
        "slurm-gpu-aware:sid cc",
        "slurm-gpu-aware-base:trixie dd",
    ]
    images = tmp_path / "images"
    images.write_text(
        "\n".join([f"{own[0]} aa", f"{own[1]} bb", "slurm-gpu-aware:trixie aa", *others, ""])
    )
    subprocess.run(
        ["make", "-s", "-C", folder.parent, "clean"],
        env={**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}", "IMAGES": str(images)},
        check=True,
    )
    assert images.read_text().splitlines() == others
