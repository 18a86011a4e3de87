from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.recipes.toml_positions import MOST_TRIED, Path, Positions

SAMPLE = '''\
name = "onnx"  # line 1
"quoted \\u006bey" = 1

[build]
requires = [ # a comment with ] and "
  "a==1",
  "b==2", ["x",
    "y"],
]
text = """
[not.a.table]
key = 'no key' \\""" ]
"""
plain = \'\'\'
[[no]]\'\'\'\'
env.CMAKE_ARGS = { value = "-DX={jobs}", why = "]" }
env."MAX.JOBS".value = "2"

[[components.onnx.sources]]
sha256 = "0"

[[components.onnx.sources]]
sha256 = "1"
[components.onnx.sources.deep]
x = 1
[[components.onnx.sources.more]]
y = 2
[components.onnx]
late = 1
'''

EXPECTED: dict[Path, int] = {
    ("name",): 1,
    ("quoted key",): 2,
    ("build",): 4,
    ("build", "requires"): 5,
    ("build", "requires", 0): 6,
    ("build", "requires", 1): 7,
    ("build", "requires", 2): 7,
    ("build", "requires", 2, 1): 7,  # of what is inside an element its begin
    ("build", "text"): 10,
    ("build", "plain"): 14,
    ("build", "env"): 16,
    ("build", "env", "CMAKE_ARGS"): 16,
    ("build", "env", "CMAKE_ARGS", "why"): 16,
    ("build", "env", "MAX.JOBS", "value"): 17,
    ("components", "onnx", "sources"): 19,
    ("components", "onnx", "sources", 0): 19,
    ("components", "onnx", "sources", 0, "sha256"): 20,
    ("components", "onnx", "sources", 1): 22,
    ("components", "onnx", "sources", 1, "sha256"): 23,
    ("components", "onnx", "sources", 1, "deep", "x"): 25,
    ("components", "onnx", "sources", 1, "more", 0, "y"): 27,
    ("components", "onnx"): 28,  # its own header, not the mention in line 19
    ("components", "onnx", "late"): 29,
    ("components",): 19,
}


@pytest.mark.parametrize("path", EXPECTED, ids=str)
def test_sample(path: Path) -> None:
    text = SAMPLE.replace("[components.onnx]\nlate = 1\n", "")
    tomllib.loads(text)  # the sample is TOML (without the last table, which TOML allows only once)
    assert Positions(SAMPLE).line(path) == EXPECTED[path]


def test_unknown_path_gives_nearest_ancestor() -> None:
    positions = Positions(SAMPLE)
    assert positions.line(("build", "env", "CMAKE_ARGS", "missing")) == 16
    assert positions.line(("components", "onnx", "sources", 1, "url")) == 22
    assert positions.line(("nothing", "here")) == 1
    assert positions.line(()) == 1


def test_windows_line_ends() -> None:
    positions = Positions('a = """x\r\ny"""\r\n[t] # c\r\nb = [\r\n1,\r\n2]\r\n')
    assert [positions.line(path) for path in (("a",), ("t",), ("t", "b", 0), ("t", "b", 1))] == [1, 3, 5, 6]


def test_elements_in_lines_of_their_own() -> None:
    text = "a.b = [1, # ]\n  2, 3,\n\n  # x = [\n  'x = [',\n  { c = 4 }]\nd = 5\n"
    positions = Positions(text)
    assert [positions.line(("a", "b", index)) for index in range(5)] == [1, 2, 2, 5, 6]
    assert positions.line(("a", "b", 4, "c")) == 6
    assert positions.line(("d",)) == 7


def test_quotes_before_closing_quotes() -> None:
    text = 'a = """x\n"""""\nb = \'\'\'\n\'\'\'\'\'\nc = ""\nd = 1\n'
    assert tomllib.loads(text)["a"] == 'x\n""'
    assert [Positions(text).line((key,)) for key in "abcd"] == [1, 3, 5, 6]


def test_a_long_element_is_not_read_again_for_each_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    loads = tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        read.append(len(text))
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    rows = "".join(f"0,{'1,' * 80} {{a=[\n" for _ in range(30)) + "]}" * 30
    positions = Positions("".join(f"k{number} = [\n{rows}\n]\n" for number in range(40)))
    assert positions.line(("k0",)) == 1
    assert sum(read) <= MOST_TRIED


@given(st.text(alphabet="ab.=[]{}\"'#\\\n ,1", max_size=60))
def test_any_text_is_survived(text: str) -> None:
    Positions(text).line(("a", 0))


# Documents with known positions: values first, then one of TOML's ways to write each.
NAMES = st.one_of(st.from_regex("[a-z0-9_-]{1,4}", fullmatch=True), st.text(max_size=5))
TEXTS = st.one_of(
    st.sampled_from(["a = 1\n[b]\n", '"""', "'''", '""', "# no", "]\n}", "\\"]), st.text(max_size=8)
)
SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


class Writer:
    """Writes TOML in styles drawn by hypothesis, and notes the line of every key."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.text = ""
        self.lines: dict[Path, int] = {}
        self.inside: dict[Path, int] = {}  # parts of a value that may have several lines: where that begins

    def choose(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def mark(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def mark_inside(self, path: Path) -> None:
        self.mark(path)
        self.inside[path] = self.inside.get(path[:-1], self.lines[path[:-1]])

    def gap(self) -> None:
        self.text += self.choose("", " ", "\n", " # ] a = '\n", "\n\n")

    def key(self, name: str) -> str:
        bare = bool(name) and name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()
        literal = name.isprintable() and "'" not in name
        return str(self.choose(*([name] if bare else []), *([f"'{name}'"] if literal else []), basic(name)))

    def string(self, value: str) -> str:
        safe = value.replace("\n", "").isprintable()
        # TOML drops a newline right after the opening quotes: ours, so that the value keeps its own.
        options = [basic(value), '"""\n' + basic(value)[1:-1].replace("\\n", "\n") + '"""']
        if safe and "\n" not in value and "'" not in value:
            options.append(f"'{value}'")
        if safe and "'''" not in value and not value.endswith("'"):
            options.append("'''\n" + value + "'''")
        return str(self.choose(*options))

    def value(self, path: Path, value: Any) -> None:
        if isinstance(value, list):
            self.text += "["
            for index, item in enumerate(value):
                self.gap()
                self.mark_inside((*path, index))
                self.value((*path, index), item)
                self.gap()
                self.text += "," if index + 1 < len(value) or self.choose(True, False) else ""
            self.gap()
            self.text += "]"
        elif isinstance(value, dict):
            self.text += "{"
            for index, (name, item) in enumerate(value.items()):
                self.text += ", " if index else " "
                self.mark_inside((*path, name))
                self.text += f"{self.key(name)} = "
                self.value((*path, name), item)
            self.text += " }"
        else:
            self.text += (
                self.string(value) if isinstance(value, str) else json.dumps(value).replace("Infinity", "inf")
            )

    def table(self, path: Path, prefix: str, table: dict[str, Any]) -> None:
        """Plain pairs first, as TOML demands, then tables and arrays of tables below their own headers."""
        later: list[tuple[str, Any]] = []
        for name, value in table.items():
            tables = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
            if (tables or isinstance(value, dict)) and self.choose(True, False):
                later.append((name, value))
                continue
            self.mark((*path, name))
            if isinstance(value, dict) and value and self.choose(True, False):
                self.dotted((*path, name), value)
                continue
            self.text += f"{self.key(name)} {self.choose('=', '  =')} "
            self.value((*path, name), value)
            self.text += self.choose("\n", " # a comment = [\n", "\n\n")
        for name, value in later:
            inner = f"{prefix}{self.key(name)}"
            self.mark((*path, name))
            if isinstance(value, dict):
                self.text += f"[{inner}]\n"
                self.table((*path, name), f"{inner}.", value)
            for index, item in enumerate(value if isinstance(value, list) else []):
                self.mark((*path, name, index))
                self.text += f"[[ {inner} ]] # [\n"
                self.table((*path, name, index), f"{inner}.", item)

    def dotted(self, path: Path, table: dict[str, Any]) -> None:
        for name, value in table.items():
            self.mark((*path, name))
            self.text += f"{self.key(str(path[-1]))}{self.choose('.', ' . ')}{self.key(name)} = "
            self.value((*path, name), value)
            self.text += "\n"


def basic(text: str) -> str:
    """A TOML basic string: JSON's escapes, without surrogate pairs."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" if c != "\n" else "\\n" for c in escaped)
        + '"'
    )


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.data())
def test_every_key_is_found(document: dict[str, Any], data: st.DataObject) -> None:
    writer = Writer(data)
    writer.table((), "", document)
    assert tomllib.loads(writer.text) == document  # else the writer is wrong, not the scanner
    positions = Positions(writer.text)
    found = {path: positions.line(path) for path in writer.lines}
    exact = writer.lines.keys() - writer.inside.keys()
    assert {path: found[path] for path in exact} == {path: writer.lines[path] for path in exact}
    assert all(begin <= found[path] <= writer.lines[path] for path, begin in writer.inside.items())
