"""Command lines of ours run in this process: what a process of their own would print and return, sooner.

A test that is about signals, terminals, start-up or the end of a process starts a real one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from spark_build import process as processes
from spark_build import venv
from spark_build.build import sandbox
from spark_build.cli import main as entry
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options
from spark_build.environments import interpreters
from spark_build.errors import Hint, HintStep

CLI = [sys.executable, "-m", "spark_build"]
# Python, or the loader, reads these when a process starts.
AT_START = ("PYTHON", "LD_", "LANG", "LC_", "COVERAGE_")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAIN = str(Path(entry.__file__).parents[1] / "__main__.py")


def invoke(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str = "",  # noqa: A002  as subprocess.run calls it
    check: bool = False,
    process: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `[*CLI, ...]` to its end, in this process unless `process` asks for one of its own.

    A process starts as well for --detach, for variables that only count when one starts, and beside the main
    thread, which alone may lend this process's environment, folder and descriptors.
    """
    words = [str(word) for word in command]
    assert words[: len(CLI)] == CLI, "this runs command lines of ours only"
    aside = threading.current_thread() is not threading.main_thread()
    # What is detached starts again from this process's own command line.
    detached = "--detach" in words
    if process or aside or detached or _starts_otherwise(env):
        done = subprocess.run(
            words, env=env, cwd=cwd, input=input, capture_output=True, text=True, check=False
        )
    else:
        done = _within(words, env, cwd, input)
    if check:
        done.check_returncode()
    return done


def _starts_otherwise(env: Mapping[str, str] | None) -> bool:
    if env is None:
        return False
    changed = dict(env.items() ^ os.environ.items())
    return any(name.startswith(AT_START) for name in changed)


def _within(
    words: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, given: str
) -> subprocess.CompletedProcess[str]:
    arguments = list(words[len(CLI) :])
    with (
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as error,
    ):
        source.write(given.encode())
        source.seek(0)
        with (
            _as_at_start(arguments, os.environ if env is None else env, cwd),
            _streams(source, out, error),
        ):
            code = _call(arguments)
        return subprocess.CompletedProcess(list(words), code, _text(out), _text(error))


def _call(arguments: list[str]) -> int:
    try:
        return entry.main(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


@contextlib.contextmanager
def _as_at_start(arguments: list[str], env: Mapping[str, str], cwd: Path | None) -> Iterator[None]:
    """Let everything look as it does when Python starts, and put it back."""
    before, folder, argv, place = dict(os.environ), Path.cwd(), sys.argv, tempfile.tempdir
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    _forget()
    _set_environment(env)
    sys.argv, tempfile.tempdir = [MAIN, *arguments], None
    try:
        with warnings.catch_warnings():
            if cwd is not None:
                os.chdir(cwd)
            yield
    finally:
        os.chdir(folder)
        sys.argv, tempfile.tempdir = argv, place
        _set_environment(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _forget()


def _forget() -> None:
    """Drop what a process learns about its machine and keeps."""
    processes._cancelled.clear()
    sandbox._told.clear()
    sandbox.choose.cache_clear()
    venv._can_be_used.cache_clear()
    interpreters.inspect.cache_clear()


def _set_environment(wanted: Mapping[str, str]) -> None:
    wanted = dict(wanted)
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


@contextlib.contextmanager
def _streams(source: IO[bytes], out: IO[bytes], error: IO[bytes]) -> Iterator[None]:
    """Descriptors 0 to 2, and Python's names for them, are these files for a while."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        for number, file in enumerate((source, out, error)):
            os.dup2(file.fileno(), number)
        with (
            open(0, encoding="utf-8", closefd=False) as stdin,
            open(1, "w", encoding="utf-8", closefd=False) as stdout,
            open(2, "w", encoding="utf-8", closefd=False, buffering=1) as stderr,
        ):
            sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)


def hint_text(hint: Hint | HintStep | str | None) -> str:
    """A hint as it is printed where no option was given."""
    return typeable(hint or "", Options())
