"""The folder of the pages: whose it is, and what a reader finds in it at any time."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import InstanceLock
from slurm_gpu_aware.page.blocks import Page, Sentences
from slurm_gpu_aware.page.site import LONGEST, MARKER, Frame, write_site

FRAME = Frame("tessa", [("index", "Fleet")], 0.0)


def page(path: str, text: str = "text") -> Page:
    return Page(path, "Title", [Sentences([text])])


def there(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def write_pages(folder: Path, *pages: Page) -> int:
    return write_site(folder, pages, FRAME, public=False)


def test_pages_replace_the_old_ones_and_those_that_are_gone_go(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    assert write_pages(folder, page("index.html"), page("jobs/1.html"), page("jobs/2.html")) == 3
    write_pages(folder, page("index.html", "newer"), page("jobs/2.html"))
    assert there(folder) == {MARKER, "index.html", "jobs/2.html"}
    assert "newer" in (folder / "index.html").read_text()


@pytest.mark.parametrize("name", ["precious.txt", ".hidden", "index.html"])
def test_a_folder_of_others_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(SourceError, match="not empty, and not written by this command"):
        write_pages(tmp_path, page("index.html"))
    assert there(tmp_path) == {name}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_root_writes_into_no_folder_of_another_user(tmp_path: Path) -> None:
    """It could put a link in the way at any time."""
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(SourceError, match="belongs to 12345; run this as 12345"):
        write_pages(tmp_path, page("index.html"))
    assert there(tmp_path) == set()


def test_a_folder_that_all_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SourceError, match="every user may write it"):
        write_pages(tmp_path, page("index.html"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a group")
def test_pages_have_the_group_of_the_folder(tmp_path: Path) -> None:
    """Else a web server in the group could not read what root writes."""
    os.chown(tmp_path, -1, 12345)
    write_pages(tmp_path, page("index.html"), page("jobs/1.html"))
    for path in ("index.html", "jobs", "jobs/1.html"):
        assert (tmp_path / path).stat().st_gid == 12345


def test_an_empty_folder_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    write_pages(folder, page("index.html"), page("jobs/1.html"))
    assert (folder / "index.html").stat().st_mode & 0o777 == 0o644
    assert (folder / "jobs").stat().st_mode & 0o777 == 0o755


def test_what_is_not_a_page_stays(tmp_path: Path) -> None:
    write_pages(tmp_path / "out", page("index.html"))
    (tmp_path / "out/robots.txt").write_text("own")
    write_pages(tmp_path / "out", page("index.html"))
    assert there(tmp_path / "out") == {MARKER, "index.html", "robots.txt"}


def test_a_failure_leaves_the_old_pages_whole(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_pages(folder, page("index.html", "old"), page("jobs/1.html", "old"))

    def pages() -> Iterator[Page]:
        yield page("index.html", "new")
        raise SourceError("the store is gone")

    with pytest.raises(SourceError, match="the store is gone"):
        write_site(folder, pages(), FRAME, public=False)
    assert there(folder) == {MARKER, "index.html", "jobs/1.html"}
    assert "old" in (folder / "index.html").read_text()


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_pages(folder, page("index.html"))
    (folder / ".new-abc").mkdir()
    (folder / ".new-abc/index.html").write_text("half")
    write_pages(folder, page("index.html"))
    assert there(folder) == {MARKER, "index.html"}


def test_a_reader_sees_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page comes by one rename, and the first page, which leads to the others, last."""
    moved: list[str] = []
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        moved.append(str(target))
        assert source.read_text().rstrip().endswith("</html>")
        real(source, target)

    monkeypatch.setattr("slurm_gpu_aware.page.site.os.replace", replace)
    write_pages(tmp_path / "out", page("index.html"), page("queue.html"), page("jobs/1.html"))
    names = [Path(path).name for path in moved]
    assert names == ["1.html", "queue.html", "index.html"]


def test_two_commands_do_not_write_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_pages(folder, page("index.html"))
    with InstanceLock(folder / MARKER, "other"), pytest.raises(SourceError, match="another"):
        write_pages(folder, page("index.html"))


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "out", tmp_path / "target"
    target.mkdir()
    write_pages(folder, page("index.html"))
    (folder / "jobs").symlink_to(target)
    with pytest.raises(SourceError, match="a link where a folder"):
        write_pages(folder, page("jobs/1.html"))
    assert there(target) == set()


@pytest.mark.parametrize(
    "path", ["../x.html", "/etc/x.html", "a/b/c.html", "jobs/../x.html", "x.svg", "nodes/.html"]
)
def test_other_paths_are_an_error_of_the_program(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not the path of a page"):
        write_pages(tmp_path / "out", page(path))


def test_long_texts_are_cut(tmp_path: Path) -> None:
    write_pages(tmp_path, page("index.html", "x" * 10 * LONGEST))
    text = (tmp_path / "index.html").read_text()
    assert "x" * LONGEST + "..." in text
    assert "x" * (LONGEST + 1) not in text
