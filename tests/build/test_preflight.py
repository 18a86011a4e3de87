"""A preflight through the command line: a stub tells before the build what the wheel would fail with."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import PROJECT, TRAIN, Root, make_root
from tests.helpers.wheels import compiled

DEEP = """\
name = "deep"
distribution = "nvidia-deep"
summary = "a vendor's libraries to link with"
kind = "assemble"

[build]

[prefix]
copy = { "nvidia/deep" = "." }
unversioned = ["lib"]
"""
TINY = """\
name = "tiny"
distribution = "tiny"
summary = "links what a vendor's wheel brings"
kind = "pep517"

[build]
requires = []
disk_mib = 50

[[needs]]
name = "deep"

[repair]
bundle = true
clean_rpath = true
rpath = ["tiny/lib/*.so"]

[[repair.external]]
distribution = "nvidia-deep"
folder = "nvidia/deep/lib"
libraries = ["libdeep.so.*"]

[[repair.external]]
distribution = "nvidia-deep[more]"
folder = "nvidia/deep/lib"
libraries = ["libdeeper.so.*"]

[[repair.requires]]
requirement = "nvidia-deep[more]=={wheel:nvidia-deep}"
why = "libreal.so loads it"

[preflight]
package = "tiny"

[[preflight.libraries]]
path = "tiny/lib/libreal.so"
links = ["deep", "plain"]
"""
# Marks that it was begun; ends at once.
SETUP = "from pathlib import Path\nfrom setuptools import setup\nPath(__file__).with_name('begun').touch()\nsetup(name='tiny', version='1.0', packages=['tiny'])\n"


def vendor(folder: Path, scratch: Path) -> tuple[str, str]:
    """A vendor's wheel, its file name and sha256: libdeep.so.1 loads libdeeper.so.1, libplain.so.1 is to be bundled."""
    path = folder / "nvidia_deep-1.2-py3-none-any.whl"
    deeper = compiled(
        scratch, "libdeeper.so.1", "int deeper(void) { return 1; }", "-Wl,-soname,libdeeper.so.1"
    )
    (scratch / "libdeeper.so").symlink_to(deeper.name)
    flags = (
        "-Wl,-soname,libdeep.so.1",
        "-Wl,--no-as-needed",
        "-Wl,-rpath,$ORIGIN",
        f"-L{scratch}",
        "-ldeeper",
    )
    evil = f'__attribute__((constructor)) void run(void) {{ fopen("{scratch}/ran", "w"); }}'
    code = f"#include <stdio.h>\nint deep(void) {{ return 2; }}\n{evil}\n"
    deep = compiled(scratch, "libdeep.so.1", code, *flags)
    plain = compiled(scratch, "libplain.so.1", "int plain(void) { return 3; }", "-Wl,-soname,libplain.so.1")
    with zipfile.ZipFile(path, "w") as archive:
        for library in (deeper, deep, plain):
            archive.writestr(f"nvidia/deep/lib/{library.name}", library.read_bytes())
        archive.writestr(
            "nvidia_deep-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: nvidia-deep\nVersion: 1.2\n"
        )
        archive.writestr("nvidia_deep-1.2.dist-info/RECORD", "")
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = make_root(tmp_path, {**PROJECT, "setup.py": SETUP, "tiny/__init__.py": ""})
    (root.folder / "recipes/deep.toml").write_text(DEEP)
    root.recipe(TINY)
    filename, digest = vendor(root.links, tmp_path / "c")
    sdist = hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    pinned = f'project = "nvidia-deep", filename = "{filename}", sha256 = "{digest}"'
    deep = f'\n[components.deep]\nversion = "1.2"\nsources = [{{ kind = "wheel", {pinned} }}]\n'
    root.train(TRAIN.format(sha256=sdist) + deep)
    done = root.run("build", "deep", "--no-closure")
    assert done.returncode == 0, done.stderr
    return root


def begun(root: Root) -> bool:
    return bool(list(root.folder.glob("build/tiny/*/src/begun")))


def changed(root: Root, changes: Mapping[str, str]) -> None:
    text = TINY
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    root.recipe(text)


# libplain.so.1 is bundled from the prefix of the need, which its RPATH names as the sandbox has it.
def test_it_is_planned_done_before_the_build_and_not_again(root: Root) -> None:
    changed(root, {"requires = []\n": "requires = []\nnetwork = true\n"})
    said = root.run("plan", "tiny").stdout
    assert "preflight first: a stub of a library is linked, repaired, audited, imported" in " ".join(
        said.split()
    )
    done = root.run("build", "tiny", "--stop-after", "preflight")
    assert done.returncode == 0, done.stderr
    assert "tiny: preflight done" in done.stderr
    assert not begun(root)
    (log,) = root.folder.glob("build/tiny/*/build.log")
    assert "import tiny" in log.read_text()
    assert "--share-net" not in log.read_text(), "the preflight of a recipe that may download could, too"
    assert not list(root.folder.glob("build/tiny/*/preflight"))
    assert not (root.links.parent / "c" / "ran").exists(), "a library of a need ran outside the sandbox"
    again = root.run("build", "tiny", "--stop-after", "build")
    assert again.returncode == 0, again.stderr
    assert "preflight" not in again.stderr
    assert begun(root)


FAULTS = {
    "no RPATH": (
        {'rpath = ["tiny/lib/*.so"]\n': ""},
        "no RPATH of tiny/lib/libreal.so leads to nvidia/deep/lib, where libdeep.so.1 will be",
    ),
    "not required": (
        {"nvidia-deep[more]=={wheel:nvidia-deep}": "other==1"},
        "the wheel does not require nvidia-deep: libdeep.so.1 would be missing; add it to repair.requires",
    ),
    "an extra less, which only loading shows": (
        {"nvidia-deep[more]==": "nvidia-deep=="},
        "preflight: `import tiny` would fail in a fresh environment: OSError: libdeeper.so.1: cannot open",
    ),
    "nothing to link with": (
        {'links = ["deep", "plain"]': 'links = ["deepest"]'},
        "tiny/lib/libreal.so cannot be linked as tiny would link it: ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_build_before_it_begins(fault: str, root: Root) -> None:
    changes, words = FAULTS[fault]
    changed(root, changes)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode in (7, 8), done.stderr
    assert words in done.stderr
    assert "tiny: preflight failed" in done.stderr
    assert not begun(root)


def test_the_same_command_goes_on_once_the_recipe_is_mended(root: Root) -> None:
    changed(root, {'links = ["deep", "plain"]': 'links = ["deepest"]'})
    assert root.run("build", "tiny", "--no-closure").returncode == 7
    root.recipe(TINY)
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert "tiny: environment kept" in done.stderr
    (wheel,) = root.folder.glob("wheelhouse/store/*/*/tiny-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("tiny-1.0.dist-info/METADATA").decode()
    assert "Requires-Dist: nvidia-deep[more]==1.2" in metadata
