"""Expected features against the configure summary, line by line, as soon as it is printed.

CMake projects end their configuration with lines such as `--   USE_CUDNN  : ON`; setup.py files
print `BUILD_CUDA_SOURCES = True` or a sentence ("Building with CUDA ops"). A feature that was
dropped silently is found the moment its line comes, together with what CMake said about it before.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from spark_build.recipes.model import Feature

COMMAND = "$ "  # how a log begins the line of a command
KEPT = 400  # remarks that may explain a missing feature
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REMARK = re.compile(
    r"not found|cannot find|could ?not find|turning .* off|disabled|disabling|without"
    r"|is set to 0|unable to find",
    re.IGNORECASE,
)
_FALSE = {"", "0", "OFF", "NO", "N", "FALSE", "IGNORE", "NOTFOUND", "NONE", "DISABLED"}
_TRUE = {"1", "ON", "YES", "Y", "TRUE", "ENABLED"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A feature that the build would lack; `reason` is what was printed about it before."""

    feature: Feature
    found: str
    reason: str = ""

    def __str__(self) -> str:
        why = self.reason or self.feature.why
        said = (
            f"the build would lack {self.feature.name}: the configure summary says {self.found or 'nothing'}"
        )
        return f"{said}, not {self.feature.value}" + (f" ({why})" if why else "")


class Watch:
    """Sees the lines of a build one after the other."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = tuple(features)
        self._patterns = {one.name: _pattern(one.name) for one in features}
        self._seen: set[str] = set()
        self._remarks: deque[str] = deque(maxlen=KEPT)
        self._warning: list[str] | None = None

    def see(self, line: str) -> Missing | None:
        """The feature that this line says is missing."""
        if not self._features:
            return None
        plain = _COLOUR.sub("", line).rstrip()
        for feature in self._features:
            found = self._patterns[feature.name].match(plain)
            if found is None:
                continue
            self._seen.add(feature.name)
            value = _value(found)
            if not agrees(feature.value, value):
                self._end_warning()
                return Missing(feature=feature, found=value, reason=self._reason(feature.name))
        self._remember(plain)
        return None

    def unseen(self) -> tuple[Feature, ...]:
        """Features that no line has spoken of yet."""
        return tuple(one for one in self._features if one.name not in self._seen)

    def seen(self) -> tuple[Feature, ...]:
        """Features that a line has spoken of."""
        return tuple(one for one in self._features if one.name in self._seen)

    def _remember(self, line: str) -> None:
        """Keep what may be a reason: a remark in one line, or a CMake warning in several."""
        if line.startswith("CMake Warning"):
            self._end_warning()
            self._warning = [line.split("):", 1)[-1].strip() if "):" in line else ""]
            return
        if self._warning is not None:
            if line.startswith("  ") or not line:
                self._warning.append(line.strip())
                return
            self._end_warning()
        if _REMARK.search(line):
            self._remarks.append(line.removeprefix("--").strip())

    def _end_warning(self) -> None:
        if self._warning is not None:
            self._remarks.append(" ".join(" ".join(self._warning).split()))
            self._warning = None

    def _reason(self, name: str) -> str:
        """The last remark that names the feature: whole (cuDNN for USE_CUDNN), else a part of it."""
        stem = re.sub(r"^(USE|BUILD|WITH|ENABLE|HAVE)_", "", name)
        words = [_letters(stem), *(_letters(part) for part in reversed(re.split(r"[_ ]", stem)))]
        for word in words:
            for remark in reversed(self._remarks):
                if len(word) > 2 and word in _letters(remark):
                    return remark
        return ""


def kept(
    features: Sequence[Feature], lines: Iterable[str]
) -> tuple[tuple[Missing, ...], tuple[Feature, ...]]:
    """(Missing features, those never spoken of) by a kept log: the last command that names one decides.

    Earlier commands may be those of an attempt that failed for the very feature.
    """
    decided: dict[str, Missing | None] = {}
    watch, missing = Watch(features), dict[str, Missing]()
    for line in chain(lines, [COMMAND]):
        if line.startswith(COMMAND):
            decided |= {one.name: missing.get(one.name) for one in watch.seen()}
            watch, missing = Watch(features), {}
        elif found := watch.see(line):
            missing.setdefault(found.feature.name, found)
    unseen = tuple(one for one in features if one.name not in decided)
    return tuple(one for one in decided.values() if one is not None), unseen


def check(features: Sequence[Feature], lines: Iterable[str]) -> tuple[Missing, ...]:
    """Every feature that a whole log says is missing, in the order of its lines."""
    watch = Watch(features)
    return tuple(missing for missing in map(watch.see, lines) if missing is not None)


def agrees(wanted: str, found: str) -> bool:
    """Whether a printed value means the wanted one; ON, 1 and True are one, as in CMake."""
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
    """A line that states the feature; one of several words is a sentence that may say "without"."""
    if " " in name:
        sentence = re.escape(name).replace(r"\ with\ ", r"\ with(?P<out>out)?\ ")
        return re.compile(rf"^(?:--)?\s*{sentence}\s*(?:[:=]\s*(?P<value>\S*))?\s*$")
    return re.compile(rf"^(?:--)?\s*{re.escape(name)}(?::[A-Z]+)?\s*[:=](?!=)\s*(?P<value>.*?)\s*$")


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
