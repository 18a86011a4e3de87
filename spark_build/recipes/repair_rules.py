"""Rules for [repair] and [preflight], the parts of a recipe about the finished wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from spark_build.recipes.toml_positions import Finding, Path, below, items, table, tables

_SONAME = r"[^\s/*?][^\s/]*\.so[^\s/]*"


def repair_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in [repair]."""
    repair, kind = table(raw, "repair"), raw.get("kind")
    useful = {"repack": ("exclude",), "cmake": (), "scons": (), "assemble": ()}.get(str(kind), tuple(repair))
    for key in repair:
        if key not in useful:
            why = "the vendor's wheel is kept byte for byte" if kind == "repack" else "it makes no wheel"
            yield ("repair", key), f"repair.{key} has no meaning in a recipe of kind {kind}: {why}"
    platform = repair.get("platform")
    if isinstance(platform, str) and platform and not re.fullmatch(r"manylinux_2_\d+", platform):
        yield (
            ("repair", "platform"),
            f"repair.platform must be like manylinux_2_34, without the machine, not '{platform}'",
        )
    yield from _excluded(repair)
    for index, pattern in enumerate(items(repair, "rpath")):
        yield from below(pattern, ("repair", "rpath", index), "the file of the wheel")
    external = list(tables(repair, "external"))
    for index, one in external:
        yield from _external(one, ("repair", "external", index))
    if items(repair, "rpath") and not external:
        yield (
            ("repair", "rpath"),
            "repair.rpath leads to the folders of [[repair.external]], and there is none",
        )
    for index, one in tables(repair, "requires"):
        yield from _required(one, ("repair", "requires", index))


def _excluded(repair: Mapping[str, Any]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, soname in enumerate(items(repair, "exclude")):
        if not isinstance(soname, str):
            continue
        if not re.fullmatch(_SONAME, soname):
            yield (
                ("repair", "exclude", index),
                f"'{soname}' is no soname: write libcuda.so.1 or libtorch*.so, as NEEDED names it",
            )
        if soname in seen:
            yield ("repair", "exclude", index), f"'{soname}' is excluded already"
        seen.add(soname)


def _external(one: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Check a distribution that brings libraries: name and extras, no version."""
    text = one.get("distribution")
    if isinstance(text, str):
        found = _requirement(text)
        if found is None or found.specifier or found.marker or found.url:
            yield (
                (*path, "distribution"),
                f"'{text}' is no name of a distribution: write nvidia-nccl-cu13 or cuda-toolkit[cublas]",
            )
    yield from below(one.get("folder"), (*path, "folder"), "the folder below site-packages")
    if one.get("libraries") == []:
        yield (*path, "libraries"), "say which libraries it brings: libnccl.so.*"
    for index, soname in enumerate(items(one, "libraries")):
        if isinstance(soname, str) and not re.fullmatch(_SONAME, soname):
            yield (*path, "libraries", index), f"'{soname}' is no soname: write libnccl.so.*"


def _required(one: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Check a requirement for METADATA, which may hold versions of the train."""
    text = one.get("requirement")
    if isinstance(text, str):
        filled = re.sub(r"\{(version|wheel):[^{}]+\}", "1", text)
        if "{" in filled:
            yield (*path, "requirement"), f"'{text}': write {{version:NAME}} or {{wheel:PROJECT}}"
        elif _requirement(filled) is None:
            yield (*path, "requirement"), f"'{text}' is no requirement: write name==version, with a marker"
    if one.get("why") == "":
        yield (*path, "why"), "say why the wheel requires it"


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def preflight_findings(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the mistakes in [preflight]."""
    preflight = table(raw, "preflight")
    if "preflight" in raw and raw.get("kind") != "pep517":
        yield (
            ("preflight",),
            f"[preflight] has no meaning in a recipe of kind {raw.get('kind')}: no wheel is built",
        )
    package, libraries = preflight.get("package"), list(tables(preflight, "libraries"))
    if libraries and not (isinstance(package, str) and package.isidentifier()):
        yield ("preflight",), "say with preflight.package what is to be imported"
    for index, one in libraries:
        path: Path = ("preflight", "libraries", index)
        yield from below(one.get("path"), (*path, "path"), "the library in the wheel")
        for number, name in enumerate(items(one, "links")):
            if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9_.+:-]+", name):
                yield (
                    (*path, "links", number),
                    f"'{name}' is no name for a linker: write cublas for libcublas.so",
                )
