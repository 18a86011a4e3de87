"""The end of a configure-only run: the first build call of the project.

The scripts before ninja and make (`resources/jobserver.py`) say so through a file. Two kinds of projects get
past them: those that call their ninja by its path, as scikit-build-core does, whose first printed step tells,
and those whose setup.py compiles by itself, where the command line that it prints does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_build.build.backends import BuildReached
from spark_build.files import read_made, write_atomically
from spark_build.resources import jobserver, memory
from spark_build.text import printable

CALL = "build-call"  # the name of the file that the scripts write
MOST = 4096  # bytes of it that are read
STEP = re.compile(r"^\[\s*\d+(/\d+|%)\] ")  # ninja's, and that of CMake's makefiles
COMPILING = re.compile(
    r"^(\S*/)?(\w+-)*(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|nvcc)(-[\d.]+)? (.* )?-c .*\.(c|cc|cpp|cxx|cu|C)\b"
)
# As the kernel calls them, of the compiler cache and of compilers with a version in their name too.
_COMPILERS = frozenset({"ccache", "cc1", "cc1plus", "cicc", "cudafe++", "as", "ptxas", "clang", "clang++"})
_MODES = ("--build", "--install", "--open", "--workflow", "-E", "-P")
_STEPS = ("configure", "config.status")


@dataclass(kw_only=True, slots=True)
class Ending:
    """The end of a run that only configures.

    call: a file in which the scripts say what was called, and the build may put anything; mark: our own.
    """

    call: Path
    mark: Path
    root: int | None = None  # process id above the running command

    @property
    def variables(self) -> dict[str, str]:
        """Variables for the build, by which the scripts know; and what Python prints comes at once."""
        return {jobserver.STOP: str(self.call), "PYTHONUNBUFFERED": "1"}

    def see(self, line: str) -> None:
        """Look at a line of output. Raise BuildReached when something is to be built, or is being built."""
        if (
            jobserver.SIGN in line
        ):  # not as soon as the file is there: what was printed before is still to come
            self.check()
        step, compiling = STEP.match(line), COMPILING.match(line)
        if (step or compiling) and self.root and builds(self.root, memory.CLIENTS if step else _COMPILERS):
            write_atomically(self.mark, "")
            raise BuildReached(printable(line), began=True, by_itself=step is None)

    def check(self) -> None:
        """Raise BuildReached when one of the scripts was asked to build."""
        with contextlib.suppress(OSError):
            said = read_made(self.call, MOST).decode(errors="replace").strip()
            write_atomically(self.mark, "")
            raise BuildReached(printable(said))


def builds(root: int, tools: Container[str]) -> bool:
    """Return whether one of these programs runs below a process, and no configure step that it may run for.

    A line alone proves nothing: CMake prints what a nested build said when it gives up.
    """
    table = memory.processes()
    below = [root]
    for pid in below:  # grows while we walk it
        below += [one.pid for one in table.values() if one.parent == pid]
    names = [table[pid].name for pid in below if pid in table]
    return any(name in tools for name in names) and not any(is_configure_step(_words(pid)) for pid in below)


def is_configure_step(words: Sequence[str]) -> bool:
    """Return whether a command line is CMake without a mode of its own, or a configure script."""
    first = [word.rpartition("/")[2] for word in words[:2]]  # an interpreter may come before
    if "cmake" in first or "cmake3" in first:
        return not any(word in _MODES for word in words)
    return any(name in _STEPS for name in first)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
