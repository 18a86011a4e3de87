"""What a wheel holds besides its metadata: what its libraries ask of the loader, how its files are named."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCode:
    """What an ELF file says for the loader, and what it tells about the machine it was built on."""

    soname: str = ""
    rpaths: tuple[str, ...] = ()  # RPATH and RUNPATH, one folder each, as written
    versions: tuple[tuple[str, str], ...] = ()  # (soname, symbol version): ("libc.so.6", "GLIBC_2.34")
    writable_code: bool = False  # a segment that is writable and executable
    executable_stack: bool = False
    text_relocations: bool = False
    leaks: tuple[str, ...] = ()  # paths in its bytes that look like the build machine's


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSize:
    """A file of the wheel: its size unpacked and in the zip."""

    path: str
    size: int
    packed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """The files of a wheel as a whole; of each kind of oddity, the first few."""

    dist_info: str = ""  # name of the folder
    files: int = 0
    unpacked: int = 0  # bytes
    packed: int = 0
    largest: tuple[FileSize, ...] = ()
    collisions: tuple[tuple[str, ...], ...] = ()  # names that one folder cannot hold everywhere
    special: tuple[tuple[str, str], ...] = ()  # (name, what it is instead of a file)
    writable: tuple[str, ...] = ()  # by everybody
    privileged: tuple[str, ...] = ()  # set-user-ID, set-group-ID
    denormal: tuple[str, ...] = ()  # names that some file systems change
    tops: tuple[str, ...] = ()  # what lands directly in site-packages
    declared: tuple[str, ...] = ()  # what top_level.txt lists; empty without that file
    schemes: tuple[str, ...] = ()  # files below .data that no installer knows a place for
    startup: tuple[str, ...] = ()  # .pth files with code that every start of Python runs
