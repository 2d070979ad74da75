"""Any slurm.conf is read as Slurm's own parser reads it, and edited so that this parser agrees."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import slurm_parser
from hypothesis import event, given
from hypothesis import strategies as st

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conf_grammar import pairs_of, unquoted
from slurm_gpu_aware.slurm.conffile import (
    REPEATED,
    ConfFiles,
    edit_settings,
    take_back_settings,
)

KEYS = ("Licenses", "licenses", "MaxJobCount", "SchedulerParameters", "Prolog", "ClusterName")
FILES = ("a.conf", "b/C1.conf", "c1.conf", "none.conf")
BITS = (
    "a:1",
    "b",
    ",",
    "=",
    "x y",
    "\\",
    "\\\\",
    "\\#",
    "#",
    '"',
    '""',
    "é",
    "/p.d/*",
    "\x0b",
    "%",
)
END = ("\n", "\n", "\n", "\r\n", "\\\n", " \\ \t\n", "\\ # c\n", " # c \\\n", ",\\\r\n", "")

word = st.lists(st.sampled_from(BITS), min_size=1, max_size=3).map("".join)
plain = st.lists(st.sampled_from(("a:1", "b", "c=3", "/d")), min_size=1, max_size=3).map(",".join)
value = st.one_of(plain, plain, plain.map('"{}"'.format), word)
sign = st.sampled_from(("=", "=", "=", " = ", "+=", "\t="))
pair = st.tuples(st.sampled_from(KEYS), sign, value).map("".join)
node = st.lists(st.tuples(st.sampled_from(("Gres", "CPUs", "Feature")), sign, value).map("".join))
line = st.one_of(
    pair,
    pair,
    pair,
    pair.map("  {}".format),
    node.map(lambda pairs: " ".join(["NodeName=n1", *pairs])),
    st.sampled_from((*FILES, "%c.conf", "b/%c.conf")).map("Include {}".format),
    word,
    st.just(""),
)
text = st.lists(st.tuples(line, st.sampled_from(END)).map("".join), max_size=6).map("".join)
setting = st.tuples(
    st.sampled_from(KEYS[:5]),
    st.sampled_from(("=", " = ")),
    plain,
    st.sampled_from(("\n", "\r\n", ",\\\nz\n", " # c\n")),
).map("".join)
other = st.sampled_from(("\n", "# c\r\n", "NodeName=n1 Gres=gpu:2\n"))
include = st.sampled_from(("include a.conf\n", "Include b/C1.conf # c\r\n"))
last = st.sampled_from(("", "MaxJobCount=7", "# end", "Prolog=/x,\\"))


def files_of(line: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(line, max_size=6).map("".join), last).map("".join)


class Folder:
    """Files in a folder, and what the parser of Slurm reads there."""

    def __init__(self, root: str, main: str, others: Mapping[str, str]) -> None:
        self.root = Path(root)
        (self.root / "b").mkdir()
        self.write({self.root / "slurm.conf": main})
        self.write({self.root / name: text for name, text in others.items()})

    def write(self, texts: Mapping[Path, str]) -> None:
        for path, text in texts.items():
            path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def conf(self) -> ConfFiles:
        return ConfFiles(self.root / "slurm.conf")

    def by_slurm(self) -> dict[str, list[str]]:
        def file(name: str) -> bytes:
            path = self.root / name
            if not path.exists():
                raise slurm_parser.FatalError(name)
            return path.read_bytes()

        return slurm_parser.read("slurm.conf", file)

    def by_us(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for record in self.conf().read():
            pairs = [(key.lower(), unquoted(value)) for key, value in pairs_of(record)[0]]
            if pairs:
                key, value = pairs[0]
                if key == "nodename":
                    value = " ".join(f"{name}={of}" for name, of in pairs)
                known = found.get(key, []) if key in slurm_parser.ARRAYS else []
                found[key] = [*known, value]
        return found

    def bytes(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob("*.conf")}


@given(main=text, others=st.fixed_dictionaries({}, optional=dict.fromkeys(FILES[:3], text)))
def test_reading_is_slurms(main: str, others: dict[str, str]):
    with tempfile.TemporaryDirectory() as root:
        folder = Folder(root, main, others)
        try:
            wanted = folder.by_slurm()
        except slurm_parser.FatalError:
            event("refused")
            try:
                got = folder.by_us()
            except SourceError:
                return
            raise AssertionError(f"Slurm refuses this, and we read {got}") from None
        assert folder.by_us() == wanted


@given(
    main=files_of(st.one_of(setting, setting, other, include)),
    others=st.fixed_dictionaries(dict.fromkeys(FILES[:2], files_of(st.one_of(setting, other)))),
    wanted=st.dictionaries(st.sampled_from(KEYS), plain, min_size=1),
)
def test_an_edit_is_read_by_slurm_and_goes_without_a_trace(
    main: str, others: dict[str, str], wanted: dict[str, str]
):
    wanted = {key: value for key, value in wanted.items() if key != "licenses"}
    with tempfile.TemporaryDirectory() as root:
        folder = Folder(root, main, others)
        first, before, read = folder.bytes(), folder.conf(), folder.by_slurm()
        folder.write(edit_settings(before, wanted))
        after = folder.by_slurm()
        for key, value in wanted.items():
            old = read.get(key.lower(), [])
            if key.lower() in REPEATED and value not in old:
                assert sorted(after[key.lower()]) == sorted([*old, value])
            else:
                assert after[key.lower()][-1:] == [value] or value in old
        untouched = {key: value for key, value in read.items() if key not in map(str.lower, wanted)}
        assert untouched.items() <= after.items()
        assert set(after) == set(read) | {key.lower() for key in wanted}
        assert edit_settings(folder.conf(), wanted) == {}
        ours = {key.lower(): value for key, value in wanted.items()}

        def of_site(key: str, value: str) -> str | None:
            if ours.get(key) != value:
                return value
            old = read.get(key, [])
            return (value if value in old else None) if key in REPEATED else (old or [None])[0]

        folder.write(take_back_settings(folder.conf(), of_site, before))
        assert folder.by_slurm() == read
        if not ours.items() & {(key, value) for key, value, _ in before.settings()}:
            event("to the byte")
            assert folder.bytes() == first
