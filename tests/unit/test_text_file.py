"""Text files of users: compression, size, encoding, CSV, JSON; one sentence per fault."""

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest

from slurm_gpu_aware import text_file
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import BadRow, csv_records, parse_json, read_table, read_text


def test_a_gzip_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress("é,1\n".encode("utf-8-sig")))
    assert read_text(file) == "é,1\n"
    assert read_text(io.BytesIO(file.read_bytes())) == "é,1\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_bounded_after_decompression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(text_file, "MAX_BYTES", 1 << 20)
    file = tmp_path / "bomb"
    text = b"x" * (1 << 20)
    for data, fits in ((text, True), (text + b"x", False)):
        file.write_bytes(gzip.compress(data, mtime=0) if compressed else data)
        if fits:
            assert len(read_text(file)) == 1 << 20
        else:
            with pytest.raises(SourceError, match="bomb: larger than 1 MiB"):
                read_text(file)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bz2.compress(b"x"), "compressed with bzip2"),
        (lzma.compress(b"x"), "compressed with xz"),
        (b"\x28\xb5\x2f\xfd\x00", "compressed with zstd"),
        (b"PK\x03\x04....", "compressed with zip"),
        (gzip.compress(b"x" * 9000, mtime=0)[:20], "damaged gzip file"),
        (b"\x1f\x8b\x08junk", "damaged gzip file"),
        (b"a\nb\xff\n", "line 2: not UTF-8 text"),
        (b"a\n\nb\0\n", "line 3: NUL byte: not a text file"),
    ],
)
def test_a_file_without_text_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(data)
    with pytest.raises(SourceError, match=f"f: {reason}"):
        read_text(file)


def test_users_texts_may_be_anything_where_that_is_said() -> None:
    assert read_text(io.BytesIO(b"a\xff\0"), errors="replace") == "a\ufffd\ufffd"


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        read_text(tmp_path)
    with pytest.raises(SourceError, match="none: cannot be read: No such file"):
        read_text(tmp_path / "none")


def test_rows_have_their_cells_and_lines_as_an_editor_counts_them() -> None:
    table = read_table("t", '# times\n a ,b\r\n\n1,2\n"x\ny", 2.5\u2028\n#3,4\n5\n,,\n1,2,3\n')
    assert table.columns == ("a", "b")
    assert [(row.line, row.cells) for row in table.rows] == [
        (4, {"a": "1", "b": "2"}),
        (6, {"a": "x\ny", "b": "2.5"}),
    ]
    assert table.bad_rows == (
        BadRow(8, "1 cells, expected 2"),
        BadRow(10, "3 cells, expected 2"),
    )
    assert read_table("t", "").columns == ()


def test_a_row_is_checked_cell_by_cell() -> None:
    table = read_table("t", "a,b\n1,x\n,2\n3,1.5\n4,nan\n5,6\n")
    good, bad = table.parse(lambda row: (row.text("a"), row.count("b")))
    assert good == [("5", 6)]
    assert bad == [
        (2, "b is 'x': not a number", "line"),
        (3, "a is empty", "line"),
        (4, "b is '1.5': not a whole number", "line"),
        (5, "b is 'nan': not a finite number", "line"),
    ]
    with pytest.raises(SourceError, match=r"^t: no column 'c', 'd'; expected a,c,d or so$"):
        table.require("a", "c", "d", hint=" or so")
    with pytest.raises(SourceError, match=r"^t: column 'a' occurs twice$"):
        read_table("t", "a,b,a\n").require("a")


@pytest.mark.parametrize("bad", [f"1,{'x' * 200_000}\n", '1,"never closed\n' + "2,3\n" * 9])
def test_invalid_csv_is_an_error_with_its_line(bad: str) -> None:
    with pytest.raises(SourceError, match=r"^t: line \d+: not CSV: "):
        list(csv_records(io.StringIO(f"a,b\n{bad}"), "t"))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000, "1" * 5000])
def test_invalid_json_is_an_error(text: str) -> None:
    with pytest.raises(SourceError, match=r"^t: not JSON: "):
        parse_json(text, "t")
