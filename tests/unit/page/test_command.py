"""``gpu-aware page``: what the files hold, and that no text of others becomes HTML."""

import html
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import gpu_aware, gpu_aware_profile, succeeded
from page_samples import HOSTILE, MACHINES, SLOW
from slurm_folder import SlurmFolder
from store_samples import ingest, report

from slurm_gpu_aware.bounds import printable
from slurm_gpu_aware.cli import page as page_command
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features import found
from slurm_gpu_aware.page import drift
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.watch_state import GpuState, WatchState, write_state

TAGS = {
    *("a", "body", "dd", "dl", "dt", "figcaption", "figure", "footer", "h1", "h2", "head"),
    *("header", "html", "li", "main", "meta", "nav", "p", "span", "strong", "style", "title"),
    *("div", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *("circle", "defs", "g", "line", "path", "pattern", "polygon", "polyline", "rect", "svg"),
    *("symbol", "text", "use"),
}
OF_FEATURES = [section.name for section in found("page", "SECTION")]


class Reading(HTMLParser):
    """Tags, attributes, links and text of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm does not answer."""
    away = Mock(side_effect=SourceError("slurmctld is away"))
    monkeypatch.setattr("slurm_gpu_aware.slurm.client.SlurmClient", away)


def all_pages(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.html"))


def test_each_section_node_rack_and_job_has_a_page(pages: Path) -> None:
    names = {str(page.relative_to(pages)) for page in all_pages(pages)}
    sections = {f"{name}.html" for name in ("index", "queue", "drift", *OF_FEATURES)}
    racks = {f"racks/{number}.html" for number in range(1, 5)}
    jobs = {f"jobs/{number}.html" for number in (9001, 9002, *range(9100, 9106))}
    assert names == sections | racks | jobs | {f"nodes/{name}.html" for name in MACHINES}


def test_no_text_of_others_becomes_html(pages: Path) -> None:
    """Names of jobs, comments, reasons and faults of a node hold scripts here."""
    shown = 0
    for page in all_pages(pages):
        found = Reading(page)
        assert found.tags <= TAGS, page
        assert not {name for name in found.attributes if name.startswith("on")} | (
            found.attributes & {"src", "style", "srcdoc", "action"}
        ), page
        shown += found.text.count(" ".join(printable(HOSTILE).split()))
        assert "\u202e" not in page.read_text(encoding="utf-8")
    assert shown >= 5


def test_links_lead_to_pages_of_the_site_only(pages: Path) -> None:
    for page in all_pages(pages):
        for link in Reading(page).links:
            if not link.startswith("#"):
                assert (page.parent / link).resolve().is_file(), f"{page}: {link}"
                assert pages in (page.parent / link).resolve().parents


def test_the_policy_of_a_page_allows_its_own_style_only(pages: Path) -> None:
    text = (pages / "index.html").read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy[1]).split(";"))
    style = rules.pop("style-src")
    assert style.startswith("'sha256-")
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_the_queue_and_an_explanation_are_in_the_words_of_the_commands(
    site: SlurmFolder, pages: Path
) -> None:
    queue = Reading(pages / "queue.html").text
    assert "waits until 14:05 for v100-r1-02:0,1: ends 22 min sooner than on h100-r2-02" in queue
    assert "a limit of its QOS is reached (QOSMaxGRESPerUser)" in queue
    told = gpu_aware("explain", "9001", config=site.config).stdout
    page = Reading(pages / "jobs/9001.html").text
    for line in told.split("\n"):
        for cell in re.split(r"\s{2,}", line.strip()):
            if cell and set(cell) != {"-"}:
                assert cell in page, cell


def test_a_slow_gpu_is_named_on_each_page_that_shows_it(pages: Path) -> None:
    node, slot = SLOW
    for name in ("index.html", "drift.html"):
        assert f"{node}:{slot}" in Reading(pages / name).text
    assert re.search(r"1\.1[23]\d slow", Reading(pages / f"nodes/{node}.html").text)
    rack = next(page for page in (pages / "racks").iterdir() if node in page.read_text())
    assert "5 free, slow" in rack.read_text()


def test_what_watch_found_is_shown(site: SlurmFolder, tmp_path: Path) -> None:
    bad = [
        GpuState("h100-r2-02", 3, "ill", why="11 of 12 NVLinks are active"),
        GpuState("h100-r2-02", 4, "slow", why="class A: 3.1% slower than its peers"),
    ]
    file = site.store.with_name("watch.json")
    try:
        write_state(file, WatchState(at=time.time() - 60, gpus=bad))
        gpu_aware("page", str(tmp_path / "watched"), config=site.config)
        text = Reading(tmp_path / "watched/nodes/h100-r2-02.html").text
        assert "watch: 11 of 12 NVLinks are active" in text
        fleet = Reading(tmp_path / "watched/index.html").text
        assert "watch: class A: 3.1% slower than its peers" in fleet
        assert re.search(r"watched \d+ min( \d+ s)? ago", fleet)
        write_state(file, WatchState(at=time.time() - 4 * 86_400, gpus=bad))
        gpu_aware("page", str(tmp_path / "stopped"), config=site.config)
        old = Reading(tmp_path / "stopped/index.html").text
        assert re.search(r"watched 4 d( \d+ \w+)? ago", old)
        assert "watch: class A" not in old
        file.write_text("{")
        gpu_aware("page", str(tmp_path / "broken"), config=site.config)
        assert f"not known: {file}: not JSON" in Reading(tmp_path / "broken/index.html").text
    finally:
        file.unlink()


def test_public_pages_name_no_user_and_no_job(site: SlurmFolder, tmp_path: Path) -> None:
    folder = tmp_path / "public"
    succeeded(gpu_aware("page", "--public", str(folder), config=site.config))
    text = " ".join(Reading(page).text for page in all_pages(folder))
    for word in ("alice", "mallory", "train-resnet", "job-9100", "class=A"):
        assert word not in text
    assert "9001" in text
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "index.html").stat().st_mode & 0o777 == 0o644


def test_public_answers_name_no_model() -> None:
    """A user chooses its name, and a missing one is told as ``alice/her-app``."""
    decision = {
        "user": "alice",
        "asked": {"gpus": 1, "model": "her-app"},
        "why": {"summary": "fewest idle", "model": "alice/her-app has no table"},
    }
    answer = {"job_id": "7", "state": "started", "decisions": [decision]}
    (public,) = page_command.without_users(answer)["decisions"]
    assert public == {"user": None, "asked": {"gpus": 1}, "why": {"summary": "fewest idle"}}
    assert decision["why"]["model"] == "alice/her-app has no table"  # type: ignore[index]


def test_pages_for_administrators_are_closed_to_others(pages: Path) -> None:
    assert pages.stat().st_mode & 0o777 == 0o750
    assert {page.stat().st_mode & 0o777 for page in all_pages(pages)} == {0o640}


def test_jobs_and_rows_are_bounded(
    site: SlurmFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_command, "MOST_EXPLAINED", 4)
    monkeypatch.setattr(page_command, "MOST_ROWS", 2)
    succeeded(gpu_aware("page", str(tmp_path / "few"), config=site.config))
    jobs = {page.stem for page in (tmp_path / "few/jobs").iterdir()}
    assert jobs == {"9001", "9002", "9100", "9101"}
    assert "... and 4 more: gpu-aware queue" in Reading(tmp_path / "few/queue.html").text


@pytest.mark.usefixtures("silent")
def test_without_slurm_the_store_is_shown(filled: SlurmFolder, tmp_path: Path) -> None:
    succeeded(gpu_aware("page", str(tmp_path / "alone"), config=filled.config))
    text = Reading(tmp_path / "alone/index.html").text
    assert "Slurm does not answer: slurmctld is away." in text
    assert "72 unknown" in text
    assert "waits until 14:05" in Reading(tmp_path / "alone/queue.html").text


def test_a_section_that_fails_does_not_stop_the_others(
    site: SlurmFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(drift.DRIFT, read=lambda source: {}["what"])
    monkeypatch.setattr(drift, "DRIFT", broken)
    done = succeeded(gpu_aware("page", str(tmp_path / "most"), config=site.config))
    said = "The section 'Drift' cannot be shown: 'what'."
    assert said in done.stderr
    assert said in Reading(tmp_path / "most/drift.html").text
    assert len(all_pages(tmp_path / "most")) == 23 + len(OF_FEATURES)


@pytest.mark.usefixtures("silent")
def test_a_store_with_an_import_alone_is_shown(tmp_path: Path) -> None:
    """No Slurm, no sweep, no selector: what the first minutes have."""
    config, times = tmp_path / "config.toml", tmp_path / "times.csv"
    config.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    rows = [f"{slot},{node},A,{100 + 60 * (slot == 2)}" for node in ("n1", "n2") for slot in (1, 2)]
    times.write_text("\n".join(["gpu,node,class,value_ms", *rows, "3,n1,A,99", "3,n2,A,99"]))
    succeeded(gpu_aware_profile("import", str(times), "--store", f"{tmp_path}/store.db"))
    succeeded(gpu_aware("page", str(tmp_path / "out"), config=config))
    fleet = Reading(tmp_path / "out/index.html").text
    assert "class A: 60.0% slower than the median" in fleet
    assert "The links are not known" in Reading(tmp_path / "out/nodes/n1.html").text
    assert "There is no power limit" in Reading(tmp_path / "out/power.html").text
    assert "No job is parked." in Reading(tmp_path / "out/queue.html").text


@pytest.mark.usefixtures("silent")
def test_gpus_without_times_are_not_said_to_be_fast(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/store.db"\n')
    with open_store(tmp_path / "store.db") as store:
        ingest(store, report() | {"timings": []})
    succeeded(gpu_aware("page", str(tmp_path / "out"), config=config))
    fleet = Reading(tmp_path / "out/index.html").text
    assert "slow not known ill none not measured 4" in fleet
    assert "No GPU is known to be ill; how fast they are is not measured." in fleet
