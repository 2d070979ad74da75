"""What the pages say exists: commands, options, keys, links, files."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpu_aware_profile.cli import cli as profile_cli
from slurm_gpu_aware.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "docker" / "README.md",
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
]
GROUPS = {"gpu-aware": cli, "gpu-aware-profile": profile_cli}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_CALL = re.compile(r"(?<![\w/.-])(gpu-aware(?:-profile)?) ([a-z]+(?:-[a-z]+)*)\b([^`\n#|]*)")
_TARGET = re.compile(r"\bmake ([a-z-]+)")


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_resolve(page: Path):
    """Files exist, and sections as a host of Markdown names them."""
    targets = [t for t in _LINK.findall(_FENCED.sub("", page.read_text())) if "://" not in t]
    broken = []
    for target in targets:
        name, _, section = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (section and section not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    words = [re.sub(r"[^\w -]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_and_options_exist(page: Path):
    """Every ``gpu-aware ...`` in a page is a command with these options."""
    wrong = []
    for program, word, rest in _CALL.findall(page.read_text()):
        group = GROUPS[program]
        command = group.get_command(click.Context(group), word)
        if command is None:
            wrong.append(f"{program} {word}")
            continue
        inner = re.match(r" ([a-z]+)", rest)
        if isinstance(command, click.Group) and inner:
            command = command.get_command(click.Context(command), inner[1])
            if command is None:
                wrong.append(f"{program} {word}{rest}")
                continue
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        used = re.findall(r"(?<!\S)--[a-z-]+", rest)
        wrong += [f"{program} {word} {o}" for o in used if o not in known]
    # Words of prose such as "gpu-aware selector" are no commands.
    assert [w for w in wrong if not w.endswith((" places", " selector"))] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_make_targets_exist(page: Path):
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    inline = re.findall(r"`(make [^`\n]+)`", page.read_text())
    used = _TARGET.findall("\n".join([*code, *inline]))
    assert [t for t in used if t not in known] == []


def test_every_command_is_documented():
    text = (DOCS / "cli.md").read_text()
    for program, group in GROUPS.items():
        context = click.Context(group)
        for word in group.list_commands(context):
            hidden = group.get_command(context, word).hidden
            assert (f"\n### {program} {word}\n" in text) is not hidden


def test_generated_pages_are_current():
    argv = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_every_page_is_reachable_from_the_index():
    text = (DOCS / "index.md").read_text()
    pages = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")} - {"index.md"}
    assert pages - set(_LINK.findall(text)) == set()


def test_each_page_of_a_feature_has_the_same_parts():
    table = (DOCS / "index.md").read_text().partition("## Features")[2].partition("\n## ")[0]
    features = _LINK.findall(table)
    assert len(features) >= 12
    parts = ["For users", "For administrators", "How it decides", "What fails"]
    for page in features:
        headings = re.findall(r"^## (.+)$", (DOCS / page).read_text(), re.MULTILINE)
        assert (page, headings) == (page, parts)


def test_the_glossary_stays_short():
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    assert 0 < len(words) <= 25


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_shell_blocks_can_be_split_by_a_shell(page: Path):
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            assert shlex.split(line, comments=True) is not None


def test_pages_name_files_that_exist():
    text = "\n".join(p.read_text() for p in PAGES)
    folders = "etc|docs|docker|slurm_gpu_aware|profiling|tests|benchmarks"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", text))
    examples = {"slurm_gpu_aware/placement/policies/spare.py"}
    named -= examples | {name for name in named if "/features/night/" in name}
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_the_page_of_architecture_knows_every_room():
    """Each package of the code stands in the drawing of packages."""
    text = (DOCS / "architecture.md").read_text()
    (drawing,) = re.findall(r"## Packages and imports\n\n```text\n(.*?)```", text, re.DOTALL)
    package = ROOT / "slurm_gpu_aware"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {"gpu_aware_profile"}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", drawing)} == set()


def test_the_gains_in_the_readme_are_those_that_were_simulated():
    """The rows of ``eft`` on Sia-Philly: single runs, Longhorn, Frontera; gain, range, error."""
    page = (ROOT / "benchmarks" / "reproductions.md").read_text()
    cell = r"([-\d.]+)% \(([-\d.]+)% to ([-\d.]+)%\) ± ([\d.]+)% \|"
    row = r"^\| Sia-Philly((?:, 16 draws)?(?: \+ EASY)?) \| eft \| run times \|(.*)$"
    lines = re.findall(row, page, re.MULTILINE)
    rows = {backfill: re.findall(cell, line) for backfill, line in lines}
    said = " ".join((ROOT / "README.md").read_text().split())

    def gains(row):
        runs, longhorn, frontera = (f"{gain}% ± {error}%" for gain, *_, error in row)
        return f"{longhorn}, {frontera} and {runs}"

    assert f"With EASY backfill the three gains are {gains(rows[' + EASY'])}," in said
    assert f"on sixteen draws of GPUs {gains(rows[', 16 draws + EASY'])}." in said
    (runs, *_), (longhorn, *_), (frontera, *_) = rows[""]
    assert f"complete {longhorn}% and {frontera}% sooner" in said
    assert f"and {runs}% sooner where" in said
    ranges = [(float(low), float(high)) for row in rows.values() for _, low, high, _ in row]
    worst, best = -min(low for low, _ in ranges), max(high for _, high in ranges)
    assert f"between {worst}% later and {best}% sooner" in said


def test_pages_avoid_words_that_make_persons_of_things():
    """CONTRIBUTING.md lists the words; generated pages follow their sources."""
    words = re.compile(r"\b(whom|somebody|nobody|whoever)\b", re.IGNORECASE)
    elsewhere = {"CONTRIBUTING.md", "requests.md", "cli.md", "configuration.md"}
    found = [
        f"{ids(page)}:{number} {match[0]}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for match in [words.search(line)]
        if match and page.name not in elsewhere
    ]
    assert found == []


def test_the_walk_of_a_score():
    """The table of the L x V walk, asked of the policy itself."""
    import numpy as np

    from slurm_gpu_aware.model.cluster import Cluster
    from slurm_gpu_aware.model.request import Request
    from slurm_gpu_aware.placement.policy import make_policy

    rows = re.findall(
        r"\| node 1: ([\d., ]+); node 2: ([\d., ]+) \| (\d) GPUs? \| ([\d.x, ]+) \| ([\d.]+) \|",
        (DOCS / "architecture.md").read_text(),
    )
    assert len(rows) == 3
    for first, second, gpus, cells, slowdown in rows:
        scores = np.array([[float(x) for x in part.split(",")] for part in (first, second)])
        cluster = Cluster.uniform(2, 2, scores={"A": scores}, locality_penalty=1.5)
        found = make_policy("pal").place(Request("1", int(gpus), app_class="A"), cluster)
        assert found is not None
        assert found.slowdown == pytest.approx(float(slowdown))
        asked = found.why.plain()["cells"]["cells"]
        chosen = next(i for i, cell in enumerate(asked) if cell["found"])
        walked = [cell["LxV"] for cell in asked[: chosen + 1]]
        said = [float(a) * float(b) for a, b in (c.split(" x ") for c in cells.split(", "))]
        assert walked == pytest.approx(said)
