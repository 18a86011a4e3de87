"""spark-build itself comes along: an offline node installs it from the export and takes the wheels in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_build.core.recipes.targets import resolve
from spark_build.errors import SourceError
from spark_build.host.home import locate
from spark_build.host.probe import probe
from spark_build.host.recipes.catalogue import load
from spark_build.host.transfer.folder import write_folder
from spark_build.host.transfer.parcel import pack
from spark_build.host.transfer.tool import wheels_of_itself
from tests.integration.houses import demo_house, home_in

TARGET = resolve(load(locate(None).data).target("host-cpu"), probe())
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_the_offline_node_needs_nothing_else(tmp_path: Path) -> None:
    home, generation = demo_house(tmp_path / "here")
    told: list[str] = []
    tool = wheels_of_itself(home, TARGET, is_here=True, tell=told.append)
    assert len(told) == 1
    assert wheels_of_itself(home, TARGET, is_here=True, tell=told.append) == tool
    assert len(told) == 1, "kept for the next export"
    (own,) = [path for path in tool if path.name.startswith("spark_build-")]
    assert {"uv", "scipy"} <= {path.name.partition("-")[0] for path in tool}, "what verify needs"
    write_folder(pack(generation, home.store, tool=tool), tmp_path / "set")

    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    env |= {**OFFLINE, "SPARK_BUILD_HOME": str(tmp_path / "there")}
    lines = [line.strip() for line in (tmp_path / "set" / "INSTALL.txt").read_text().splitlines()]
    typed = [line.replace("~", str(tmp_path)) for line in lines if "~/spark-build" in line]
    assert len(typed) == 4
    typed[0] = typed[0].replace(typed[0].split()[0], sys.executable)
    for command in typed[:3]:
        subprocess.run(command, shell=True, cwd=tmp_path / "set", env=env, check=True, timeout=300)
    assert typed[3].endswith("bin/spark-build verify")
    manifests = list((tmp_path / "there" / "wheelhouse" / "views").glob("*/current/manifest.json"))
    (manifest,) = [json.loads(path.read_text()) for path in manifests]
    assert [row["name"] for row in manifest["wheels"]] == ["demo", "helper", "lonely", "more"]

    # The node can hand it on: from what is installed comes the wheel that it was installed from.
    code = "import sys, pathlib; from spark_build.host.transfer import tool; tool._from_installed(pathlib.Path(sys.argv[1]))"
    (tmp_path / "again").mkdir()
    python = str(tmp_path / "spark-build" / "bin" / "python")
    subprocess.run(
        [python, "-c", code, str(tmp_path / "again")], cwd=tmp_path, env=env, check=True, timeout=60
    )
    assert content(tmp_path / "again" / own.name) == content(own)


def test_without_a_network_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    home = home_in(tmp_path)
    with pytest.raises(SourceError, match="spark-build itself cannot be packed") as caught:
        wheels_of_itself(home, TARGET, is_here=True, tell=lambda _: None)
    assert "--without-spark-build" in str(caught.value.hint)
    assert not list((home.cache / "spark-build").glob("*"))
