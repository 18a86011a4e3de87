"""How much of a build came from the compiler cache: what ccache and sccache say, as numbers.

ccache writes to its stats log `# <source>` and then one counter per line, for each call. sccache's server
prints JSON. Both count also what is no compilation (linking, preprocessing, `--version`): left out here. What
configure steps try is compiled and counted like the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
MISSES = frozenset({"cache_miss", "recache"})
# Compilations whose result ccache could not keep. compile_failed is none of them: there is no result.
UNCACHEABLE = frozenset(
    {
        "bad_compiler_arguments",
        "bad_input_file",
        "bad_output_file",
        "compiler_check_failed",
        "compiler_produced_empty_output",
        "compiler_produced_no_output",
        "compiler_produced_stdout",
        "could_not_use_modules",
        "could_not_use_precompiled_header",
        "disabled",
        "error_hashing_extra_file",
        "internal_error",
        "missing_cache_file",
        "modified_input_file",
        "multiple_source_files",
        "output_to_stdout",
        "preprocessor_error",
        "unsupported_code_directive",
        "unsupported_compiler_option",
        "unsupported_environment_variable",
        "unsupported_source_language",
    }
)
# sccache keeps what nvcc runs as entries of their own, beside the whole compilation ("CUDA").
STEPS = frozenset({"CUDA (Device code)", "PTX", "CUBIN"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUse:
    """Compilations of one build."""

    hits: int = 0
    misses: int = 0
    uncacheable: int = 0

    @property
    def total(self) -> int:
        """All compilations."""
        return self.hits + self.misses + self.uncacheable

    @property
    def rate(self) -> float | None:
        """The share that came from the cache; None when nothing was compiled."""
        return self.hits / self.total if self.total else None

    def __str__(self) -> str:
        """Words for the summary; 100% is said only when it is all of them, 0% when it is none."""
        if self.rate is None:
            return "nothing compiled"
        percent = 100 if self.hits == self.total else min(round(100 * self.rate), 99)
        percent = max(percent, 1) if self.hits else 0
        left = f", {self.uncacheable} not cacheable" if self.uncacheable else ""
        word = "compilation" if self.total == 1 else "compilations"
        return f"{self.hits} of {self.total} {word} from the cache ({percent}%{left})"


def parse(text: str) -> CacheUse:
    """What either tool left; never fails: statistics must not end a build that went well."""
    return _sccache(text) if text.lstrip().startswith("{") else _ccache(text)


def _ccache(text: str) -> CacheUse:
    """Each call counts once: by its hit or miss, else by what kept it from the cache."""
    hits = misses = uncacheable = 0
    for counters in _calls(text):
        if counters & HITS:
            hits += 1
        elif counters & MISSES:
            misses += 1
        elif counters & UNCACHEABLE:
            uncacheable += 1
    return CacheUse(hits=hits, misses=misses, uncacheable=uncacheable)


def _calls(text: str) -> Iterator[set[str]]:
    """The counters of each call."""
    counters = set[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            yield counters
            counters = set()
        else:
            counters.add(line.strip())
    yield counters


def _sccache(text: str) -> CacheUse:
    """`sccache --show-stats --stats-format=json`; the server's, which served this build only."""
    try:
        stats = json.loads(text)["stats"]
        return CacheUse(
            hits=_sum(stats["cache_hits"]["counts"], without=STEPS),
            misses=_sum(stats["cache_misses"]["counts"], without=STEPS),
            uncacheable=_sum(stats["not_cached"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return CacheUse()


def _sum(counts: Mapping[str, Any], *, without: frozenset[str] = frozenset()) -> int:
    return sum(max(0, int(number)) for name, number in counts.items() if name not in without)
