"""Build requirements that pip brings from an index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_build.build import requirements
from spark_build.build.stages.environment import lacks_cuda
from tests.conftest import Root
from tests.helpers.webserver import serving, sha256
from tests.helpers.wheelhouse import make_wheel


def test_projects_of_one_version_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = ("early==1.3.0", "Late.Bird==1.3.0")
    with serving() as site:
        for name in ("early", "late-bird"):
            wheel = make_wheel(tmp_path / "wheels", name, "1.3.0")
            digest = sha256(wheel.read_bytes())
            url = site.add(f"/files/{wheel.name}", wheel.read_bytes())
            index = site.index(name, {wheel.name: f"{url}#sha256={digest}"})
        for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(variable, "")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index)
        with (tmp_path / "log").open("wb") as log:
            found = requirements.obtain(
                pins,
                {},
                recipe="sample",
                folder=tmp_path / "sources",
                scratch=tmp_path / "scratch",
                offline=False,
                log=log,
            )
    assert [path.name.partition("-")[0] for path in found] == ["early", "late_bird"]


def test_a_plan_says_what_is_to_be_downloaded_until_it_is_here(setuptools_root: Root) -> None:
    root = setuptools_root
    sdist = root.links / "tiny-1.0.tar.gz"
    train = root.folder / "recipes" / "trains" / "t.toml"
    assert root.json("plan", "tiny")["steps"][0]["downloads"] == {"count": 4, "bytes": 0, "unknown": 4}
    train.write_text(train.read_text().replace(" }]", f", size = {sdist.stat().st_size * 1000} }}]"))
    (step,), total = (root.json("plan", "tiny")[name] for name in ("steps", "total"))
    size = sdist.stat().st_size * 1000
    assert step["downloads"] == {"count": 4, "bytes": size, "unknown": 3}
    assert total["download_bytes"] == size
    assert step["estimate"]["download_seconds"] == total["download_seconds"] == size / 12_500_000
    shown = root.run("plan", "tiny").stdout
    assert "at an assumed 100 Mbit/s); 3 of 4 have no known size and are not in that time" in shown
    assert "KiB + 3 of unknown size" in shown
    assert root.run("build", "tiny", "--stop-after", "fetch").returncode == 0
    assert root.json("plan", "tiny")["steps"][0]["downloads"] == {"count": 0, "bytes": 0, "unknown": 0}
    assert "downloads" not in root.run("plan", "tiny").stdout


@pytest.mark.parametrize(
    ("line", "lacks"),
    [("cuda: Optional[str] = None", True), ("cuda: Optional[str] = '13.0'", False), ("cuda = None", True)],
)
def test_a_torch_without_cuda_is_told_from_one_with_it(tmp_path: Path, line: str, lacks: bool) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n"
    )
    assert lacks_cuda(tmp_path) is lacks
