"""ELF files: for what machine, and what they ask of the loader. Nothing in them is trusted."""

from __future__ import annotations

from typing import IO

from elftools.elf.enums import ENUM_E_MACHINE

from spark_build.wheels.audit import UNREADABLE
from spark_build.wheels.dynamic import ElfError, read_elf
from spark_build.wheels.model import Library

ELF_MAGIC = b"\x7fELF"

_MACHINES = {
    "EM_386": "i686",
    "EM_ARM": "armv7l",
    "EM_PPC64": "ppc64le",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
}
_NAMES = {code: name for name, code in ENUM_E_MACHINE.items() if name != "_default_"}


def read_library(path: str, file: IO[bytes]) -> Library:
    """The facts of an ELF file; machine "unreadable" when it is cut or no real one."""

    def read_at(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    try:
        elf = read_elf(read_at, file.seek(0, 2))
    except ElfError:
        return Library(path=path, machine=UNREADABLE, needed=())
    return Library(path=path, machine=_machine(elf.machine), needed=elf.needed, host=elf.host)


def _machine(number: int) -> str:
    """The machine as platform tags name it; an unknown number stays one."""
    code = _NAMES.get(number, str(number))
    return _MACHINES.get(code, code.removeprefix("EM_").lower())
