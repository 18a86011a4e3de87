"""Build requirements that pip brings from an index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_build.build import requirements
from spark_build.build.stages.environment import lacks_cuda
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
