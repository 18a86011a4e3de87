"""Locks of build requirements: what `recipes pin` writes, what a build takes, what a key holds."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock, is_valid_pylock_path
from packaging.utils import parse_wheel_filename

from spark_build.authoring.locks import pins_of
from spark_build.build import requirements
from spark_build.errors import RecipeError, SourceError
from spark_build.files import sha256_of
from spark_build.recipes.loader import closure_locks, load, read_lock
from spark_build.recipes.parse import lock_file, parse_lock, render_lock
from spark_build.venv import find_uv
from spark_build.wheels import model as wheels_model
from tests.build.test_offline import alone
from tests.conftest import ROOT, Root
from tests.helpers.recipe_roots import make, statuses
from tests.helpers.webserver import Site, serving
from tests.helpers.wheelhouse import home_in, make_wheel
from tests.helpers.wheels import tags_of

HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,3})?", fullmatch=True)
WHEELS = st.dictionaries(
    st.builds("{}=={}".format, NAMES, st.from_regex(r"[1-9][0-9]?(\.[0-9]){0,2}", fullmatch=True)),
    st.dictionaries(NAMES.map("a-1-py3-none-{}.whl".format), HASHES, min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@given(WHEELS)
def test_what_is_written_is_read(wheels: dict[str, dict[str, str]]) -> None:
    text = render_lock(wheels)
    assert parse_lock(text, "lock").wheels == wheels


@pytest.mark.parametrize(
    "text",
    [
        "",
        "packages = 3",
        "packages = [3]",
        '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ path = "a.whl" }]',
        '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ path = "a.whl", hashes = { sha256 = "00" } }]',
        '[[packages]]\nname = "a b"\nversion = "1"\nwheels = []',
        "a = " + "[" * 5000,
        "a = " + "9" * 5000,
    ],
)
def test_what_is_no_lock_is_said(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^lock is no lock of wheels"):
        parse_lock(text, "lock")


def test_a_strangers_lock_costs_no_time() -> None:
    """A key of many parts takes time that grows with the square of them."""
    with pytest.raises(RecipeError, match="a key of more than 32 parts"):
        parse_lock(f"packages = []\n{'a.' * 2000}a = 1\n", "lock")
    with pytest.raises(RecipeError, match="more than 262,144 characters"):
        parse_lock(f"packages = []\n#{'a' * 300_000}\n", "lock")


def test_shipped_recipes_are_locked_for_both_processors() -> None:
    catalogue, home = load([ROOT]), dataclasses.replace(home_in(ROOT), data=(ROOT,))
    compiled = {name for name in catalogue.recipes if pins_of(name, catalogue)}
    assert {"torch", "triton", "llvm", "onnx", "flash-attn"} <= compiled
    for name in compiled:
        Pylock.from_dict(tomllib.loads((ROOT / lock_file(name)).read_text()))  # what packaging calls valid
        lock, pins = read_lock(home, name), pins_of(name, catalogue)
        assert lock is not None
        assert tuple(sorted(lock.wheels)) == pins, name
        for platform in ("linux-x86_64", "linux-aarch64"):
            assert [pin for pin, found in lock.hashes(pins, platform).items() if not found] == [], name
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "recipes" / "locks").rglob("*.toml")} == {
        lock_file(owner) for owner in (*compiled, *(f"trains/{name}" for name in catalogue.trains))
    }


def test_shipped_trains_lock_what_completes_their_sets() -> None:
    catalogue, home = load([ROOT]), dataclasses.replace(home_in(ROOT), data=(ROOT,))
    for name, train in catalogue.trains.items():
        path = ROOT / lock_file(f"trains/{name}")
        Pylock.from_dict(tomllib.loads(path.read_text()))
        assert is_valid_pylock_path(path)
        for platform in ("linux-x86_64", "linux-aarch64"):
            (lock, *more) = closure_locks(home, train, platform, catalogue.recipes.values())
            assert all(files for one in (lock, *more) for files in one.wheels.values()), name
            assert {one.owner for one in more} >= {"mamba-ssm", "deepspeed", "transformer-engine-torch"}
            wheels = lock.wheels
            assert {f"{one}=={version}" for one, version in train.closure.items()} <= set(wheels)
            # CUDA's libraries, which the train itself pins.
            (cublas,) = [files for pin, files in wheels.items() if pin.startswith("nvidia-cublas==")]
            assert [file.endswith(f"_{platform.partition('-')[2]}.whl") for file in cublas] == [True]


# What the wheels of a recipe require beside torch and each other: by their METADATA, or the sdist's PKG-INFO.
REQUIRED = {
    "causal-conv1d": "packaging ninja",
    "deepspeed": "einops hjson msgpack ninja numpy packaging>=20.0 psutil py-cpuinfo pydantic>=2.0.0 tqdm "
    "nvidia-ml-py",
    "gsplat": "ninja numpy jaxtyping rich>=12",
    "mamba-ssm": "tilelang==0.1.8 apache-tvm-ffi<=0.1.9 quack-kernels>=0.3.4 triton>=3.5.0 ninja einops "
    "transformers packaging setuptools>=61.0.0",
    "torch-cluster": "scipy",
    "torch-sparse": "scipy",
    "transformer-engine-torch": "einops onnxscript onnx packaging pydantic nvdlfw-inspect "
    "nvidia-cudnn-frontend>=1.29.0 transformer-engine-cu13==2.20.2 transformer-engine==2.20.2",
    "xformers": "numpy",
}


@pytest.mark.network
@pytest.mark.parametrize("without", ["mamba-ssm", "transformer-engine-torch"])
@pytest.mark.parametrize("python", ["cp311", "cp314"])
@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
def test_shipped_locks_hold_all_that_is_required(
    tmp_path: Path, platform: str, python: str, without: str
) -> None:
    """In one resolution for each train, but for two recipes that exclude each other."""
    catalogue, home = load([ROOT]), dataclasses.replace(home_in(ROOT), data=(ROOT,))
    target = dataclasses.replace(catalogue.target("gb10"), platform=platform, python=python)
    place = ("--python-version", wheels_model.python_version(target), "--python-platform")
    for train in catalogue.trains.values():
        recipes = [one for one in catalogue.recipes.values() if one.name != without and train.name != "2.9"]
        locks = closure_locks(home, train, platform, recipes)
        wanted, constraints = tmp_path / "wanted", tmp_path / "constraints"
        closures = {name: version for one in recipes for name, version in one.closure.items()}
        pins = closures | {"torch": train.closure["torch"]}
        named = " ".join(REQUIRED.get(one.name, "") for one in recipes).split()
        pinned = (f"{name}=={version}" for name, version in pins.items())
        wanted.write_text("\n".join([*pinned, *named]))
        constraints.write_text("\n".join(locks[0].wheels))
        command = [find_uv() or "uv", "pip", "compile", "-q", "--no-config", "--no-header", "--no-annotate"]
        command += [*place, f"{platform.partition('-')[2]}-manylinux_2_39", "--only-binary", ":all:"]
        output = subprocess.check_output([*command, "-c", str(constraints), str(wanted)], text=True)
        files = [parse_wheel_filename(file) for lock in locks for pin in lock.wheels.values() for file in pin]
        fitting = {(name, str(version)) for name, version, _, tags in files if tags & tags_of(target)}
        found = {tuple(pin.split("==")) for pin in output.split()}
        assert ("torch", train.closure["torch"]) in found
        assert found - fitting == set(), train.name


# --- what a build takes -----------------------------------------------------------------------------


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An index of its own, which pip knows alone."""
    with serving() as site:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, "")
        yield site


def offer(site: Site, wheel: Path) -> None:
    url = site.add(f"/files/{wheel.name}", wheel.read_bytes())
    site.index("early", {wheel.name: f"{url}#sha256={sha256_of(wheel)}"})


def obtained(folder: Path, *hashes: str) -> list[Path]:
    with (folder / "log").open("wb") as log:
        return requirements.obtain(
            ("early==1.3.0",),
            {"early==1.3.0": hashes} if hashes else {},
            recipe="sample",
            folder=folder / "sources",
            scratch=folder / "scratch",
            offline=False,
            log=log,
        )


def test_an_index_with_other_bytes_is_refused(index: Site, tmp_path: Path) -> None:
    good = make_wheel(tmp_path / "good", "early", "1.3.0")
    other = make_wheel(tmp_path / "other", "early", "1.3.0", files={"early.pth": b"import os\n"})
    offer(index, other)
    with pytest.raises(SourceError, match=r"early.*not the bytes of early==1\.3\.0 that the recipe's lock"):
        obtained(tmp_path, sha256_of(good))
    offer(index, good)
    assert [sha256_of(path) for path in obtained(tmp_path, sha256_of(good))] == [sha256_of(good)]


def test_a_folder_with_other_bytes_is_passed_over_or_refused(
    index: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of find-links, which comes first without a lock."""
    good = make_wheel(tmp_path / "good", "early", "1.3.0")
    other = make_wheel(tmp_path / "other", "early", "1.3.0", files={"early.pth": b"import os\n"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(other.parent))
    assert [sha256_of(path) for path in obtained(tmp_path / "good")] == [sha256_of(other)]
    with pytest.raises(SourceError, match=r"early-1\.3\.0-py3-none-any\.whl"):
        obtained(tmp_path, sha256_of(good))
    monkeypatch.setenv("PIP_FIND_LINKS", f"{other.parent} {good.parent}")
    assert [sha256_of(path) for path in obtained(tmp_path, sha256_of(good))] == [sha256_of(good)]


def test_what_was_kept_before_the_lock_is_not_taken(index: Site, tmp_path: Path) -> None:
    other = make_wheel(tmp_path / "other", "early", "1.3.0", files={"early.pth": b"import os\n"})
    good = make_wheel(tmp_path / "good", "early", "1.3.0")
    offer(index, other)
    obtained(tmp_path / "good")
    (tmp_path / "good" / "sources").rename(tmp_path / "sources")
    with pytest.raises(SourceError, match="not the bytes"):
        obtained(tmp_path, sha256_of(good))


@pytest.mark.parametrize("swapped", ["it", "what it requires"])
def test_a_public_need_with_other_bytes_is_refused(tmp_path: Path, swapped: str) -> None:
    """Beside the locked wheel lies one that pip takes in its place."""
    root = make(
        tmp_path, {"demo": "", "b": "MODULE = lambda: str(__import__('demo').VERSION)"}, {"b": "demo"}
    )
    recipe = root.folder / "recipes/b.toml"
    recipe.write_text(recipe.read_text().replace('name = "demo"', 'name = "demo"\nproviders = ["public"]'))
    assert root.run("build", "b", "--stop-after", "fetch").returncode == 0
    good, brought = tmp_path / "good", tmp_path / "brought"
    wheels = [make_wheel(good, "demo", requires=["helper"]), make_wheel(good, "helper")]
    train = root.folder / "recipes/trains/t.toml"
    root.train(f'{train.read_text()}\n[closure]\ndemo = "1.0"\nhelper = "1.0"\n')
    lock = root.folder / lock_file("trains/t")
    lock.parent.mkdir(parents=True)
    lock.write_text(
        render_lock({f"{one.name.split('-')[0]}==1.0": {one.name: sha256_of(one)} for one in wheels})
    )
    shutil.copytree(good, brought)
    name = "helper" if swapped == "what it requires" else "demo"
    needs = ["helper"] if name == "demo" else []
    bad = make_wheel(brought, name, requires=needs, files={f"{name}.py": b"VERSION = 6\n"})
    away = alone(root, brought)
    key = away.json("plan", "b")["steps"][-1]["key"]
    done = away.run("build", "b", "--offline", "--stop-after", "environment")
    assert (done.returncode, f"{bad.name}: recipes/locks/t/pylock.toml does not name" in done.stderr) == (
        5,
        True,
    )
    assert not list(root.folder.rglob("site-packages/demo*"))
    built = alone(root, good).json("build", "b", "--offline", "--no-closure")
    assert statuses(built) == {"b": "built"}
    # To take it on purpose: another lock, and another key.
    assert away.run("recipes", "pin", "trains/t").returncode == 0
    assert bad.name in lock.read_text()
    assert (away.json("plan", "b")["steps"][-1]["key"] != key) == (name == "demo")
    assert away.run("build", "b", "--offline", "--stop-after", "environment").returncode == 0


def test_a_public_need_never_takes_the_place_of_another_need(tmp_path: Path) -> None:
    """`b` needs `a`, which is built here, and the public `demo`, which requires `a`."""
    code = "MODULE = lambda: f\"A = {__import__('a').VALUE!r}\\n\" if __import__('demo') else ''"
    root = make(tmp_path, {"a": "", "demo": "", "b": code}, {"b": "a"})
    recipe = root.folder / "recipes/b.toml"
    recipe.write_text(f'{recipe.read_text()}\n[[needs]]\nname = "demo"\nproviders = ["public"]\n')
    make_wheel(root.links, "demo", requires=["a"])
    make_wheel(root.links, "a", files={"a.py": b"VALUE = 'public'\n"})
    make_wheel(root.links, "a", "2.0", files={"a.py": b"VALUE = 'public'\n"})
    built = root.json("build", "b", "--no-closure")
    assert statuses(built)["b"] == "built", built
    (wheel,) = root.folder.glob("wheelhouse/views/*/current/b-1.0-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("b.py") == b"A = 1\n"


# --- the commands -----------------------------------------------------------------------------------


def locked(root: Root) -> Path:
    done = root.run("recipes", "pin")
    assert done.returncode == 0, done.stderr
    path = root.folder / lock_file("tiny")
    assert f"wrote {path}\n" in done.stdout
    return path


def key_of(root: Root) -> str:
    (step,) = root.json("plan", "tiny")["steps"]
    return str(step["key"])


def test_pin_locks_and_the_key_holds_the_hashes(setuptools_root: Root) -> None:
    root = setuptools_root
    before = key_of(root)
    path = locked(root)
    lock = parse_lock(path.read_text(), "lock")
    assert [pin.partition("==")[0] for pin in lock.wheels] == ["ninja", "setuptools", "wheel"]
    key = key_of(root)
    assert key != before
    text = path.read_text()
    assert root.run("recipes", "pin").stdout.count("written") == 0
    (sha256,) = lock.wheels["wheel==0.45.1"].values()
    path.write_text(text.replace(sha256, "0" * 64))
    assert key_of(root) not in (before, key)
    check = root.run("recipes", "pin", "--check")
    assert (check.returncode, "pinned " + "0" * 64 in check.stderr) == (5, True)
    refused = root.run("build", "tiny", "--stop-after", "fetch")
    assert refused.returncode == 5
    assert "not the bytes of wheel==0.45.1" in refused.stderr
    index = dict(root.env)
    root.env.update(
        {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    )
    unasked = root.run("recipes", "pin", "tiny")
    assert (unasked.returncode, "tiny  recipes/locks/pylock.tiny.toml  pinned" in unasked.stdout) == (
        5,
        False,
    )
    root.env.clear()
    root.env.update(index)
    assert root.run("recipes", "pin").stdout.count("written") == 0  # nothing is blessed in passing
    assert "recipes pin tiny" in refused.stderr
    assert root.run("recipes", "pin", "tiny").stdout.count("written") == 1
    assert path.read_text() == text


def test_a_lock_that_lacks_a_pin_ends_the_build_with_what_to_type(setuptools_root: Root) -> None:
    root = setuptools_root
    path = locked(root)
    recipe = (root.folder / "recipes" / "tiny.toml").read_text()
    root.recipe(recipe.replace("wheel==0.45.1", "wheel==0.45.0"))
    refused = root.run("build", "tiny", "--stop-after", "fetch")
    assert refused.returncode == 5
    assert "lists no wheel of wheel==0.45.0" in refused.stderr
    assert "recipes pin" in refused.stderr
    root.recipe(recipe)
    path.write_text("{")
    assert root.run("plan", "tiny").returncode == 3


def test_pin_locks_what_completes_a_trains_sets(root: Root) -> None:
    path = root.folder / lock_file("trains/t")
    train = (root.folder / "recipes" / "trains" / "t.toml").read_text()
    root.train(f'{train}\n[closure]\nwheel = "0.45.1"\n')
    assert root.run("recipes", "pin", "tiny").returncode == 0
    assert not path.exists()  # another one's lock
    assert f"wrote {path}\n" in root.run("recipes", "pin").stdout
    text = path.read_text()
    (sha256,) = parse_lock(text, "lock").wheels["wheel==0.45.1"].values()
    path.write_text(text.replace(sha256, "0" * 64))
    check = root.run("recipes", "pin", "--check")
    assert (check.returncode, "trains/t: wheel-0.45.1" in check.stderr) == (5, True)
    assert root.run("recipes", "pin").stdout.count("written") == 0  # nothing is blessed in passing
    assert root.run("recipes", "pin", "trains/t").stdout.count("written") == 1
    assert path.read_text() == text
    for options in ((), ("--check",)):
        assert "no train is named 'u'" in root.run("recipes", "pin", *options, "trains/u").stderr
    root.train(f'{train}\n[closure]\nwheel = "0.45.0"\n')
    early = root.run("build", "tiny")
    assert (early.returncode, "lacks wheel==0.45.0" in early.stderr) == (3, True)
    assert "recipes pin trains/t" in early.stderr
    assert not (root.folder / "build").exists()
