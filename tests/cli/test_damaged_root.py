"""Something else stands where the program keeps its files: one error with a code of the table; never a crash."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract import harness
from tests.contract.cases import ROOT
from tests.ground.test_docs import rows
from tests.wheelhouse.test_odd_places import without_powers

VIEW = "wheelhouse/views/host-cpu-t-cp311"
ENTRY = "wheelhouse/store/62/627fc8f38202dd23503ae27e02bb786570d38ade36140a267fc4d7c3c94405d6"
BROKEN = "build/broken/cd890238510f9551c6dd82392111b885d1b3a53859909f436f3e23df27bae9e9"
KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("in the way\n"),
    "empty": Path.touch,
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "folder": Path.mkdir,
    "nowhere": lambda path: path.symlink_to("/dev/null/nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.unpack(tmp_path_factory.mktemp("damaged"))


def damage(path: Path, kind: str) -> None:
    """Put something else there; "locked": nobody but a superuser may look at it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "locked":
        path.chmod(0)
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def run(place: Path, command: str) -> harness.Outcome:
    """Run a command in a process of its own, held to the modes of files as any user is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            without_powers()
            done = harness.run(place, [*ROOT, *command.split()])
            os.write(writing, json.dumps([done.exit_code, done.stdout, done.stderr]).encode())
        finally:
            os._exit(0)  # never on into the rest of the tests
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    code, out, err = json.loads(said)
    return harness.Outcome(exit_code=code, stdout=out, stderr=err)


@pytest.mark.parametrize(
    ("where", "kind", "command", "code"),
    [
        ("build", "file", "build broken", 4),
        ("build/tiny", "file", "all tiny", 4),
        ("build/tiny", "nowhere", "build tiny", 4),
        ("build", "locked", "build broken", 4),
        ("sources", "file", "build broken", 4),
        ("sources", "nowhere", "build broken", 4),
        ("runs", "file", "all tiny", 4),
        ("wheelhouse", "file", "all tiny", 4),
        ("wheelhouse", "file", "wheelhouse list", 4),
        ("wheelhouse/store", "file", "build broken", 4),
        ("wheelhouse/store", "nowhere", "all tiny", 4),
        ("wheelhouse/store", "loop", "wheelhouse inspect tiny", 4),
        ("wheelhouse/store/62", "nowhere", "all tiny", 4),
        (f"{ENTRY}/audit.json", "nowhere", "all tiny", 4),
        (f"{ENTRY}/key.json", "locked", "wheelhouse export {root}/out.tar --without-spark-build", 4),
        (f"{ENTRY}/record.json", "bytes", "wheelhouse gc", 10),
        (f"{ENTRY}/record.json", "folder", "all tiny", 10),
        (f"{VIEW}/current", "bytes", "wheelhouse list", 10),
        (f"{VIEW}/current", "folder", "all tiny", 10),
        (f"{VIEW}/generations/2/manifest.json", "locked", "wheelhouse list", 4),
        (f"{VIEW}/generations/2/manifest.json", "empty", "wheelhouse list", 10),
        (f"{VIEW}/lock", "folder", "wheelhouse rollback 1", 4),
        (f"{VIEW}/lock", "nowhere", "wheelhouse rollback 1", 4),
        (f"{BROKEN}/build.log", "folder", "log broken", 4),
        ("../spark-build.toml", "folder", "plan tiny", 2),
        ("../spark-build.toml", "locked", "plan tiny", 2),
        ("../spark-build.toml", "nowhere", "plan tiny", 2),
        ("../spark-build.toml", "pipe", "plan tiny", 2),
        ("../spark-build.toml", "endless", "plan tiny", 2),
        ("recipes/tiny.toml", "folder", "plan tiny", 3),
        ("recipes/tiny.toml", "locked", "plan tiny", 3),
        ("../k.pub", "folder", "wheelhouse trust add alice {root}/k.pub", 2),
        ("../k.pub", "locked", "wheelhouse trust add alice {root}/k.pub", 2),
    ],
)
def test_one_error_says_what_to_do(
    where: str, kind: str, command: str, code: int, place: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "place"
    shutil.copytree(place, copy, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
    if kind == "locked" and where.startswith("../"):
        (copy / "root" / where).touch()
    damage(copy / "root" / where, kind)
    done = run(copy, command)
    told = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.exit_code == code, done
    assert str(code) in {each for row in rows("Exit codes") for each in row[0].split(", ")}
    assert len(told) == 1, done
    assert "next: " in done.stderr or code in (2, 3)


def test_what_may_not_be_read_is_told_beside_the_rest(place: Path, tmp_path: Path) -> None:
    """A sound manifest of another user is no reason to stop, and is never written anew."""
    copy = tmp_path / "place"
    shutil.copytree(place, copy, symlinks=True, ignore=shutil.ignore_patterns(".trash"))
    manifest = copy / "root" / VIEW / "generations/2/manifest.json"
    damage(manifest, "locked")
    (copy / "root" / ENTRY / "key.json").unlink()
    for command in ("wheelhouse check", "wheelhouse check --repair"):
        done = run(copy, command)
        assert done.exit_code == 10, done
        assert "no permission" in done.stdout
        assert "a paper of the entry is gone" in done.stdout
        assert manifest.stat().st_mode & 0o777 == 0
