"""Extra sources through a whole build: files of several wheels, laid together and placed in the source's tree."""

from __future__ import annotations

import hashlib
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.recipes.fields import PLATFORMS
from spark_build.recipes.model import Source
from spark_build.sources.source_types import lay_tree
from tests.conftest import SETUPTOOLS, SETUPTOOLS_RECIPE, TRAIN, Root, make_root

SETUP = """
from setuptools import setup
setup(name="tiny", version="1.0", packages=["tiny"], package_data={"tiny": ["backend/**"]})
"""
PLACED = """
[build.place."tiny/backend"]
value = "{extra:vendor}"
why = "setup.py: package data"
"""
TOOL = "#!/bin/sh\necho tool for "


def vendor_wheel(folder: Path, project: str, files: Mapping[str, str]) -> tuple[str, str]:
    """Write a vendor's wheel, programs of which may be executed by their owner; its file name and sha256."""
    path = folder / f"{project}-2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{project}-2.0.dist-info/METADATA": ""}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100744 if "/bin/" in name else 0o100644) << 16
            archive.writestr(entry, text)
    return path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def extra(root: Root, key: str, files: Mapping[str, str], copy: str, *, only: str = "") -> str:
    """Make a wheel, and return its entry among the extra sources of tiny."""
    filename, sha256 = vendor_wheel(root.links, key.replace("-", "_"), files)
    return (
        f'\n[components.tiny.extra_sources.{key}]\nkind = "wheel"\nproject = "{key}"\n'
        f'filename = "{filename}"\nsha256 = "{sha256}"\nfolder = "vendor"\nplatform = "{only}"\ncopy = {{ {copy} }}\n'
    )


@pytest.fixture
def placing(tmp_path: Path) -> Root:
    """A root whose recipe places a vendor's files in the package."""
    root = make_root(
        tmp_path, {**SETUPTOOLS, "setup.py": SETUP, "tiny/backend/own.txt": "ours", "tiny/__init__.py": ""}
    )
    root.recipe(SETUPTOOLS_RECIPE.format(disk=50) + PLACED)
    return root


def train(root: Root, *entries: str) -> None:
    sdist = hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    root.train(TRAIN.format(sha256=sdist) + "".join(entries))


def test_files_of_several_wheels_are_placed_and_end_up_in_the_wheel(placing: Root) -> None:
    here = f"linux-{platform.machine()}"
    (other,) = [one for one in PLATFORMS if one != here]
    empty = {"v/include/__init__.py": ""}
    tools = [
        extra(
            placing,
            f"tool-{one.removeprefix('linux-').replace('_', '-')}",
            {"v/bin/tool": TOOL + one, "v/bin/unwanted": ""},
            '"v/bin/tool" = "bin/tool-1"',
            only=one,
        )
        for one in (here, other)
    ]
    headers = [
        extra(placing, name, {**empty, f"v/include/{name}.h": name}, '"v/include" = "include"')
        for name in "ab"
    ]
    train(placing, *tools, *headers)
    done = placing.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (placing.folder / "wheelhouse" / "store").rglob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {one.filename: one for one in archive.infolist() if "/backend/" in one.filename}
        assert sorted(held) == [
            "tiny/backend/bin/tool-1",
            "tiny/backend/include/__init__.py",
            "tiny/backend/include/a.h",
            "tiny/backend/include/b.h",
            "tiny/backend/own.txt",
        ]
        assert archive.read("tiny/backend/bin/tool-1").decode() == TOOL + here
        assert held["tiny/backend/bin/tool-1"].external_attr >> 16 & 0o111
        assert not held["tiny/backend/include/a.h"].external_attr >> 16 & 0o111


@pytest.mark.parametrize(
    ("files", "copy", "expected"),
    [
        ({"v/x.h": "one"}, '"v/y.h" = "y.h"', "b-2.0-py3-none-any.whl has no v/y.h"),
        (
            {"v/x.h": "two"},
            '"v" = "."',
            "b-2.0-py3-none-any.whl and another extra source lay two different x.h",
        ),
    ],
)
def test_what_cannot_be_laid_is_said(
    placing: Root, files: Mapping[str, str], copy: str, expected: str
) -> None:
    train(placing, extra(placing, "a", {"v/x.h": "one"}, '"v" = "."'), extra(placing, "b", files, copy))
    done = placing.run("build", "tiny", "--no-closure")
    assert done.returncode == 5, done.stdout + done.stderr
    assert expected in done.stderr


def test_a_link_of_one_source_does_not_lead_another_one_out_of_the_folder(tmp_path: Path) -> None:
    outside, vendor = tmp_path / "laid/outside", tmp_path / "laid/vendor"
    outside.mkdir(parents=True)
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "a/b/c").mkdir(parents=True)
    (first / "a/b/c/way").symlink_to("../../outside")  # within the source, and out of the folder once laid
    (second / "way").mkdir(parents=True)
    (second / "way/planted").write_text("x")
    sources = [
        Source(kind="local", url=str(first), copy={"a/b/c": "sub"}),
        Source(kind="local", url=str(second), copy={".": "sub"}),
    ]
    lay_tree(sources[0], {"name": "first"}, folder=tmp_path, destination=vendor)
    with pytest.raises(SourceError, match="outside its folder"):
        lay_tree(sources[1], {"name": "second"}, folder=tmp_path, destination=vendor)
    assert list(outside.iterdir()) == []
