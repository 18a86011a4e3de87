"""Why a build failed: the first real error in its log, its place, and what mends it.

A log is mostly noise: warnings, commands, ninja's and make's remarks that something failed, Python
tracebacks of the tools that merely passed the failure on. The kinds of errors below are searched in
the order in which they tell most; `build/diagnosis_table.py` knows the common ones by heart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_build.build.diagnosis_table import PROBLEMS
from spark_build.events import LogDiagnosis

WARNED = 20  # lines, at most, in which pip told before that it could not connect
BLOCK = 40  # lines, at most, that one error goes on for
TRACEBACK = 400  # lines, at most, that lead to one
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COMMAND = re.compile(r"^\$ ", re.MULTILINE)

# Lines that say that something failed, not what.
_NOISE = re.compile(
    r"warning\b|^FAILED:|^ninja: (build stopped|subcommand failed)"
    r"|^g?make(\[\d+\])?: \*\*\* (\[|Waiting)|^collect2: error|^(.*: )?error: ld returned"
    r"|^error: command .* failed|^error: (subprocess-exited|metadata-generation)|^ERROR Backend subprocess"
    r"|^ERROR: Failed (building|to build)|^-- Configuring incomplete|^subprocess\.CalledProcessError"
    r"|^(RuntimeError: )?Error compiling objects|^error: Failed to build|compilation terminated"
    r"|ptxas fatal +: Ptx assembly aborted|^\d+ errors? detected|^note:|^fatal: clone of .* failed"
    r"|^CMake Error at .*FetchContent\.cmake:\d+|^ERROR: Could not find a version"
    r"|^fatal: Could not read from remote repository"
    r"|^pip\.\S*BackendUnavailable",
    re.IGNORECASE,
)
# gcc, clang: a.c:3:10: fatal error: ...; nvcc: a.cu(3): error: ...; ptxas: ptxas a.ptx, line 5; error : ...
_COMPILER = re.compile(
    r"^(?P<file>[^\s:()][^:()]*?)(?::(?P<line>\d+)(?::\d+)?:|\((?P<paren>\d+)\):)\s*"
    r"(?:fatal )?error\b\s*:?\s*(?P<said>.*)"
)
_PTXAS = re.compile(
    r"^ptxas (?:(?P<file>.+), line (?P<line>\d+); )?(?:error|fatal)\s*:\s*(?P<said>.*)"
    r"|^nvcc (?:fatal|error)\s*:\s*(?P<nvcc>.*)"
)
_LINKER = re.compile(
    r"^(?:\S*/)?(?:ld|ld\.\w+|lld)(?:: |\.exe: )"
    r"(?P<said>.*(?:cannot find|undefined reference|relocation|file |error).*)"
    r"|^(?P<file>[^\s:]+):(?:(?P<line>\d+):|\([^)]*\):) (?P<undefined>undefined reference to .*)"
    r"|^\S+: fatal error: (?P<driver>.*)|^(?P<assembler>.*Fatal error: .*)"
)
_CMAKE = re.compile(r"^CMake Error(?: at (?P<file>.+?):(?P<line>\d+) \(.*\))?(?: in .*)?: ?(?P<said>.*)")
_PYTHON = re.compile(
    r"^(?P<kind>(?:[A-Za-z_][\w]*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Unavailable|Interrupt|Failure))(?:: (?P<said>.*))?$"
)
_TOOL = re.compile(
    r"^(?:fatal|error|ERROR): (?P<said>.+)|^ninja: error: (?P<ninja>.+)"
    r"|^g?make(?:\[\d+\])?: \*\*\* (?P<make>.+)"
    r"|^ ! \[rejected\] +(?P<rejected>.+)|^(?P<cuda>CUDA error: .+)|^(?P<pip>Could not fetch URL .+)"
)
# Programs that a script calls; they may fail on purpose, so every other error tells more.
_CLIENT = re.compile(r"^curl: \(\d+\) (?P<curl>.+)|^(?:wget|ssh): (?P<client>.+)")
# What pip says before it concludes that there is no such distribution.
_UNREACHED = re.compile(r"^WARNING: Retrying \(")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_COMPILING = (_COMPILER, _PTXAS, _LINKER)
_KINDS = (*_COMPILING, _CMAKE, _PYTHON, _TOOL, _CLIENT)
_PLACES = ("file", "line", "paren", "kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Error:
    """One error in the log: `said` is its own line, `text` that and what belongs to it."""

    said: str
    text: str
    place: str = ""


def last_command(log: str) -> str:
    """The part of a build log that the last command wrote: the one that failed, if one did."""
    starts = [match.start() for match in _COMMAND.finditer(log)]
    return log[starts[-1] :] if starts else log


def diagnose(log: str) -> LogDiagnosis | None:
    """The first real error of a failed command's output; None when nothing in it looks like one."""
    lines = _plain_lines(log)
    error = next(_decisive(lines), None)
    if error is None:
        error = _first(lines)
    if error is None:
        return None
    for problem in PROBLEMS:
        found = problem.pattern.search(error.text)
        if found:
            names = {name: value or "" for name, value in found.groupdict().items()}
            return LogDiagnosis(
                problem=problem.name,
                error=error.said,
                place=error.place,
                explanation=problem.explanation.format_map(names),
                fix=problem.fix.format_map(names),
            )
    return LogDiagnosis(problem="", error=error.said, place=error.place)


def _plain_lines(log: str) -> list[str]:
    """Lines without colours, commands, and the frame that pip draws around a backend's output."""
    lines = _COLOUR.sub("", log).splitlines()
    framed = next((line for line in lines if "╰─>" in line), None)
    indent = len(framed) - len(framed.lstrip()) + 4 if framed else 0
    return [_unframed(line, indent) for line in lines if not line.startswith("$ ")]


def _unframed(line: str, indent: int) -> str:
    return line[indent:] if indent and line[:indent].strip() == "" else line


def _decisive(lines: Sequence[str]) -> Iterator[_Error]:
    """Errors that explain every other one, wherever they stand: no memory, no disk."""
    for problem in PROBLEMS:
        if problem.decisive:
            for line in lines:
                if problem.pattern.search(line):
                    said = line.strip()
                    yield _Error(said=said, text=said)


def _first(lines: Sequence[str]) -> _Error | None:
    """The first error of the kind that tells most.

    Compilers may fail on purpose while a project is configured: where ninja says what failed, their
    errors count from there on.
    """
    failed = next((number for number, line in enumerate(lines) if line.startswith("FAILED:")), 0)
    searches = [(kind, failed) for kind in _COMPILING if failed] + [(kind, 0) for kind in _KINDS]
    for kind, begin in searches:
        for number in range(begin, len(lines)):
            found = kind.match(lines[number])
            if found and not _NOISE.search(lines[number]):
                return _described(lines, number, found)
    return None


def _described(lines: Sequence[str], number: int, found: re.Match[str]) -> _Error:
    names = found.groupdict()
    following = _block(lines, number, indented=found.re is _CMAKE)
    said = next((names[key] for key in names if key not in _PLACES and names[key]), "")
    if found.re is _CMAKE:
        said = " ".join([said, *_paragraph(following)]).strip()
    elif found.re is _PYTHON:
        said = found.group(0).strip()
    file, line = names.get("file"), names.get("line") or names.get("paren")
    place = f"{file}:{line}" if file and line else ""
    if found.re is _PYTHON:
        place = _frame_before(lines, number)
    earlier = lines[max(0, number - WARNED) : number] if found.re is _TOOL else ()
    warned = [line for line in earlier if _UNREACHED.match(line)]
    return _Error(said=said, text="\n".join([lines[number], said, *following, *warned]), place=place)


def _block(lines: Sequence[str], number: int, *, indented: bool) -> list[str]:
    """What follows an error and belongs to it: CMake indents it, others write on for a few lines."""
    if not indented:
        return [line.strip() for line in lines[number + 1 : number + 4]]
    block = []
    for line in lines[number + 1 : number + BLOCK]:
        if line and not line.startswith(" "):
            break
        block.append(line.strip())
    return block


def _paragraph(block: Sequence[str]) -> list[str]:
    """The first paragraph of a CMake message, with the one that a colon at its end announces."""
    said: list[str] = []
    for line in block:
        if line:
            said.append(line)
        elif said and not _goes_on(said[-1]):
            break
    return said


def _goes_on(line: str) -> bool:
    return not line.endswith((".", "!", '"')) and len(line) < 60


def _frame_before(lines: Sequence[str], number: int) -> str:
    """The innermost frame, outside of installed libraries, of the traceback that ends at this line."""
    for line in reversed(lines[max(0, number - TRACEBACK) : number]):
        if line.startswith("Traceback"):
            break
        frame = _FRAME.match(line)
        if frame and not frame["file"].startswith("<") and "/lib/python" not in frame["file"]:
            return f"{frame['file']}:{frame['line']}"
    return ""
