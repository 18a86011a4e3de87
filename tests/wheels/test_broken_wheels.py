"""No broken wheel gets through, and none makes a reader fall: each has its own finding or one clear refusal."""

from __future__ import annotations

import hashlib
import json
import resource
import time
from pathlib import Path

import pytest

from spark_build.errors import AuditError
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheels.audit import audit
from spark_build.wheels.reader import content_digest, facts_and_digest
from spark_build.wheels.repair import symbol_policies, system_libraries
from spark_build.wheels.rules import AuditExpectation
from tests.conftest import PROJECT, RECIPE, Root, make_root
from tests.helpers import broken_libraries, broken_texts, broken_zips
from tests.helpers.corpus import CASES, MACHINE, sound
from tests.helpers.wheelhouse import home_in, publish, put_built
from tests.helpers.wheels import PYTHON

PLATFORM = f"linux-{MACHINE}"
MODULES = (broken_texts, broken_zips, broken_libraries)  # importing one fills CASES


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workshop")


def errors(wheel: Path) -> list[str]:
    """What forbids publishing; a wheel that cannot be read has one reason."""
    try:
        facts, _ = facts_and_digest(wheel)
    except AuditError as error:
        return [error.message]
    found = audit(
        facts,
        AuditExpectation(
            distribution="demo",
            version="1.0",
            platform=PLATFORM,
            python=PYTHON,
            provided=(),
            system_libraries=system_libraries(PLATFORM),
            policies=symbol_policies(PLATFORM),
        ),
    )
    return [f"{one.rule}: {one.message}" for one in found if one.severity == "error"]


def test_the_wheel_that_they_are_made_from_is_sound(tmp_path: Path, workshop: Path) -> None:
    assert errors(sound(tmp_path, workshop)) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", CASES)
def test_a_broken_wheel_is_refused(name: str, tmp_path: Path, workshop: Path) -> None:
    wheel = CASES[name].make(tmp_path, workshop)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = errors(wheel)
    assert any(CASES[name].say in one for one in found), found
    assert not any("\n" in one for one in found)
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    try:
        content_digest(wheel)  # what `wheelhouse import` and the closure ask first
    except AuditError as error:
        assert "\n" not in error.message  # noqa: PT017


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 25


# --- by the command line ------------------------------------------------------------------------------
REPACK = """\
name = "tiny"
distribution = "demo"
summary = "a vendor's wheel"
kind = "repack"

[build]
disk_mib = 50
{prefix}"""
PREFIX = '\n[prefix]\ncopy = { "demo" = "include" }\n'
TRAIN = """\
name = "t"
summary = "a train for tests"

[components.tiny]
version = "1.0"
sources = [{{ kind = "wheel", project = "demo", filename = "{filename}", sha256 = "{sha256}" }}]
"""


def vendor(tmp_path: Path, wheel: Path, prefix: str = "") -> Root:
    """A root whose recipe repacks this wheel."""
    root = make_root(tmp_path)
    root.recipe(REPACK.format(prefix=prefix))
    root.train(TRAIN.format(filename=wheel.name, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest()))
    return root


def refused(root: Root) -> str:
    """What the command says; nothing may have been published."""
    done = root.run("--json", "build", "tiny")
    assert done.returncode == AuditError.exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(root.folder.glob("wheelhouse/store/*/*/record.json"))
    assert not list(root.folder.glob("wheelhouse/views/*/current"))
    return done.stdout + done.stderr


def test_a_sound_wheel_is_repacked(tmp_path: Path, workshop: Path) -> None:
    root = vendor(tmp_path, sound(tmp_path / "links", workshop), PREFIX)
    assert [row["status"] for row in root.json("build", "tiny")["results"]] == ["built"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("wrong RECORD hash", ""),
        ("a name that climbs out", ""),
        ("a symbolic link", ""),
        ("a foreign library", ""),
        ("text relocations", ""),
        ("a real bomb that lies", ""),
        ("the driver bundled", ""),
        ("truncated", PREFIX),
        ("a file named like a folder", ""),
        ("overlapping entries", PREFIX),
        ("a wrong CRC", PREFIX),
    ],
)
def test_no_broken_wheel_is_published(name: str, prefix: str, tmp_path: Path, workshop: Path) -> None:
    wheel = CASES[name].make(tmp_path / "links", workshop)
    assert json.dumps(CASES[name].say)[1:-1] in refused(vendor(tmp_path, wheel, prefix))


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("a file named like a folder", "cannot be written: "),
        ("a name that climbs out", "holds the unsafe name 'demo/../../evil.py'"),
    ],
)
def test_no_prefix_is_made_of_what_cannot_be_a_file(
    name: str, say: str, tmp_path: Path, workshop: Path
) -> None:
    assert say in refused(vendor(tmp_path, CASES[name].make(tmp_path / "links", workshop), PREFIX))
    assert not list(tmp_path.rglob("evil.py"))


def test_what_a_build_itself_spoils_is_not_published(tmp_path: Path) -> None:
    flags = 'ext_modules=[Extension("tiny._native", ["native.c"], extra_link_args=["-Wl,-z,execstack"])]'
    setup = PROJECT["setup.py"].replace('ext_modules=[Extension("tiny._native", ["native.c"])]', flags)
    assert flags in setup
    root = make_root(tmp_path, {**PROJECT, "setup.py": setup})
    root.recipe(RECIPE.format(disk=50))
    assert "executable-memory: tiny/_native" in refused(root)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "name", ["wrong RECORD hash", "a name that climbs out", "the same name twice", "a folder with content"]
)
def test_no_broken_wheel_is_imported(name: str, tmp_path: Path, workshop: Path) -> None:
    elsewhere = home_in(tmp_path / "elsewhere")
    wheel = CASES[name].make(tmp_path, workshop)
    sent = publish(elsewhere, [put_built(elsewhere.store, wheel)])
    write_archive(pack(sent, elsewhere.store), tmp_path / "wheels.tar")
    root = make_root(tmp_path)
    done = root.run("wheelhouse", "import", "--unsigned", str(tmp_path / "wheels.tar"))
    assert done.returncode == AuditError.exit_code, done.stdout + done.stderr
    assert CASES[name].say.removeprefix("record: ") in done.stderr
    assert not list(root.folder.glob("wheelhouse/store/*/*/record.json"))
    assert not list(root.folder.glob("wheelhouse/views/*/current"))
