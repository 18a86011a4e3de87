"""Whether all that `inspect` says of a wheel is true: the same facts found in another way.

By zipfile, pyelftools, email, packaging, installer, auditwheel's tables and NVIDIA's cuobjdump.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.elf.elffile import ELFFile
from installer.sources import WheelFile
from packaging.utils import parse_wheel_filename

from tests.conftest import CLI
from tests.helpers.commands import invoke

DEVICE_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_CUDA": "cuda", "EM_AMDGPU": "amdgpu"}
Rule = tuple[str, str]  # rule, and the file or other thing that it is about


@dataclass(frozen=True, kw_only=True)
class Elf:
    """A file of machine code as pyelftools reads it."""

    path: str
    machine: str
    needed: list[str]
    rpaths: list[str]
    soname: str
    versions: frozenset[str]
    device: frozenset[str]  # sections with device code
    executable_stack: bool
    text_relocations: bool
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A wheel as others read it."""

    path: Path
    folder: Path  # with its machine code unpacked

    @cached_property
    def infos(self) -> list[zipfile.ZipInfo]:
        with zipfile.ZipFile(self.path) as archive:
            return [info for info in archive.infolist() if not info.is_dir()]

    @cached_property
    def elfs(self) -> list[Elf]:
        found = []
        with zipfile.ZipFile(self.path) as archive:
            for info in self.infos:
                with archive.open(info) as stream:
                    if stream.read(4) == b"\x7fELF":
                        found.append(_elf(Path(archive.extract(info, self.folder)), info.filename))
        return sorted(found, key=lambda one: one.path)

    def text(self, name: str) -> str:
        """A file of the dist-info folder."""
        with zipfile.ZipFile(self.path) as archive:
            (found,) = [one for one in archive.namelist() if one.endswith(f".dist-info/{name}")]
            return archive.read(found).decode()

    def headers(self, name: str) -> Any:
        return email.message_from_string(self.text(name))

    @cached_property
    def tags(self) -> list[str]:
        return sorted(map(str, parse_wheel_filename(self.path.name)[3]))

    @property
    def platforms(self) -> list[str]:
        return [tag.rpartition("-")[2] for tag in self.tags]

    @cached_property
    def policies(self) -> WheelPolicies:
        machine = "aarch64" if self.platforms[0].endswith("aarch64") else "x86_64"
        return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))

    @cached_property
    def record_ok(self) -> bool:
        try:
            with WheelFile.open(self.path) as source:
                source.validate_record()
        except ValueError:
            return False
        return True


def _elf(file: Path, path: str) -> Elf:
    with file.open("rb") as stream:
        elf: Any = ELFFile(stream)
        tags = [tag for table in elf.iter_segments("PT_DYNAMIC") for tag in table.iter_tags()]
        need = elf.get_section_by_name(".gnu.version_r")
        stacks = list(elf.iter_segments("PT_GNU_STACK"))
        return Elf(
            path=path,
            machine=MACHINES[elf.header["e_machine"]],
            needed=[tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"],
            rpaths=[tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"]
            + [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"],
            soname=next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), ""),
            versions=frozenset(one.name for _, ones in need.iter_versions() for one in ones)
            if need
            else frozenset(),
            device=frozenset(one.name for one in elf.iter_sections() if one.name in DEVICE_SECTIONS),
            executable_stack=any(one.header.p_flags & 1 for one in stacks),
            text_relocations=any(tag.entry.d_tag == "DT_TEXTREL" for tag in tags),
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )


def check(wheel: Path, cuobjdump: Path | None = None, *options: str) -> Any:
    """Assert that every line of the page and every field of the JSON holds; the JSON."""
    with tempfile.TemporaryDirectory() as folder:
        truth = Truth(path=wheel, folder=Path(folder))
        found = json.loads(_inspect(wheel, "--json", *options))
        _check_facts(found, truth)
        _check_device_code(found, truth, cuobjdump)
        _check_linkage(found, truth)
        _check_findings(found, truth, judged_alone=not options)
        _check_page(_inspect(wheel, *options), found)
    return found


def _inspect(wheel: Path, *options: str) -> str:
    command = [*CLI, "wheelhouse", "inspect", str(wheel), *options]
    done = invoke(command, env={**os.environ, "COLUMNS": "2000"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check_facts(found: Any, truth: Truth) -> None:
    name, version, build, _ = parse_wheel_filename(truth.path.name)
    metadata = truth.headers("METADATA")
    sizes = sorted(
        ((info.file_size, info.filename) for info in truth.infos), key=lambda one: (-one[0], one[1])
    )
    assert found["filename"] == truth.path.name
    assert found["name"] == name
    assert found["version"] == metadata["Version"] == str(version)
    assert found["build"] == "".join(map(str, build))
    assert found["tags"] == truth.tags
    assert found["requires"] == metadata.get_all("Requires-Dist", [])
    assert found["size"] == truth.path.stat().st_size
    assert found["files"] == len(sizes)
    assert found["unpacked"] == sum(size for size, _ in sizes)
    assert [(one["size"], one["path"]) for one in found["largest"]] == sizes[:10]
    assert found["record_ok"] == truth.record_ok
    assert [(one["path"], one["machine"], one["needed"]) for one in found["libraries"]] == [
        (one.path, one.machine, one.needed) for one in truth.elfs
    ]


def _check_device_code(found: Any, truth: Truth, cuobjdump: Path | None) -> None:
    for said, elf in zip(found["libraries"], truth.elfs, strict=True):
        loaded, related = bool(said["sass"] or said["ptx"]), said.get("relocatable", {}).get("containers", 0)
        if elf.machine != "cuda":
            assert loaded == (".nv_fatbin" in elf.device), elf.path
            assert bool(related) == ("__nv_relfatbin" in elf.device), elf.path
        if loaded and cuobjdump and elf.machine != "cuda":
            file = truth.folder / elf.path
            assert _short(said["sass"]) == _listed(cuobjdump, "--list-elf", file)
            assert _short(said["ptx"]) == _listed(cuobjdump, "--list-ptx", file)
        assert said.get("problems", []) == []


def _short(counts: dict[str, int]) -> Counter[str]:
    """As cuobjdump names them: sm_120 for sm_120f, sm_80 for compute_80."""
    total: Counter[str] = Counter()
    for target, number in counts.items():
        total[re.sub(r"^compute_", "sm_", target.removesuffix("f"))] += number
    return total


def _listed(cuobjdump: Path, listing: str, file: Path) -> Counter[str]:
    done = subprocess.run([cuobjdump, listing, file], capture_output=True, text=True, check=False)
    return Counter(re.findall(r"^(?:ELF|PTX) file.*\.(sm_\w+)\.(?:cubin|ptx)$", done.stdout, re.MULTILINE))


def _check_linkage(found: Any, truth: Truth) -> None:
    files = {info.filename.rpartition("/")[2] for info in truth.infos}
    system = frozenset().union(*(policy.whitelist for policy in truth.policies))
    users: dict[str, list[str]] = {}
    for elf in truth.elfs:
        for soname in elf.needed:
            users.setdefault(soname, []).append(elf.path)
    assert {one["soname"]: one["by"] for one in found["needed"]} == users
    for one in found["needed"]:
        soname, source = one["soname"], one["source"]
        loader = soname in ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
        assert (source == "wheel") == (soname in files)
        assert (source == "system") == (soname not in files and (soname in system or loader))
        if source == "wheel":
            assert one["reason"].removeprefix("it is ") in {elf.path for elf in truth.elfs}


def _check_findings(found: Any, truth: Truth, *, judged_alone: bool) -> None:
    """Of each rule, that it speaks where it should and nowhere else; a rule unknown here fails."""
    said = [one for one in found["findings"] if not one["rule"].startswith("device")]
    rules = {
        rule: [one["message"] for one in said if one["rule"] == rule]
        for rule in {one["rule"] for one in said}
    }
    expected = dict(_expected(truth))
    if judged_alone:
        assert rules.keys() - {"build-paths"} == {rule for rule, subjects in expected.items() if subjects}
    for rule, messages in rules.items():
        if rule == "build-paths":
            for message in messages:
                path, _, leak = re.match(r"(\S+) (holds) (\S+?)(?: and others)?, like", message).groups()  # type: ignore[union-attr]
                assert leak.encode() in (truth.folder / path).read_bytes()
            continue
        for subject in expected[rule]:
            assert any(subject in message for message in messages), (rule, subject, messages)
        if rule != "rpath":
            assert len(messages) == len(expected[rule]), (rule, messages)


def _expected(truth: Truth) -> Iterator[tuple[str, list[str]]]:
    host = [elf for elf in truth.elfs if elf.machine in ("x86_64", "aarch64")]
    wheel = truth.headers("WHEEL")
    inner = sorted(
        str(tag)
        for line in wheel.get_all("Tag")
        for tag in parse_wheel_filename(f"x-1-{line.strip()}.whl")[3]
    )
    purelib = wheel["Root-Is-Purelib"].strip().lower() == "true"
    yield "record", [] if truth.record_ok else ["RECORD"]
    yield "tags", [] if inner == truth.tags else [" ".join(inner)]
    yield "purelib", [host[0].path] if purelib and host else []
    yield "manylinux", [tag for tag in truth.platforms if tag.startswith("linux_")]
    yield "elf-machine", [elf.path for elf in host if not truth.platforms[0].endswith(elf.machine)]
    entries = {entry for elf in host for path in elf.rpaths if path for entry in path.split(":")}
    foreign = sorted(entry for entry in entries if not entry.startswith(("$ORIGIN", "${ORIGIN}")))
    yield "rpath", [entry or "an empty path" for entry in foreign]
    yield "symbol-versions", list(_too_new(truth, host))
    yield "executable-memory", [elf.path for elf in host if elf.executable_stack]
    yield "text-relocations", [elf.path for elf in host if elf.text_relocations]
    yield "duplicates", list(_duplicates(host))
    tops = {info.filename.partition("/")[0] for info in truth.infos}
    yield "startup-code", [top for top in tops if top.endswith(".pth")]


def _too_new(truth: Truth, host: list[Elf]) -> Iterator[str]:
    for tag in truth.platforms:
        allowed = next((one for one in truth.policies if tag in (one.name, *one.aliases)), None)
        for elf in host if allowed else ():
            for version in elf.versions:
                kind, _, number = version.partition("_")
                if (
                    allowed
                    and kind in allowed.symbol_versions
                    and number not in allowed.symbol_versions[kind]
                ):
                    yield elf.path
                    break


def _duplicates(host: list[Elf]) -> Iterator[str]:
    for key in ("sha256", "soname"):
        groups: dict[str, list[Elf]] = {}
        for elf in host:
            groups.setdefault(getattr(elf, key), []).append(elf)
        for value, group in groups.items():
            if value and len({elf.sha256 for elf in group}) > (key == "soname") and len(group) > 1:
                yield ", ".join(elf.path for elf in group[:3])


def _check_page(page: str, found: Any) -> None:
    """Every line of the page says what a field of the JSON says."""
    lines = [line for line in page.splitlines() if line]
    assert lines[0] == found["filename"]
    assert lines[1].split(", for ")[1].split() == found["tags"]
    assert f"{found['files']} files of " in lines[2]
    assert ("RECORD is true" in lines[2]) == found["record_ok"]
    if found["best_tag"]:
        assert (
            lines.pop(3).strip().startswith(f"best platform tag by its symbol versions: {found['best_tag']}")
        )
    sections = _sections(lines[4:])
    assert [line.split()[-1] for line in sections.pop("LARGEST FILES")] == [
        one["path"] for one in found["largest"][:5]
    ]
    rows = sections.pop("LIBRARIES AND PROGRAMS", [])
    libraries = {" ".join([one["path"], one["machine"], *one["needed"]]) for one in found["libraries"]}
    assert {" ".join(line.split()) for line in rows if not line.startswith("and ")} <= libraries
    assert len(rows) == min(len(libraries), 41)
    linked = {" ".join([one["soname"], one["source"], one["reason"]]) for one in found["needed"]}
    assert {" ".join(line.split()) for line in sections.pop("WHERE THEY COME FROM", [])} == linked
    assert _table(sections.pop("DEVICE CODE (entries by architecture)", [])) == _codes(found)
    findings = [f"{one['severity']}: {one['rule']}: {one['message']}" for one in found["findings"]]
    (title,) = [name for name in sections if name.startswith("FINDINGS: ")]
    told = sections.pop(title)
    assert sorted(line for line in told if not line.startswith("  ")) == sorted(findings)
    counted = Counter(one["severity"] for one in found["findings"])
    assert {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) (\w+)", title)} == counted
    assert sections == {}


def _sections(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        if re.match(r"[A-Z]{4}[A-Z ]+($|\(entries|: )", line) and "  " not in line:
            found[line] = rows = []
        elif not line.startswith(("SIZE ", "LIBRARY ", "FILE  ")) or "sm_" in line or "compute_" in line:
            rows.append(line)
    return found


def _table(lines: list[str]) -> dict[tuple[str, str], int]:
    """(row, architecture) -> number, over all blocks."""
    found: dict[tuple[str, str], int] = {}
    columns: list[str] = []
    for line in lines:
        cells = re.split(r"  +", line)
        if cells[0] == "FILE":
            columns = cells[1:]
            continue
        for column, cell in zip(columns, cells[1:], strict=True):
            if cell != "-":
                assert (cells[0], column) not in found, f"two rows are called {cells[0]}"
                found[cells[0], column] = int(cell)
    return found


def _codes(found: Any) -> dict[tuple[str, str], int]:
    """The same from the JSON, by the end of the path that the page shows."""
    codes = [one for one in (*found["libraries"], *found["device_files"]) if "elsewhere" in one]
    paths = [one["path"] for one in codes]
    table: dict[tuple[str, str], int] = {}
    for one in codes:
        parts = one["path"].split("/")
        ends = ["/".join(parts[-depth:]) for depth in range(1, len(parts) + 1)]
        name = next(
            end for end in ends if sum(path == end or path.endswith(f"/{end}") for path in paths) == 1
        )
        loaded = {"sass": one["sass"], "ptx": one["ptx"], "lto": one["lto"]}
        for where, part in (
            ("", loaded),
            (" (relocatable)", one["relocatable"]),
            (" (elsewhere)", one["elsewhere"]),
        ):
            for kind in ("sass", "ptx", "lto"):
                for target, number in part[kind].items():
                    table[name + where, target] = number
    return table
