"""Rules of `recipes lint` on trains and targets: what contradicts itself, what is not pinned down."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from spark_build.recipes.archs import minimum_cuda
from spark_build.recipes.lint_data import REQUIRES, TOOLCHAIN, TRITON_LLVM
from spark_build.recipes.model import Pin, Source, Target, Train
from spark_build.recipes.rawtables import allows, version_of
from spark_build.recipes.remark import Remark, train_file
from spark_build.recipes.toml_positions import Path


def train_remarks(train: Train) -> Iterator[Remark]:
    """What is wrong with a train alone."""
    for name, pin in train.components.items():
        yield from pin_remarks(train_file(train.name), ("components", name), name, pin)
    yield from _contradictions(train)
    yield from _llvm(train)


def target_remarks(target: Target) -> Iterator[Remark]:
    """What is wrong with a target alone."""
    file = f"recipes/targets/{target.name}.toml"
    for index, capability in enumerate(target.cuda_architectures):
        lowest = minimum_cuda(capability)
        if not lowest:
            path: Path = ("cuda_architectures", index)
            yield Remark("error", file, path, f"{capability} is no architecture that is known here")
        elif target.cuda and Version(target.cuda) < Version(lowest):
            say = f"CUDA {target.cuda} cannot compile for {capability}"
            yield Remark("error", file, ("cuda",), say, f"{lowest} or newer")


def pair_remarks(train: Train, target: Target) -> Iterator[Remark]:
    """What a train wants of a target."""
    for component, versions, cuda, python in TOOLCHAIN:
        pin = train.components.get(component)
        version = version_of(pin.version) if pin else None
        if version is None or not allows(versions, version) or not target.cuda_architectures:
            continue
        path: Path = ("components", component, "version")
        if Version(target.cuda) < Version(cuda):
            say = f"{component} {version} wants CUDA >= {cuda}, and {target.name} promises only {target.cuda}"
            yield Remark("error", train_file(train.name), path, say)
        minor = target.python.removeprefix("cp3").rstrip("t")
        if minor.isdigit() and int(minor) < python:
            say = f"{component} {version} wants Python >= 3.{python}, and {target.name} has {target.python}"
            yield Remark("error", train_file(train.name), path, say)


def pin_remarks(file: str, where: Path, name: str, pin: Pin) -> Iterator[Remark]:
    """What is wrong with a pin, in a train or in a recipe."""
    for index, entry in enumerate(pin.unestablished):
        yield Remark("warning", file, (*where, "unestablished", index), f"{name}: not established: {entry}")
    listed: list[tuple[Path, Source]] = [
        ((*where, "sources", index), source) for index, source in enumerate(pin.sources)
    ]
    listed += [((*where, "extra_sources", extra), source) for extra, source in pin.extra_sources.items()]
    for path, source in listed:
        if source.url.startswith(("/", "file:")):
            say = f"{name}: {source.url} is on this machine only"
            yield Remark("warning", file, (*path, "url"), say, "others cannot build this train")
        if source.kind == "archive" and "/archive/" in source.url and "github.com" in source.url:
            say = f"{name}: GitHub makes this archive anew when it likes, and without submodules"
            yield Remark(
                "warning", file, (*path, "url"), say, "use git with a commit, or a release's own file"
            )
        if source.kind == "git" and not source.commit:
            yield Remark("error", file, path, f"{name}: a git source without a full commit is not pinned")
        if source.kind != "git" and not source.sha256:
            yield Remark("error", file, path, f"{name}: a source without a sha256 is not pinned")


def _contradictions(train: Train) -> Iterator[Remark]:
    """Wheels of one train must accept each other."""
    pins = {name: pin.version for name, pin in train.components.items()}
    for component, versions, other, wanted, where in REQUIRES:
        version = version_of(pins.get(component, ""))
        have = pins.get(other) or train.closure.get(other)
        if version is None or not allows(versions, version) or have is None:
            continue
        found = version_of(have)
        if found is None or not allows(wanted, found):
            path: Path = ("components", other, "version") if other in pins else ("closure", other)
            say = f"{component} {version} requires {other}{wanted} ({where}), not {have}"
            yield Remark("error", train_file(train.name), path, say)


def _llvm(train: Train) -> Iterator[Remark]:
    """Triton is written against one LLVM commit."""
    triton, llvm = train.components.get("triton"), train.components.get("llvm")
    commit = TRITON_LLVM.get(triton.version) if triton else None
    if triton is None or llvm is None or commit is None:
        return
    for index, source in enumerate(llvm.sources):
        if source.kind == "git" and source.commit != commit:
            path: Path = ("components", "llvm", "sources", index, "commit")
            say = f"triton {triton.version} is written against LLVM {commit[:12]}, not {source.commit[:12]}"
            yield Remark("error", train_file(train.name), path, say, "see cmake/llvm-hash.txt at its tag")
