"""The device code in one file: what runs as it is, what only a linker uses, what lies elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FileKind = Literal["elf", "archive", "cubin", "fatbin", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Entries by architecture: {"sm_121a": 20}, {"compute_80": 1}, {"lto_90a": 2}, {"kind16_120": 1}."""

    containers: int = 0
    sass: dict[str, int] = field(default_factory=dict)
    ptx: dict[str, int] = field(default_factory=dict)
    lto: dict[str, int] = field(default_factory=dict)  # for link-time optimisation: does not run
    other: dict[str, int] = field(default_factory=dict)  # of kinds that are not known here


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCode:
    """What one library, archive, object, cubin or fat binary holds for GPUs.

    `problems`: containers or sections that are not what their headers say, one line each.
    """

    path: str
    kind: FileKind
    loaded: Code  # .nv_fatbin, or the file itself: what the CUDA runtime registers
    relocatable: Code  # __nv_relfatbin: input of nvlink, cannot be launched
    elsewhere: Code  # in other sections (.cask_resource) or none: cuobjdump does not see it, the library may
    problems: tuple[str, ...] = ()

    @property
    def sass(self) -> dict[str, int]:
        """Machine code that the CUDA runtime registers."""
        return self.loaded.sass

    @property
    def ptx(self) -> dict[str, int]:
        """PTX that the CUDA runtime registers: compiled at the first launch."""
        return self.loaded.ptx

    @property
    def elsewhere_sass(self) -> dict[str, int]:
        """Machine code outside the sections that cuobjdump reads."""
        return self.elsewhere.sass

    @property
    def elsewhere_ptx(self) -> dict[str, int]:
        """PTX outside the sections that cuobjdump reads."""
        return self.elsewhere.ptx

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell: no device code and no problem."""
        return not self.problems and not any(
            code.containers or code.sass for code in (self.loaded, self.relocatable, self.elsewhere)
        )
