"""ELF files: for what machine, and what they need. Nothing in them is trusted to be well-formed."""

from __future__ import annotations

from typing import IO, Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from spark_build.core.audit import UNREADABLE
from spark_build.model.wheel import Library

ELF_MAGIC = b"\x7fELF"

_MACHINES = {
    "EM_386": "i686",
    "EM_ARM": "armv7l",
    "EM_PPC64": "ppc64le",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
}
# pyelftools trusts the file: any of these on one that is cut or no real ELF.
_NOT_ELF = (ELFError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def read_library(path: str, file: IO[bytes]) -> Library:
    """Machine and needed sonames of an ELF file; machine "unreadable" when it is cut or no real one."""
    try:
        elf = ELFFile(file)
        return Library(path=path, machine=_machine(elf), needed=_needed(elf))
    except _NOT_ELF:
        return Library(path=path, machine=UNREADABLE, needed=())


def _needed(elf: Any) -> tuple[str, ...]:
    sonames: list[str] = []
    for segment in elf.iter_segments():
        if isinstance(segment, DynamicSegment):
            tag: Any  # pyelftools adds the attribute named after the tag at run time
            for tag in segment.iter_tags("DT_NEEDED"):
                sonames.append(str(tag.needed))  # noqa: PERF401 - a comprehension cannot say Any
    return tuple(sonames)


def _machine(elf: Any) -> str:
    """The machine as platform tags name it; a number stays a number."""
    code = str(elf["e_machine"])
    return _MACHINES.get(code, code.removeprefix("EM_").lower())
