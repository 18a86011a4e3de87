"""Whether a set of wheels installs, as a real resolver sees it: uv, for this machine and another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_build import probe
from spark_build.environments.closure import prove_installable
from spark_build.recipes.model import Target
from spark_build.wheelhouse.generations import Generation
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built, put_public

MACHINE = probe.probe()
HERE = Target(name="here", summary="", platform=MACHINE.platform, python=MACHINE.python)
SPARK = Target(name="gb10", summary="", platform="linux-aarch64", python="cp312")


def house(
    root: Path,
    built: Sequence[tuple[str, str, Sequence[str]]],
    public: Sequence[tuple[str, str, Sequence[str]]] = (),
    *,
    platforms: dict[str, str] | None = None,
) -> Generation:
    """A generation of (name, version, requirements); `platforms`: name -> tag, else py3-none-any."""
    home = home_in(root)

    def wheel(name: str, version: str, requires: Sequence[str]) -> Path:
        tag = (platforms or {}).get(name, "py3-none-any")
        return make_wheel(root / "dist", name, version, requires=requires, tag=tag)

    stored = [put_built(home.store, wheel(*one)) for one in built]
    return publish(home, [*stored, *(put_public(home.store, wheel(*one)) for one in public)])


@pytest.mark.parametrize("target", [HERE, SPARK], ids=["here", "spark"])
def test_a_complete_set(tmp_path: Path, target: Target) -> None:
    generation = house(
        tmp_path,
        [("demo", "1.0", ["helper>=1", "absent; python_version < '3'"]), ("other", "2.0rc1", ["demo==1.0"])],
        [("helper", "1.5", ["deep[x]"]), ("deep", "1", [])],
    )
    assert prove_installable(generation, target) == ()


def test_a_folder_whose_name_is_no_url(tmp_path: Path) -> None:
    generation = house(tmp_path / "a b#c%20d", [("demo", "1.0", [])])
    assert prove_installable(generation, HERE) == ()


def test_what_is_missing_is_named_with_who_requires_it(tmp_path: Path) -> None:
    generation = house(
        tmp_path,
        [("demo", "1.0", ["helper>=1"])],
        [("helper", "1.5", ["deep>=2", "gone"]), ("deep", "1", [])],
    )
    (problem,) = prove_installable(generation, HERE)
    assert problem.startswith("uv says: ")
    assert "deep>=2" in problem
    assert "helper" in problem


def test_versions_that_do_not_go_together(tmp_path: Path) -> None:
    generation = house(
        tmp_path,
        [("demo", "1.0", ["helper<2"]), ("other", "1.0", ["helper>=2"])],
        [("helper", "1.5", []), ("helper", "2.0", [])],
    )
    (problem,) = prove_installable(generation, HERE)
    assert all(one in problem for one in ("demo", "other", "helper>=2"))


def test_an_older_version_beside_a_newer_is_proven_alone(tmp_path: Path) -> None:
    good = [("demo", "2.0", ["helper>=2"]), ("demo", "1.0", ["helper<2"])]
    assert (
        prove_installable(house(tmp_path / "a", good, [("helper", "1.5", []), ("helper", "2", [])]), HERE)
        == ()
    )
    generation = house(tmp_path / "b", good, [("helper", "2.0", [])])
    (problem,) = prove_installable(generation, HERE)
    assert "helper<2" in problem


def test_markers_and_files_are_the_targets(tmp_path: Path) -> None:
    """As seen from x86-64: what aarch64 needs is needed, what only x86-64 needs is not."""
    needs = ["arm; platform_machine == 'aarch64'", "intel; platform_machine == 'x86_64'"]
    tags = {"demo": "cp312-cp312-linux_aarch64", "arm": "cp312-abi3-manylinux_2_39_aarch64"}
    whole = house(tmp_path / "a", [("demo", "1.0", needs)], [("arm", "1", [])], platforms=tags)
    assert prove_installable(whole, SPARK) == ()
    without = house(tmp_path / "b", [("demo", "1.0", needs)], platforms=tags)
    (problem,) = prove_installable(without, SPARK)
    assert "no versions of arm" in problem


def test_a_wheel_of_another_platform_is_none(tmp_path: Path) -> None:
    foreign = "cp312-cp312-manylinux_2_28_x86_64"
    generation = house(
        tmp_path, [("demo", "1.0", ["helper"])], [("helper", "1", [])], platforms={"helper": foreign}
    )
    (problem,) = prove_installable(generation, SPARK)
    assert "helper" in problem
    built = house(tmp_path / "b", [("demo", "1.0", [])], platforms={"demo": foreign})
    (problem,) = prove_installable(built, SPARK)
    assert "demo" in problem


def test_the_users_configuration_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = house(tmp_path, [("demo", "1.0", ["helper"])])
    make_wheel(tmp_path / "links", "helper", "1.0")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(tmp_path / "links"))
    (problem,) = prove_installable(generation, HERE)
    assert "helper was not found" in problem
