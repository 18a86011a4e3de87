"""Environments that are filled by uv: which uv, from which paths, and what of them runs on the way."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from spark_build import venv
from spark_build.venv import find_uv
from tests.helpers.wheelhouse import make_wheel


def program(folder: Path, version: str) -> Path:
    """A program that says it is this uv."""
    folder.mkdir()
    made = folder / "uv"
    made.write_text(f"#!/bin/sh\necho 'uv {version}'\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("0.13.9 (x86_64-unknown-linux-gnu)", True),
        ("0.11.6", True),
        ("1.0.0", True),
        ("0.10.0", False),
        ("0.5.9", False),
        ("unknown", False),
    ],
)
def test_only_a_uv_that_keeps_wheels_inside_is_used(
    version: str, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(tmp_path / "path", version)
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    assert find_uv() == (str(on_path) if usable else None)


def test_our_own_uv_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(tmp_path / "own", "0.12.0")
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'path', '99.0.0').parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(own.with_name("python")))
    assert find_uv() == str(own)


@pytest.mark.parametrize("name", ["plain", "a#b", "a ${HOME} b", "a%20b"])
def test_a_wheel_is_installed_from_any_folder(name: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / name, "some-demo")
    venv.create(tmp_path / "env")
    done = venv.uv(tmp_path / "env", ["install", "--no-deps", "--no-build", venv.requirement_of(wheel)])
    assert done.returncode == 0, done.output
    assert list((tmp_path / "env").glob("lib/python*/site-packages/some_demo/__init__.py"))


def test_no_entry_point_is_written_outside(tmp_path: Path) -> None:
    points = b"[console_scripts]\n../../../escaped = demo:main\n"
    files = {"demo/__init__.py": b"", "demo-1.0.dist-info/entry_points.txt": points}
    venv.create(tmp_path / "a" / "env")
    wheel = venv.requirement_of(make_wheel(tmp_path / "w", files=files))
    done = venv.uv(tmp_path / "a" / "env", ["install", "--no-deps", "--no-build", wheel])
    assert done.returncode != 0
    assert not list(tmp_path.rglob("escaped"))


def test_a_pth_does_not_run_between_calls_with_one_cache(tmp_path: Path) -> None:
    marker, environment, cache = tmp_path / "ran", tmp_path / "env", tmp_path / "cache"
    code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n".encode()
    hostile = make_wheel(tmp_path / "w", files={"demo.py": b"", "demo.pth": code})
    venv.create(environment)
    for arguments in (
        ["install", "--no-deps", "--no-build", venv.requirement_of(hostile)],
        ["check"],
        ["install", "--no-deps", "--no-build", venv.requirement_of(make_wheel(tmp_path / "w", "other"))],
    ):
        done = venv.uv(environment, arguments, cache=cache)
        assert done.returncode == 0, done.output
    assert not marker.exists()
    shutil.rmtree(cache)
    venv.uv(environment, ["check"], cache=cache)
    assert marker.exists(), "else nothing was tried"


def test_packages_are_compiled_without_running_their_code(tmp_path: Path) -> None:
    env, ran = tmp_path / "env", tmp_path / "ran"
    venv.create(env)
    (packages,) = env.glob("lib/python*/site-packages")
    (packages / "good.py").write_text("answer = 42\n")
    (packages / "template.py").write_text("class {{ name }}:\n")
    (packages / "eager.pth").write_text(f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n")
    (packages / "sitecustomize.py").write_text(f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n")

    venv.compile_packages(env)

    compiled = {path.name.partition(".")[0] for path in packages.glob("__pycache__/*.pyc")}
    assert compiled == {"good", "sitecustomize"}
    assert not ran.exists()


def test_the_reason_that_an_installer_gives() -> None:
    long = "Collecting one\n" * 100
    assert venv.error_in(f"{long}ERROR: no match\nERROR: No matching distribution") == "no match"
    conflict = "The conflict is caused by:\n    a 1 depends on b\n    The user requested (constraint) b===1\n\nTo fix this"
    said = venv.error_in(f"{conflict} you could\nERROR: Cannot install a\n")
    assert said == "Cannot install a; a 1 depends on b; The user requested (constraint) b===1"
    assert venv.error_in(f"Resolved\nerror: no such\n  hint: {long}").startswith("error: no such hint")
    assert venv.error_in(f"{long}Killed").endswith("Collecting one Killed")
