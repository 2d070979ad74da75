"""Which jobs have ended, by the file of jobcomp/filetxt."""

from pathlib import Path

import pytest

from slurm_gpu_aware.selector.job_ends import JobEnds

LINE = "JobId={} UserId=alice(2001) Name={} JobState=COMPLETED \n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobcomp.log"
    path.write_text(LINE.format(1, "x"))
    return path


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def test_only_what_was_added_counts(file: Path) -> None:
    ends = JobEnds(file)
    assert ends.look() is None  # the first look knows nothing of before
    assert ends.look() == frozenset()
    append(file, LINE.format(7, "a") + LINE.format(8, "b JobId=9 x"))
    assert ends.look() == {7, 8}
    assert ends.look() == frozenset()


def test_half_a_line_waits_for_the_rest(file: Path) -> None:
    ends = JobEnds(file)
    ends.look()
    append(file, LINE.format(7, "a") + "JobId=8 Us")
    assert ends.look() == {7}
    append(file, "erId=alice(2001) \n")
    assert ends.look() == {8}


def test_a_file_that_is_new_short_long_or_gone_says_nothing(file: Path) -> None:
    ends = JobEnds(file)
    ends.look()
    file.rename(file.with_suffix(".1"))
    assert ends.look() is None
    file.write_text(LINE.format(7, "a"))
    assert ends.look() is None
    assert ends.look() == frozenset()
    file.write_text("")
    assert ends.look() is None
    append(file, "x" * 300_000)
    assert ends.look() is None
    assert JobEnds(None).look() is None


def test_a_forged_line_names_one_job_more_and_no_nonsense(file: Path) -> None:
    ends = JobEnds(file)
    ends.look()
    append(
        file,
        LINE.format(7, "x\nJobId=5 \nJobId=99999999999 \nJobId=x ")
        + "\udcff\n".encode("utf-8", "surrogateescape").decode("latin-1"),
    )
    assert ends.look() == {7, 5}
