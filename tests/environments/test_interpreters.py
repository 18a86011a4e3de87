"""Which interpreter an environment gets; the real ones of this machine are asked."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from packaging.markers import default_environment

from spark_build.environments import interpreters
from spark_build.environments.create import CreateOptions, create, install
from spark_build.errors import HostError, UsageError
from spark_build.wheelhouse.generations import Generation
from tests.environments.test_create import run_in
from tests.helpers.commands import hint_text, invoke
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built
from tests.helpers.wheels import PYTHON, VERSION


def generation_for(
    root: Path, abi: str, *, requires: tuple[str, ...] = (), tag: str = "py3-none-any"
) -> Generation:
    home = home_in(root)
    wheel = put_built(home.store, make_wheel(root / "dist", requires=requires, tag=tag))
    return publish(home, [wheel], view=f"host-cpu-1.0-{abi}")


def fake(folder: Path, name: str, text: str) -> Path:
    """A program that only prints; put before the real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_an_interpreter_says_is_what_packaging_says() -> None:
    own = interpreters.own()
    assert own.markers == default_environment()
    assert (own.abi, own.platform.split("-")[0]) == (PYTHON, sys.platform)


def test_a_path_a_version_and_a_command_mean_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = interpreters.own().base
    (tmp_path / "python-mine").symlink_to(base)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = [
        interpreters.find_interpreter(wanted)
        for wanted in (base, VERSION, "python-mine", str(tmp_path / "python-mine"))
    ]
    assert {one.abi for one in found} == {PYTHON}
    assert interpreters.find_interpreter(sys.prefix).base == base, "the folder of an environment will do, too"


@pytest.mark.parametrize("wanted", ["/bin/ls", "nonsense", "", "3.99"])
def test_what_is_no_python_names_those_there_are(
    wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PATH", str(Path(interpreters.own().base).parent)
    )  # asking all of this machine takes long
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        interpreters.find_interpreter(wanted)
    assert "there are" in hint_text(caught.value.hint)
    assert sys.version.split()[0] in hint_text(caught.value.hint)


def test_pythons_of_path_and_pyenv_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = interpreters.own().base
    for place in ("bin/python3", "pyenv/versions/x/bin/python", "pyenv/versions/y/bin/python"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).symlink_to(base)
    fake(tmp_path / "bin", "python3.5", "exit 127")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    found = [
        one
        for one in interpreters.known()
        if one.abi == PYTHON and os.path.realpath(one.base) == os.path.realpath(base)
    ]
    assert len(found) == 1


def test_what_uv_prefers_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {one.path for one in interpreters.known()}
    monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-managed")
    monkeypatch.setenv("UV_MANAGED_PYTHON", "1")
    assert {one.path for one in interpreters.known()} == before


def test_a_wheel_for_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    python = interpreters.inspect(Path(sys.executable))
    assert python is not None
    tag = f"{PYTHON}-{PYTHON}-manylinux_2_{{}}_{platform.machine()}"
    for glibc, outcome in ((17, nullcontext()), (99, pytest.raises(HostError, match="for another platform"))):
        wheel = put_built(home_in(tmp_path / str(glibc)).store, make_wheel(tmp_path, tag=tag.format(glibc)))
        with outcome:
            interpreters.refuse_unfit([wheel], python)


def test_another_abi_is_refused_with_those_that_would_do(tmp_path: Path) -> None:
    generation = generation_for(tmp_path, PYTHON)
    other = next((one for one in interpreters.known() if one.abi != PYTHON), None)
    if other is None:  # a machine with a single Python: pretend by a program that says it is another
        said = f'{{"base": "/x", "version": "3.1.0", "abi": "cp31", "platform": "{sys.platform}-x", "markers": {{}}}}'
        other = interpreters.find_interpreter(str(fake(tmp_path / "bin", "python3.1", f"echo '{said}'")))
    wish = CreateOptions(names=(), everything=True, with_pip=False, python=other)
    with pytest.raises(UsageError) as caught:
        create(generation, tmp_path / "env", wish)
    assert (
        f"are for {PYTHON} (Python {VERSION}); {other.path} is {other.abi}; on this machine would do: "
        in caught.value.message
    )
    assert interpreters.own().base in caught.value.message
    assert hint_text(caught.value.hint).startswith(f"spark-build env create {tmp_path}/env --python ")
    assert not (tmp_path / "env").exists()


def test_an_abi_that_no_python_here_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python on this machine would do") as caught:
        install(generation_for(tmp_path, "cp399"), tmp_path / "env", [], with_pip=False)
    assert "--python 3.99" in hint_text(caught.value.hint)
    assert not (tmp_path / "env").exists()


def test_a_wheel_of_another_platform_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    generation = generation_for(tmp_path, PYTHON, tag=f"{PYTHON}-{PYTHON}-linux_riscv64")
    with pytest.raises(HostError, match=r"riscv64\.whl is for another platform; this machine is"):
        install(generation, tmp_path / "env", [], with_pip=False)
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_another_interpreter_with_its_own_markers(tmp_path: Path, installer: str) -> None:
    """Where this machine has a second Python 3: its markers decide, and its wheels get in."""
    other = next(
        (one for one in interpreters.known() if one.abi not in (PYTHON, "cp36", "cp37", "cp38")),
        interpreters.own(),
    )
    version = other.markers["python_version"]
    needs = (f"absent; python_version != '{version}'", f"demo; python_version == '{version}'")
    generation = generation_for(tmp_path, other.abi, requires=needs)
    wish = CreateOptions(names=(), everything=True, with_pip=False, python=other, installer=installer)
    create(generation, tmp_path / "env", wish)
    said = run_in(tmp_path / "env", "import demo, sys; print(demo.VERSION, *sys.version_info[:2])")
    assert said == f"1.0 {version.replace('.', ' ')}"


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    demo_house(tmp_path)
    for place in (tmp_path / "wheelhouse" / "views").iterdir():
        place.rename(place.with_name(f"gb10-2.13-{PYTHON}"))
    command = [sys.executable, "-m", "spark_build", "--root", str(tmp_path), "--target", "gb10"]
    done = invoke([*command, "env", "create", str(tmp_path / "env")])
    assert done.returncode == 4
    assert "the wheels of target gb10 are for linux-aarch64, this machine is" in done.stderr
    assert "wheelhouse export" in done.stderr
