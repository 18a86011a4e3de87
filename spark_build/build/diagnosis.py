"""Explain failed builds from their logs; notice dropped features."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from spark_build.build.diagnosis_table import PROBLEMS
from spark_build.errors import Finding, Hint, Place
from spark_build.events import JudgedFeature
from spark_build.recipes.model import Feature
from spark_build.text import printable

WARNED = 20  # lines, at most, in which pip told before that it could not connect
BLOCK = 40  # lines, at most, that one error goes on for
TRACEBACK = 400  # lines, at most, that lead to one
LONGEST = 4096  # characters of a line that are looked at: some patterns take the square of that
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
    r"|^CMake Error at .*/download-six\.cmake:\d+"  # NNPACK goes on with the environment's (pytorch#188652)
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
_CMAKE = re.compile(r"^CMake Error(?: at (?P<file>.+?):(?P<line>\d+) \([^()]*\))?(?: in .*)?: ?(?P<said>.*)")
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
class LogDiagnosis:
    """First real error of a failed build: what the tool said and where, and its cause.

    The finding's rule is the known problem ("out-of-memory"), "" for an unknown one.
    """

    finding: Finding
    explanation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Error:
    """One error in the log: `said` is its own line, `text` includes the lines that belong to it."""

    said: str
    text: str
    place: str = ""


def last_command(log: str) -> str:
    """Return the log of the last command, which is the failed one if any failed."""
    starts = [match.start() for match in _COMMAND.finditer(log)]
    return log[starts[-1] :] if starts else log


def diagnose(log: str) -> LogDiagnosis | None:
    """Return the first real error in a failed command's output; None when nothing looks like one."""
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
            fix = Hint(
                *(part.format_map(names) if isinstance(part, str) else part for part in problem.fix.parts)
            )
            return LogDiagnosis(
                finding=Finding(problem.name, "error", error.said, Place(error.place), fix),
                explanation=problem.explanation.format_map(names),
            )
    return LogDiagnosis(finding=Finding("", "error", error.said, Place(error.place)))


def _plain_lines(log: str) -> list[str]:
    """Return lines without colours, commands, and pip's frame around a backend's output."""
    lines = _COLOUR.sub("", log).splitlines()
    framed = next((line for line in lines if "╰─>" in line), None)
    indent = len(framed) - len(framed.lstrip()) + 4 if framed else 0
    own = (line for line in lines if not line.startswith("$ "))
    return [line[indent:] if indent and line[:indent].strip() == "" else line for line in own]


def _decisive(lines: Sequence[str]) -> Iterator[_Error]:
    """Yield errors that explain all others wherever they are: no memory, no disk."""
    for problem in PROBLEMS:
        if problem.decisive:
            for line in lines:
                if problem.pattern.search(line):
                    said = line.strip()
                    yield _Error(said=said, text=said)


def _first(lines: Sequence[str]) -> _Error | None:
    """Return the first error of the most specific kind.

    Compilers may fail on purpose while a project is configured: where ninja says what failed, their
    errors count from there on.
    """
    failed = next((number for number, line in enumerate(lines) if line.startswith("FAILED:")), 0)
    searches = [(kind, failed) for kind in _COMPILING if failed] + [(kind, 0) for kind in _KINDS]
    for kind, begin in searches:
        for number in range(begin, len(lines)):
            found = kind.match(lines[number], 0, LONGEST)
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
    text = "\n".join(line[:LONGEST] for line in (lines[number], said, *following, *warned))
    return _Error(said=said, text=text, place=place)


def _block(lines: Sequence[str], number: int, *, indented: bool) -> list[str]:
    """Return the lines that belong to an error: CMake indents them, others continue for a few lines."""
    if not indented:
        return [line.strip() for line in lines[number + 1 : number + 4]]
    block = []
    for line in lines[number + 1 : number + BLOCK]:
        if line and not line.startswith(" "):
            break
        block.append(line.strip())
    return block


def _paragraph(block: Sequence[str]) -> list[str]:
    """Return a CMake message's first paragraph, and the next one when it ends with a colon."""
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
    """Return the traceback's innermost frame outside installed libraries, for the error at this line."""
    for line in reversed(lines[max(0, number - TRACEBACK) : number]):
        if line.startswith("Traceback"):
            break
        frame = _FRAME.match(line)
        if frame and not frame["file"].startswith("<") and "/lib/python" not in frame["file"]:
            return f"{frame['file']}:{frame['line']}"
    return ""


COMMAND = "$ "  # how a log begins the line of a command
KEPT = 400  # remarks that may explain a missing feature
LINES = 20  # of a warning that are kept


_REMARK = re.compile(
    r"not found|cannot find|could ?not find|turning .* off|disabled|disabling|without"
    r"|is set to 0|unable to find",
    re.IGNORECASE,
)
_FALSE = {"", "0", "OFF", "NO", "N", "FALSE", "IGNORE", "NOTFOUND", "NONE", "DISABLED"}
_TRUE = {"1", "ON", "YES", "Y", "TRUE", "ENABLED"}


class FeatureWatch:
    """Watches a build's lines for features that it drops."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = tuple(features)
        self._patterns = {one.name: _pattern(one.name) for one in features}
        self._seen: dict[str, str] = {}  # name -> what the last line about it said
        self._remarks: deque[str] = deque(maxlen=KEPT)
        self._warning: list[str] | None = None  # the lines of the CMake warning that goes on

    def see(self, line: str) -> Finding | None:
        """Return that the build would lack a feature, where this line says so."""
        if not self._features:
            return None
        plain = _COLOUR.sub("", line).rstrip()
        for feature in self._features:
            found = self._patterns[feature.name].match(plain)
            if found is None:
                continue
            value = _value(found)
            self._seen[feature.name] = value
            if not feature_agrees(feature.value, value):
                why = self._reason(feature.name) or feature.why
                lacks = (
                    f"the build would lack {feature.name}: the configure summary says {value or 'nothing'}"
                )
                said = f"{lacks}, not {feature.value}{f' ({why})' if why else ''}"
                return Finding("features", "error", printable(said), Place(subject=feature.name))
        self._remember(plain)
        return None

    def unseen(self) -> tuple[Feature, ...]:
        """Return the features that no line has named yet."""
        return tuple(one for one in self._features if one.name not in self._seen)

    @property
    def values(self) -> dict[str, str]:
        """Features that were named, with their last value."""
        return dict(self._seen)

    def _remember(self, line: str) -> None:
        """Store a possible reason: a remark in one line, or a CMake warning in several."""
        if line.startswith("CMake Warning"):
            self._end_warning()
            self._warning = [line.partition("):")[2]]
        elif self._warning is not None and (line.startswith("  ") or not line):
            if len(self._warning) < LINES:
                self._warning.append(line)
        else:
            self._end_warning()
            if _REMARK.search(line, 0, LONGEST):
                self._remarks.append(" ".join(line.removeprefix("--").split()))

    def _end_warning(self) -> None:
        if self._warning is not None:
            self._remarks.append(" ".join(" ".join(self._warning).split()))
            self._warning = None

    def _reason(self, name: str) -> str:
        """Return the last remark that names the feature: in full (cuDNN for USE_CUDNN), else a part of it."""
        self._end_warning()
        stem = re.sub(r"^(USE|BUILD|WITH|ENABLE|HAVE)_", "", name)
        words = [_letters(stem), *(_letters(part) for part in reversed(re.split(r"[_ ]", stem)))]
        for word in words:
            for remark in reversed(self._remarks):
                if len(word) > 2 and word in _letters(remark):
                    return remark
        return ""


def kept(
    features: Sequence[Feature], lines: Iterable[str]
) -> tuple[tuple[Finding, ...], tuple[Feature, ...]]:
    """Return (missing features, unmentioned ones) by a log; the last command that names one decides.

    Earlier commands may be those of an attempt that failed for the very feature.
    """
    decided = _decided(features, lines)
    unseen = tuple(one for one in features if one.name not in decided)
    return tuple(lost for _, lost in decided.values() if lost is not None), unseen


def judged(features: Sequence[Feature], lines: Iterable[str]) -> tuple[JudgedFeature, ...]:
    """Return each feature with its state in a log, by the rule of `kept`."""
    decided = _decided(features, lines)
    return tuple(
        JudgedFeature(
            name=one.name,
            expected=one.value,
            found=found,
            missing=lost is not None,
        )
        for one in features
        for found, lost in [decided.get(one.name, (None, None))]
    )


def _decided(features: Sequence[Feature], lines: Iterable[str]) -> dict[str, tuple[str, Finding | None]]:
    """Return name -> value in the last command that names it, and that it is missing there, if it is."""
    decided: dict[str, tuple[str, Finding | None]] = {}
    watch, missing = FeatureWatch(features), dict[str, tuple[str, Finding]]()
    for line in chain(lines, [COMMAND]):
        if line.startswith(COMMAND):
            decided |= {name: missing.get(name, (value, None)) for name, value in watch.values.items()}
            watch, missing = FeatureWatch(features), {}
        elif found := watch.see(line):
            name = found.place.subject
            missing.setdefault(name, (watch.values[name], found))
    return decided


def feature_agrees(wanted: str, found: str) -> bool:
    """Return whether a printed value means the wanted one; ON, 1 and True are equal, as in CMake."""
    meant = _truth(wanted)
    if meant is None:
        return wanted.casefold() == found.casefold()
    said = _truth(found)
    # A path or a version where a switch was expected: it was found.
    return meant is (said if said is not None else True)


def _truth(value: str) -> bool | None:
    word = value.upper()
    if word in _FALSE or word.endswith("-NOTFOUND"):
        return False
    return True if word in _TRUE else None


def _pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of a line about the feature, without spaces at its end.

    A name of several words is a sentence.
    """
    if " " in name:
        sentence = re.escape(name).replace(r"\ with\ ", r"\ with(?P<out>out)?\ ")
        return re.compile(rf"^(?:--)?\s*{sentence}\s*(?:[:=]\s*(?P<value>\S*))?$")
    return re.compile(rf"^(?:--)?\s*{re.escape(name)}(?::[A-Z]+)?\s*[:=](?!=)\s*(?P<value>.*)$")


def _value(found: re.Match[str]) -> str:
    groups = found.groupdict()
    if groups.get("out"):
        return "OFF"
    value = groups["value"]
    if value is None:  # the sentence alone states it
        return "ON"
    return (value.split() or [""])[0].strip("'\",")


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
