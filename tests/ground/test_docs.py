"""The pages are a site whose links lead somewhere, and say the truth about exit codes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_build import errors
from spark_build.cli.main import cli
from tests.contract.harness import commands

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *DOCS.glob("**/*.md"),
    *ROOT.glob("recipes/*.md"),
    *ROOT.glob("tests/data/*/*.md"),
]
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that links to headings of a page may have, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    """The links of a page that are no URL."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))):
        if not re.match(r"[a-z]+:", link):
            yield link


def is_there(page: Path, link: str) -> bool:
    """Whether a relative link leads to a file and, in a page of ours, to a heading."""
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    return target.is_file() and (not anchor or anchor in anchors(target))


def test_links_between_pages_lead_somewhere() -> None:
    found = [(page, link) for page in PAGES for link in links(page)]
    assert len(found) > 50  # else the search itself is broken
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in found if not is_there(page, link)] == []


def test_the_architecture_names_what_is_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    pairs = [
        (file, name)
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", text)
        for name in re.findall(r"\w+", names)
    ]
    assert len(pairs) > 30  # else the search itself is broken

    def defined(file: str) -> set[str]:
        tree = ast.parse((ROOT / "spark_build" / file).read_text())
        return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    assert [(file, name) for file, name in pairs if name not in defined(file)] == []


def test_pages_that_programs_name_are_there() -> None:
    files = [*ROOT.glob("spark_build/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("recipes/**/*.*")]
    named = {
        (str(file.relative_to(ROOT)), page)
        for file in [*files, *ROOT.glob("tools/*"), ROOT / "CONTRIBUTING.md"]
        if file.is_file()
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text())
    }
    assert len(named) > 10
    assert [(file, page) for file, page in named if not (ROOT / page).is_file()] == []


def test_every_page_has_one_place_in_the_site() -> None:
    listed = re.findall(r"^(?:.* <)?([\w/.-]+)>?$", "".join(found["text"] for found in trees()), re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob("**/*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)


def trees() -> Iterator[re.Match[str]]:
    for found in FENCE.finditer((DOCS / "index.md").read_text()):
        if found["language"] == "{toctree}":
            yield found


def rows(heading: str) -> list[list[str]]:
    """The table of docs/exit-codes.md below a heading, without its head."""
    text = (DOCS / "exit-codes.md").read_text().partition(f"# {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return lines[1:]


def test_the_readme_lists_every_command() -> None:
    table = (ROOT / "README.md").read_text().partition("\n## Commands\n")[2].partition("\n## ")[0]
    listed = [
        set(re.findall(r"[a-z-]+", line.split(" | ")[0]))
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert [words for words in commands() if not any(set(words[:2]) <= row for row in listed)] == []


def kinds(base: type[errors.SparkBuildError]) -> Iterator[type[errors.SparkBuildError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_every_exit_code_is_in_the_table() -> None:
    codes = [int(code) for row in rows("Exit codes") for code in row[0].split(", ")]
    ours = {kind.exit_code for kind in kinds(errors.SparkBuildError) if kind.__module__ == errors.__name__}
    by_signal, head_went_away = {129, 130, 143}, 141
    assert sorted(codes) == sorted({0, 1, *ours, *by_signal, head_went_away})


def module_of(line: str) -> str:
    """The module that has a command: `wheelhouse inspect --cross-check`."""
    command: click.Command = cli
    for word in line.split():
        if isinstance(command, click.Group) and not word.startswith("-"):
            inner = command.get_command(click.Context(command), word)
            assert inner is not None, line
            command = inner
    assert command.callback is not None
    return command.callback.__module__


def test_every_place_of_twelve_is_in_the_table() -> None:
    """Modules of commands, that is; helpers that print it have no command of their own."""
    told = {
        module_of(line) for row in rows("12: nothing was checked") for line in re.findall("`([^`]+)`", row[0])
    }
    files = [file for file in (ROOT / "spark_build/cli").glob("*.py") if file.stem != "hints"]
    places = {
        f"spark_build.cli.{file.stem}" for file in files if "return nothing_checked(" in file.read_text()
    }
    assert told == places


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """With the links between pages; addresses elsewhere are asked for nowhere in the tests."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "cache")]
    done = subprocess.run([*command, DOCS, tmp_path / "site"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "commands.html").read_text()
    for name in cli.list_commands(click.Context(cli)):
        assert f'id="spark-build-{name}"' in page
    assert len(re.findall(r'id="cmdoption-spark-build[a-z-]*-root"', page)) == 1
