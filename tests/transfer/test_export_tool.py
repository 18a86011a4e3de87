"""spark-build itself comes along: an offline node installs it from the export and takes the wheels in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_build.environments import closure
from spark_build.errors import SourceError
from spark_build.files import sha256_of
from spark_build.paths import locate
from spark_build.probe import probe
from spark_build.recipes.evaluation import resolve_target
from spark_build.recipes.loader import load
from spark_build.transfer import bundle
from spark_build.transfer.bundle import pack, wheels_of_itself
from spark_build.transfer.bundle_write import write_folder
from tests.helpers.commands import hint_text
from tests.helpers.exports import import_unsigned
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built

TARGET = resolve_target(load(locate(None).data).target("host-cpu"), probe())
SPARK = load(locate(None).data).target("gb10")
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.mark.network
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
    code = "import sys, pathlib; from spark_build.transfer import bundle; bundle._from_installed(pathlib.Path(sys.argv[1]))"
    (tmp_path / "again").mkdir()
    python = str(tmp_path / "spark-build" / "bin" / "python")
    subprocess.run(
        [python, "-c", code, str(tmp_path / "again")], cwd=tmp_path, env=env, check=True, timeout=60
    )
    assert content(tmp_path / "again" / own.name) == content(own)


UV = [
    str(Path(sys.executable).with_name("uv")),
    "--no-config",
    "--offline",
    "pip",
    "install",
    "--python-version",
    "3.12",
]
UV += ["--python-platform", "aarch64-unknown-linux-gnu", "--target", "nowhere"]
PIP = [sys.executable, "-m", "pip", "--isolated", "install", "--ignore-installed", "--target", "nowhere"]
PIP += [*closure.tags(SPARK), "--only-binary", ":all:"]


@pytest.mark.network
def test_a_spark_gets_wheels_of_its_own_kind(tmp_path: Path) -> None:
    """From any machine: the set's public wheels and spark-build's are the Spark's, as two resolvers see it."""
    home, there = home_in(tmp_path / "here"), home_in(tmp_path / "there")
    demo = make_wheel(tmp_path / "d", requires=["pydantic>=2"], tag="cp312-cp312-linux_aarch64")
    built = put_built(home.store, demo)
    public = closure.resolve([built], {}, store=home.store, offline=False, foreign=SPARK)
    generation = publish(home, [built, *public], view="gb10-2.13-cp312")
    tool = wheels_of_itself(home, SPARK, is_here=False, tell=lambda _: None)
    write_folder(pack(generation, home.store, tool=tool), tmp_path / "set")
    arrived = import_unsigned(there, tmp_path / "set").generation

    assert closure.prove_installable(arrived, SPARK) == ()
    for folder in (arrived.folder, tmp_path / "set" / "spark-build"):
        (core,) = folder.glob("pydantic_core-*")
        assert core.name.endswith("_aarch64.whl")
        assert not list(folder.glob("*x86_64*"))
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))
    }
    pinned = ["--require-hashes", "-r", str(arrived.folder / "requirements.txt")]
    own = ["--find-links", str(tmp_path / "set" / "spark-build"), "spark-build[verify]"]
    for wanted in (["--find-links", str(arrived.folder), *pinned], own):
        for command in (UV, PIP):
            dry = [*command, "--quiet", "--dry-run", "--no-index", *wanted]
            done = subprocess.run(
                dry, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{dry}: {done.stderr}"


def test_it_takes_along_only_what_its_lock_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a project that requires one wheel, with another of that name beside it, which pip takes."""
    project = tmp_path / "project"
    make_wheel(project, "spark-build", requires=["helper"], extras=["verify"])
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (project / "backend.py").write_text(
        "import pathlib, shutil\ndef build_wheel(folder, *rest):\n"
        "    (wheel,) = pathlib.Path().glob('*.whl')\n    return pathlib.Path(shutil.copy(wheel, folder)).name\n"
    )
    good, links = make_wheel(tmp_path / "links", "helper"), tmp_path / "links"
    newer = make_wheel(links, "helper", "2.0")
    lock = project / "tools/locks/verify.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"helper==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{sha256_of(good)}\n")
    for name, value in {**OFFLINE, "PIP_FIND_LINKS": str(links)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bundle, "_checkout", lambda: project)

    def taken() -> list[str]:
        tool = wheels_of_itself(home, TARGET, is_here=True, tell=lambda _: None)
        return [path.name for path in tool if not path.name.startswith("spark_build-")]

    home = home_in(tmp_path)
    bad = make_wheel(links, "helper", build="1", files={"helper.pth": b"import os\n"})
    with pytest.raises(SourceError, match=f"^{bad.name} .*verify.txt does not name these bytes"):
        taken()
    assert not list(home.cache.rglob("*.whl"))
    bad.unlink()
    assert taken() == [good.name]
    monkeypatch.setenv("SPARK_BUILD_UNLOCKED", "1")
    assert taken() == [newer.name]
    monkeypatch.delenv("SPARK_BUILD_UNLOCKED")
    assert taken() == [good.name]  # what was kept without a lock is not taken


def test_without_a_network_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    home = home_in(tmp_path)
    with pytest.raises(SourceError, match="spark-build itself cannot be packed") as caught:
        wheels_of_itself(home, TARGET, is_here=True, tell=lambda _: None)
    assert "--without-spark-build" in hint_text(caught.value.hint)
    assert not list((home.cache / "spark-build").glob("*"))
