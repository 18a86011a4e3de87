"""Runs commands in-process on the recorded root, as on the machine where it was recorded, and says what came of them."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import json
import math
import os
import platform
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click

# The modules in which something is replaced are imported whole and named here only.
from spark_build import __version__, paths, venv
from spark_build import probe as spark_build_probe
from spark_build.cli import main as program
from spark_build.doctor import collect, probe
from spark_build.environments import closure, interpreters
from spark_build.environments.interpreters import Interpreter
from spark_build.machine import Machine
from tests.helpers.machines import Simulated

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
ARCHIVE = DATA / "root.tar.xz"
ANY = "ANY number"
LONGEST = 160  # characters of a value in a message
# Where the root was recorded: its logs and runs name it.
RECORDED = "/tmp/contract-root"
CHECKOUT = HERE.parents[1]
SHARED = ("shipped", "few")  # recipes: no command writes there
# What the root's wheels were built on; the tests' own machine must not matter.
MACHINE = Machine(
    platform="linux-x86_64", python="cp311", cores=2, memory_mib=8000, available_mib=6000, gpus=()
)
TOOLCHAIN = {
    "c++": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "libc": "glibc 2.36",
    "python": "3.11.7 cpython-311-x86_64-linux-gnu",
}
INTERPRETER = Interpreter(
    path="",
    base=os.path.realpath(sys.executable),
    version="3.11.7",
    abi="cp311",
    platform="linux-x86_64",
    markers={
        "implementation_name": "cpython",
        "implementation_version": "3.11.7",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "6.1.0",
        "platform_system": "Linux",
        "platform_version": "1",
        "python_full_version": "3.11.7",
        "python_version": "3.11",
        "sys_platform": "linux",
    },
)
NOW = 1_800_000_000.0  # long after the root was recorded: what has an age for gc is old
SYSTEM = "Linux-6.1.0-x86_64-with-glibc2.36"


def toolchain(*, cuda_home: str, packages: object, strip: bool = False) -> dict[str, str]:
    """Stand in for the measured one."""
    del packages
    return {
        **TOOLCHAIN,
        **({"nvcc": "missing"} if cuda_home else {}),
        **({"strip": "missing"} if strip else {}),
    }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command printed and how it ended; paths and times as placeholders."""

    exit_code: int
    stdout: str
    stderr: str


def unpack(folder: Path) -> Path:
    """Unpack the recorded root into place/ in a folder; what is alive in it (the benchmarks) is this checkout's."""
    place = folder / "place"
    place.mkdir()
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(place, filter="tar")
    (place / "empty").mkdir()
    (place / "user").mkdir()
    few = place / "few" / "recipes"
    (few / "trains").mkdir(parents=True)
    (few / "trains" / "d.toml").write_text(
        'name = "d"\nsummary = "for tests"\ndefault = true\n[components]\n'
    )
    (few / "targets").symlink_to(place / "shipped" / "recipes" / "targets")
    for data in (few.parent, place / "shipped"):
        (data / "bench").symlink_to(CHECKOUT / "bench")
    return place


@contextlib.contextmanager
def elsewhere(place: Path, shipped: str = "shipped", *, width: int = 400) -> Iterator[None]:
    """Make this process believe that it runs on the recorded machine, offline, with the recorded recipes."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG", "LC_ALL") if name in os.environ}
    user = place / "user"
    user.mkdir(exist_ok=True)
    told = {"HOME": str(user), "COLUMNS": str(width), "NO_COLOR": "1", "PIP_NO_INDEX": "1"}
    with (
        mock.patch.dict(os.environ, {**kept, **told}, clear=True),
        mock.patch.object(paths, "PACKAGE", place / shipped / "spark_build"),
        mock.patch.object(spark_build_probe, "probe", return_value=MACHINE),
        mock.patch.object(spark_build_probe, "toolchain", toolchain),
        mock.patch.object(platform, "platform", return_value=SYSTEM),
        contextlib.chdir(place),
    ):
        yield


@contextlib.contextmanager
def simulated(place: Path) -> Iterator[None]:
    """Put other machines in the place of this one: for doctor one made of files, for environments their Python."""
    machine = Simulated("bare")
    uv = venv.uv

    def python(path: Path) -> Interpreter | None:
        here = str(path) == sys.executable or path.parent.parent == place / "env"
        return dataclasses.replace(INTERPRETER, path=str(path)) if here else None

    with (
        mock.patch.object(venv, "uv", lambda folder, words: uv(folder, [*words, "--python-version", "3.11"])),
        mock.patch.object(probe, "MachineAccess", return_value=machine),
        mock.patch.object(collect, "reachable", return_value=machine.indexes()),
        mock.patch.object(interpreters, "inspect", python),
        mock.patch.object(closure, "_is_here", return_value=False),
        mock.patch.object(time, "time", return_value=NOW),
    ):
        yield


def run(place: Path, arguments: list[str]) -> Outcome:
    """Run one command line; `{root}` in it is the place.

    The recipes that were shipped then are read where a train of theirs is named: that takes a while.
    """
    line = [_expanded(each.replace("{root}", str(place))) for each in arguments]
    out, err = io.StringIO(), io.StringIO()
    with (
        elsewhere(place, "few" if "t" in arguments else "shipped"),
        simulated(place),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = program.main(line)
    return Outcome(
        exit_code=code, stdout=normalised(out.getvalue(), place), stderr=normalised(err.getvalue(), place)
    )


def _expanded(argument: str) -> str:
    """The one file that a pattern means."""
    if "*" not in argument:
        return argument
    (found,) = Path(argument).parent.glob(Path(argument).name)
    return str(found)


# Order matters: the longer form first.
RULES = (
    (r"\d{8}T\d{6}-\d+", "RUN"),
    (r"\bin \d+(\.\d+)? (ms|s|min)\b", "in DURATION"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?", "TIME"),
)


def normalised(text: str, place: Path) -> str:
    """The text with placeholders: ROOT, CHECKOUT, PYTHON, VERSION, RUN, TIME."""
    for path, name in (
        (str(place), "ROOT"),
        (RECORDED, "ROOT"),
        (str(CHECKOUT), "CHECKOUT"),
        (sys.executable, "PYTHON"),
    ):
        text = text.replace(path, name)
    for pattern, name in RULES:
        text = re.sub(pattern, name, text)
    return re.sub(rf"\b{re.escape(__version__)}\b", "VERSION", text) if __version__ != "1.0" else text


# Numbers of this very run: how long it took, how much room is left.
VOLATILE = frozenset({"seconds"})


def kept(line: str, outcome: Outcome) -> dict[str, Any]:
    """What is kept of an outcome: its JSON document, or its lines."""
    printed: Any = [_spaced(each) for each in outcome.stdout.splitlines()]
    if "--json" in line.split() and outcome.stdout:
        printed = _masked(json.loads(outcome.stdout))
    return {
        "command": line,
        "exit_code": outcome.exit_code,
        "stdout": printed,
        "stderr": [_spaced(each) for each in outcome.stderr.splitlines()],
    }


def _spaced(line: str) -> str:
    """Columns are as wide as the paths in them: two spaces stand for any more."""
    return re.sub(r"(?<=\S) {2,}", "  ", line.rstrip())


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: ANY if name in VOLATILE and isinstance(each, int | float) else _masked(each)
            for name, each in value.items()
        }
    return [_masked(each) for each in value] if isinstance(value, list) else value


def differences(was: Any, now: Any, where: str = "") -> list[str]:
    """What was lost or changed from one document to another; what is new in an object does not count."""
    if was == ANY:
        is_number = isinstance(now, int | float) and not isinstance(now, bool)
        return [] if is_number or now == ANY else [f"{where}: was a number, is {_short(now)}"]
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for name in sorted(was):
            inside = f"{where}.{name}" if where else name
            gone = [f"{inside}: was {_short(was[name])}, is missing"]
            found += differences(was[name], now[name], inside) if name in now else gone
        return found
    if isinstance(was, list) and isinstance(now, list):
        if all(isinstance(each, str) for each in (*was, *now)):
            return [f"{where}: {each}" for each in lines_that_differ(was, now)]
        found = [f"{where}: had {len(was)} rows, has {len(now)}"] if len(was) != len(now) else []
        for index, (one, other) in enumerate(zip(was, now, strict=False)):
            found += differences(one, other, f"{where}[{index}]")
        return found
    # The last digits are those of a SciPy.
    same = type(was) is type(now) and (
        math.isclose(was, now, rel_tol=1e-6) if isinstance(was, float) else was == now
    )
    return [] if same else [f"{where}: was {_short(was)}, is {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < LONGEST else f"{text[:LONGEST]}..."


def lines_that_differ(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """Lines that went (-) and came (+)."""
    return [each for each in difflib.ndiff(list(was), list(now)) if each[0] in "-+"]


def commands() -> list[tuple[str, ...]]:
    """Every command and group, by the words that call it."""
    found: list[tuple[str, ...]] = []

    def walk(command: click.Command, words: tuple[str, ...]) -> None:
        found.append(words)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*words, name))

    walk(program.cli, ())
    return found


def help_name(command: Sequence[str]) -> str:
    """A file name for a command's help."""
    return "-".join(("spark-build", *command))


def help_of(command: Sequence[str]) -> str:
    """What `--help` prints on a terminal of 80 columns."""
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
    ):
        assert program.main([*command, "--help"]) == 0
    return out.getvalue()


def words(text: str) -> list[str]:
    """Return a help's words: versions of click break lines differently and double the brackets of a choice."""
    return text.replace("[[", "[").replace("]]", "]").split()


def copied(place: Path) -> Path:
    """Return the copy beside the unpacked root, made anew or put right: what a command may write into."""
    copy = place.with_name("copy")
    copy.mkdir(exist_ok=True)
    for name in SHARED:
        if not (copy / name).is_symlink():
            (copy / name).symlink_to(place / name)
    _restore(place, copy, skipped=SHARED)
    return copy


def _restore(was: Path, now: Path, *, skipped: Sequence[str] = ()) -> None:
    """Make a folder as another one is, by hard links; only what a command changed is touched.

    Whatever replaces a file leaves the other folder alone: the program does so with all that it writes.
    """
    wanted = {each.name: each for each in os.scandir(was) if each.name not in skipped}
    for each in list(os.scandir(now)):
        origin = wanted.get(each.name)
        if each.name in skipped or (origin is not None and _same(origin, each)):
            continue
        if each.is_dir(follow_symlinks=False):
            shutil.rmtree(each.path)
        else:
            Path(each.path).unlink()
    for name, origin in wanted.items():
        target = now / name
        if origin.is_dir(follow_symlinks=False):
            target.mkdir(exist_ok=True)
            _restore(Path(origin.path), target)
        elif not os.path.lexists(target):
            os.link(origin.path, target, follow_symlinks=False)


def _same(one: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    """Return whether both are folders, or names of one file."""
    folders = [each.is_dir(follow_symlinks=False) for each in (one, other)]
    return all(folders) or (not any(folders) and one.inode() == other.inode())
