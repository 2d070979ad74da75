"""The annotated blocks of the guide, which the walk on the foreign site types (tests/slurm)."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/slurm"))

from guide import GuideError, Step, insert, read_guide, steps_of  # noqa: E402


def block(annotation: str, text: str, language: str = "sh") -> str:
    return f"Text.\n\n{annotation}\n\n```{language}\n{text}\n```\n\nMore.\n"


def test_the_guide_of_this_release_can_be_read() -> None:
    steps = read_guide(ROOT)
    assert steps[0].where.startswith("README.md:")
    commands = "".join(step.text for step in steps if not step.path)
    order = [
        commands.index(words)
        for words in ("pip install", "sweep", "setup --install", "gpu-aware-selectd", "--roll")
    ]
    assert order == sorted(order)


def test_commands_and_their_hosts() -> None:
    text = block("<!-- on: controller and each GPU node -->", "one\ntwo")
    assert list(steps_of("f.md", text)) == [
        Step("f.md:3", "one\ntwo\n", places=("controller", "GPU nodes"))
    ]


def test_a_block_without_an_annotation_is_no_step() -> None:
    assert list(steps_of("f.md", "```sh\n<!-- on: nowhere -->\n```\n<!-- end -->\n")) == []


@pytest.mark.parametrize(
    "text",
    [
        block("<!-- on: somewhere -->", "x"),
        block("<!-- at: controller -->", "x"),
        block("<!-- on controller", "x"),
        block("<!-- on: controller -->", "x", "text"),
        block("<!-- into: slurm.conf -->", "x"),
        block("<!-- into: /etc/f, after the end -->", "x"),
        "<!-- on: controller -->\nText.\n```sh\nx\n```\n",
        "<!-- on: controller -->\n```sh\nx\n",
        "<!-- on: controller -->\n```sh\n```\n",
    ],
)
def test_what_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(GuideError, match=r"f\.md:"):
        list(steps_of("f.md", text))


def test_a_file_without_steps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Nothing.\n")
    with pytest.raises(GuideError, match=r"README\.md has no annotated block"):
        read_guide(tmp_path)


def test_text_goes_where_the_annotation_says() -> None:
    (last,) = steps_of("f.md", block("<!-- into: /etc/f, before the last return -->", "ours"))
    script = "if x then\n  return 1\nwork\nreturn 0\n"
    assert insert(script, last) == "if x then\n  return 1\nwork\nours\nreturn 0\n"
    with pytest.raises(GuideError, match="no line with return"):
        insert("work\n", last)
    (first,) = steps_of("f.md", block("<!-- into: /etc/f, after the first line -->", "ours"))
    assert insert("#!/bin/sh\nexit 0\n", first) == "#!/bin/sh\nours\nexit 0\n"
    (end,) = steps_of("f.md", block("<!-- into: /etc/f -->", "ours", "toml"))
    assert insert("old\n", end) == "old\nours\n"
