"""What earlier builds took on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """One finished build: memory in MiB, seconds of the build stage, slots it was given at most.

    seconds is 0 where they say nothing about the next build: one that went on after an interruption, or
    came out of the compiler cache. curve: seconds after each tenth of the compile steps.
    """

    peak_mib_per_job: int
    peak_mib: int
    seconds: float
    jobs: int
    target: str = ""  # architectures decide how much a CUDA compiler needs
    version: str = ""
    steps: int = 0
    curve: tuple[float, ...] = ()
