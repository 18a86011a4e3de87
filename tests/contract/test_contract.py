"""What users and their scripts rely on: help, documents, exit codes and files of earlier versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.contract import harness, record
from tests.contract.cases import CASES, Case
from tests.ground.test_docs import rows

ACCEPT = (
    "If users shall see this: python -m tests.contract.record {name}, and name the change in CHANGELOG.md."
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.unpack(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prints_what_it_printed(case: Case, place: Path) -> None:
    recorded = json.loads((record.DOCUMENTS / f"{case.name}.json").read_text())
    found = record.outcome_of(case, place)
    different = harness.differences(recorded, found)
    assert not different, "\n".join(["", case.line, *different, ACCEPT.format(name=case.name)])


@pytest.mark.parametrize("command", harness.commands(), ids=harness.help_name)
def test_helps_as_it_helped(command: tuple[str, ...]) -> None:
    name = harness.help_name(command)
    recorded, found = (record.HELP / f"{name}.txt").read_text(), harness.help_of(command)
    if harness.words(recorded) != harness.words(found):  # pytest takes minutes to compare long lists
        different = harness.lines_that_differ(recorded.splitlines(), found.splitlines())
        pytest.fail("\n".join([*different, ACCEPT.format(name=name)]), pytrace=False)


def test_every_command_and_recording_is_compared() -> None:
    assert {file.stem for file in record.HELP.iterdir()} == {
        harness.help_name(each) for each in harness.commands()
    }
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert {file.stem for file in record.DOCUMENTS.iterdir()} == set(names)


# A server, and a script for the shell.
NO_DOCUMENT = {("wheelhouse", "serve"), ("completion",)}


def test_every_command_prints_one_document_alone_and_ends_with_a_code_of_the_table() -> None:
    known, asked = set(harness.commands()), set()
    codes = {int(code) for row in rows("Exit codes") for code in row[0].split(", ")}
    for case in CASES:
        recorded = json.loads((record.DOCUMENTS / f"{case.name}.json").read_text())
        assert recorded["exit_code"] in codes, case.line
        words = [word for word in case.line.split() if not word.startswith("-")]
        asked |= {tuple(words[:count]) for count in (1, 2, 3)} & known if "--json" in case.line else set()
        assert "--json" not in case.line or isinstance(recorded["stdout"], dict), case.line
    groups = {words[:-1] for words in known if words} - {("verify",)}
    assert known - groups - asked == NO_DOCUMENT


@pytest.mark.parametrize("command", harness.commands(), ids=" ".join)
def test_a_wrong_command_line_is_one_document_too(command: tuple[str, ...], place: Path) -> None:
    group = any(other[:-1] == command for other in harness.commands() if other)
    for wrong in (["--no-such-option"], *([[]] if group and command != ("verify",) else [])):
        done = harness.run(place, ["--json", *command, *wrong])
        message = done.stderr.removeprefix("error: ").removesuffix("\n")
        assert done.exit_code == 2
        assert json.loads(done.stdout) == {"error": {"message": message, "exit_code": 2}}


def test_a_wrong_setting_is_one_document_too(place: Path) -> None:
    settings = harness.copied(place) / "spark-build.toml"
    settings.write_text("nothing = 1\n")
    done = harness.run(settings.parent, ["--json", "plan"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["exit_code"]) == (2, 2)


def test_new_fields_are_no_difference_and_lost_ones_are() -> None:
    kept = {"stdout": {"a": 1, "rows": [{"b": "x"}]}, "exit_code": 0}
    more = {"stdout": {"a": 1, "rows": [{"b": "x", "new": 1}], "c": 2}, "exit_code": 0}
    assert harness.differences(kept, more) == []
    assert harness.differences(more, kept) == [
        "stdout.c: was 2, is missing",
        "stdout.rows[0].new: was 1, is missing",
    ]
    assert harness.differences({"n": 0.5}, {"n": 0.5 + 1e-9}) == []
    assert harness.differences({"n": 0.5}, {"n": 0.5001}) == ["n: was 0.5, is 0.5001"]
    assert harness.differences({"n": 1}, {"n": True}) == ["n: was 1, is true"]
    assert harness.differences({"n": "ANY number"}, {"n": 3.5}) == []
    assert harness.differences({"n": "ANY number"}, {"n": "3"}) == ['n: was a number, is "3"']


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan", r"\d+ (BUILD|REUSE|SKIP|BLOCKED)"),
        ("all tiny", r"\d+ (built|reused|skipped).*; generation \d+ in "),
        ("wheelhouse gc --older-than 0d", "nothing to collect"),
        ("wheelhouse rollback", r"generation \d+ is current"),
        ("doctor", r"\d+ checks: "),
    ],
)
def test_quiet_is_one_line(line: str, said: str, place: Path) -> None:
    done = harness.run(harness.copied(place), Case(line=line).arguments(f"-q {line}"))
    assert re.match(said, done.stdout.splitlines()[-1])
    assert line == "doctor" or done.stdout.count("\n") == 1  # doctor: what fails comes first
