"""Every command line that we print or document is one that can be typed: found in the text, not listed here."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from spark_build.cli.lazy_group import COMMANDS
from spark_build.cli.main import cli
from spark_build.recipes.loader import Catalogue, load

ROOT = Path(__file__).resolve().parents[2]
FIELD = "\0"  # stands for what an f-string puts in
MINE = "mine"  # the recipe of the reader's own, in docs
# Documents that are read on any machine, and made in Python.
PAGES = ("spark_build/measure/report/suite_report.py", "spark_build/authoring/scaffold.py")

# Not after a path or an option's value, but as ./spark-build and from an environment.
OURS = re.compile(r"(?<![\w./:@=\[-])(?:\./|~/spark-build/bin/|\.venv/bin/)?spark-build (?P<rest>[^\n`]*)")
# What ends a line that stands in a sentence or has a remark behind it.
END = re.compile(r"  |;|,(?=\s|$)| \(|\)| #|(?<!\.)[.:](?=\s|$)|<|\||\"|\\|&&|>")
GROUPS = [name for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)]
# `wheelhouse export FILE` in prose; `build requirement` is none
SPAN = re.compile(
    rf"`(?P<rest>(?:{'|'.join(GROUPS)}) [^`\n]*|(?:{'|'.join(COMMANDS)}) [^`\n]*(?:--|[A-Z])[^`\n]*)`"
)


@dataclass(frozen=True)
class Line:
    """One command line, and where it is printed."""

    place: str
    rest: str
    told: bool = False  # "the next thing to type": has to be a command

    def __str__(self) -> str:
        return f"{self.place}: spark-build {self.rest}".replace(FIELD, "{}")


def lines_in(text: str, place: str) -> Iterator[Line]:
    """The command lines in a text; prose about spark-build is none."""
    for match in OURS.finditer(text):
        rest = END.split(match["rest"])[0].strip()
        first = rest.lstrip(FIELD).split(" ")[0]
        if first in COMMANDS or rest.startswith("-"):
            yield Line(f"{place}:{text[: match.start()].count(chr(10)) + 1}", rest)


def text_of(node: ast.AST) -> str:
    """A string expression as one text, FIELD for what is put in; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return FIELD
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return (left or FIELD) + (right or FIELD) if left or right else ""
    return ""


def step_of(node: ast.AST) -> str | None:
    """The words of ours(...), options first and FIELD for what is put in; None for anything else."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "ours":
        return None
    options = [one.value for one in node.keywords if one.arg == "options"]
    said = [word for one in options if isinstance(one, ast.Tuple) for word in one.elts]
    return " ".join(text_of(word) or FIELD for word in (*said, *node.args))


def of_python(file: Path) -> Iterator[Line]:
    """The command lines in the strings of a module, each string whole, and in its hints."""
    place = str(file.relative_to(ROOT))

    def visit(node: ast.AST) -> Iterator[Line]:
        here = f"{place}:{getattr(node, 'lineno', 0)}"
        if (step := step_of(node)) is not None:
            yield Line(here, step, told=True)
        elif text := text_of(node):
            yield from lines_in(text, here)
            yield from (Line(here, END.split(span["rest"])[0].strip()) for span in SPAN.finditer(text))
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    yield from visit(ast.parse(file.read_text()))


def without_docstrings(file: Path) -> ast.AST:
    """A module's syntax tree without strings that stand alone."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return tree


def of_text(file: Path) -> Iterator[Line]:
    """The command lines in a page, a script or a recipe; those in `...` may leave our name out."""
    text, place = file.read_text(), str(file.relative_to(ROOT))
    if file.parent.name == "templates":
        text = re.sub(r"\{%.*?%\}", "", re.sub(r"\{\{.*?\}\}", FIELD, text))
    yield from lines_in(text, place)
    if file.suffix == ".md":
        for match in SPAN.finditer(text):
            yield Line(f"{place}:{text[: match.start()].count(chr(10)) + 1}", match["rest"])


def printed() -> list[Line]:
    """All of them: hints, fixes, help texts, INSTALL.txt, what measured environments print, pages, scripts."""
    python = [*ROOT.glob("spark_build/**/*.py"), *ROOT.glob("bench/*.py"), *ROOT.glob("bench/checks/*.py")]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md")]
    others = [
        *ROOT.glob("recipes/**/*.toml"),
        *ROOT.glob("spark_build/templates/*"),
        ROOT / "spark-build",
        ROOT / "run-tests",
        ROOT / "tools/setup.sh",
    ]
    found = [line for file in sorted(python) for line in of_python(file)]
    return found + [line for file in sorted([*pages, *others]) for line in of_text(file)]


def is_open(word: str) -> bool:
    """Whether the reader or the program fills this in: NAME, {...}, [RECIPE...], A=..., <name>."""
    return FIELD in word or "..." in word or word.strip("'\"[]<>").replace("-", "").split("=")[0].isupper()


class Judge:
    """Says what is wrong with a line, by the real commands and recipes."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._recipes = {*catalogue.recipes, MINE, "markupsafe"}  # docs/journeys.md makes a recipe of it
        self._known = {"target": {*catalogue.targets, "auto"}, "train": set(catalogue.trains)}

    def wrong(self, line: Line) -> str:
        """The mistake; "" for none."""
        text = line.rest.replace("[", "").replace("]", "") if "`" not in line.rest else line.rest
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        # An f-string may put options before the command: spark-build {view}verify
        words = [word.lstrip(FIELD) or FIELD if word.lstrip(FIELD) in COMMANDS else word for word in words]
        command: click.Command = cli
        # A command keeps the help option of the first context it is asked in: every test needs the same.
        context = click.Context(cli, info_name="spark-build", **cli.context_settings)
        is_own = "--root" in words  # a root of the reader's own has its own recipes, trains and targets
        while True:
            try:
                values, words, _ = command.make_parser(context).parse_args(args=words)
            except click.UsageError as error:
                return error.format_message()
            problem = next(
                filter(
                    None,
                    (self._value(one, values.get(str(one.name)), is_own=is_own) for one in command.params),
                ),
                "",
            )
            if problem:
                return problem
            if not isinstance(command, click.Group):
                return (
                    f"too many arguments: {' '.join(words)}"
                    if [one for one in words if not is_open(one)]
                    else ""
                )
            if not words:
                return "no command" if line.told and command is cli else ""
            if is_open(words[0]):
                return ""
            inner = command.get_command(context, words[0])
            if inner is None:
                return f"no command {words[0]!r}"
            command, words, context = (
                inner,
                words[1:],
                click.Context(inner, parent=context, info_name=words[0]),
            )

    def _value(self, parameter: click.Parameter, value: object, *, is_own: bool) -> str:
        """What is wrong with the value of an option or argument; "" for none."""
        words = [
            one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, str)
        ]
        named = {"recipes", "recipe"} if isinstance(parameter, click.Argument) else {"source"}
        for word in (one for one in words if not is_open(one)):
            if isinstance(parameter.type, click.Choice) and word not in parameter.type.choices:
                return f"{parameter.name} cannot be {word}"
            if is_own:
                continue
            if parameter.name in named and word.partition("=")[0] not in self._recipes:
                return f"no recipe is named {word}"
            if word not in self._known.get(str(parameter.name), {word}):
                return f"no {parameter.name} is named {word}"
        return ""


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(load((ROOT,)))


def test_every_printed_command_line_can_be_typed(judge: Judge) -> None:
    found = printed()
    assert len(found) > 150  # else the search itself is broken
    assert [f"{line}: {why}" for line in found if (why := judge.wrong(line))] == []


@pytest.mark.parametrize(
    "text",
    [
        "biuld", "build pytorch", "plan --tragets gb10", "plan --target gb11", "wheelhouse lst",
        "verify --burn", "all --stop-after compile", "--train 1.0 all", "bench run onnx",
    ],
)  # fmt: skip
def test_mistakes_are_seen(text: str, judge: Judge) -> None:
    assert judge.wrong(Line("here", text, told=True))


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ("raise E('x', hint=ours('build pytorch'))", "build pytorch"),
        ("raise E('x', hint=Hint('x: ', ours('build', name), '  (goes on)'))", f"build {FIELD}"),
        (
            "fix = ours('all', options=('--target', name, '--train', '2.13'))",
            f"--target {FIELD} --train 2.13 all",
        ),
        ("fix = ours('all', options=options_of(view))", "all"),
        ("again = ours('env create', folder, *state.asked)", f"env create {FIELD} {FIELD}"),
        ("print('next: ' f'spark-build {view}verify')", f"{FIELD}verify"),
        ("print('run `spark-build doctor`, it helps')", "doctor"),
    ],
)
def test_lines_are_found_in_modules(
    source: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cli.test_printed_commands.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(source)
    assert [line.rest for line in of_python(tmp_path / "module.py")] == [rest]


def test_only_the_command_line_writes_command_lines() -> None:
    """Below it a line is a value, that `--root`, `--target` and how the program was called are put to."""
    below = [
        file
        for file in sorted(ROOT.glob("spark_build/**/*.py"))
        if file.parent.name != "cli" and str(file.relative_to(ROOT)) not in PAGES
    ]
    found = [
        str(line)
        for file in below
        for node in ast.walk(without_docstrings(file))
        if (text := text_of(node))
        for line in lines_in(text, str(file.relative_to(ROOT)))
    ]
    assert len(below) > 100
    assert found == []
