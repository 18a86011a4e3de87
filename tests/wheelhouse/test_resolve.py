from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement

from spark_build.wheelhouse.resolve import needed
from spark_build.wheels.model import StoredWheel

ENVIRONMENT = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.7",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.1",
    "platform_system": "Linux",
    "platform_version": "1",
    "python_full_version": "3.11.7",
    "python_version": "3.11",
    "sys_platform": "linux",
}


def wheel(name: str, version: str = "1.0", *requires: str, build: str = "") -> StoredWheel:
    tag = f"-{build}" if build else ""
    return StoredWheel(
        name=name,
        version=version,
        filename=f"{name.replace('-', '_')}-{version}{tag}-py3-none-any.whl",
        sha256="a" * 64,
        size=1,
        key="b" * 64,
        origin="public",
        requires=requires,
    )


def resolve(names: Sequence[str], *wheels: StoredWheel) -> tuple[list[str], tuple[str, ...]]:
    chosen, missing = needed(names, wheels, ENVIRONMENT)
    return [f"{one.name} {one.version}" for one in chosen], missing


def test_all_that_is_needed_and_nothing_else() -> None:
    wheels = (
        wheel("a", "1.0", "b", "c>=2"),
        wheel("b", "1.0", "d"),
        wheel("c", "2.1"),
        wheel("d"),
        wheel("e"),
    )
    assert resolve(["a"], *wheels) == (["a 1.0", "b 1.0", "c 2.1", "d 1.0"], ())
    assert resolve([], *wheels) == ([], ())


def test_names_in_any_spelling() -> None:
    wheels = (wheel("typing-extensions"), wheel("a", "1.0", "Typing_Extensions"))
    assert resolve(["A"], *wheels) == (["a 1.0", "typing-extensions 1.0"], ())
    assert resolve(["Typing.Extensions"], *wheels) == (["typing-extensions 1.0"], ())


def test_extras_only_when_asked_for() -> None:
    wheels = (
        wheel("a", "1.0", "b; extra == 'fast'", "c; extra == 'Big_Data'", "d"),
        wheel("b"),
        wheel("c"),
        wheel("d"),
    )
    assert resolve(["a"], *wheels) == (["a 1.0", "d 1.0"], ())
    assert resolve(["a[fast]"], *wheels) == (["a 1.0", "b 1.0", "d 1.0"], ())
    assert resolve(["a[big-data,fast]"], *wheels) == (["a 1.0", "b 1.0", "c 1.0", "d 1.0"], ())
    assert resolve(["a", "a[fast]"], *wheels) == (["a 1.0", "b 1.0", "d 1.0"], ())


def test_extras_are_handed_on() -> None:
    wheels = (
        wheel("a", "1.0", "b[x]; extra == 'all'"),
        wheel("b", "1.0", "c; extra == 'x'"),
        wheel("c"),
    )
    assert resolve(["a[all]"], *wheels) == (["a 1.0", "b 1.0", "c 1.0"], ())
    # A package whose extra names itself: the usual way to write [all].
    own = (wheel("a", "1.0", "a[x]; extra == 'all'", "c; extra == 'x'"), wheel("c"))
    assert resolve(["a[all]"], *own) == (["a 1.0", "c 1.0"], ())


def test_markers_are_of_the_environment() -> None:
    wheels = (
        wheel(
            "a",
            "1.0",
            "b; python_version < '3.11'",
            "c; python_version >= '3.11'",
            "d; platform_machine == 'aarch64'",
            "e; sys_platform == 'linux' and extra == 'x'",
        ),
        wheel("c"),
        wheel("e"),
    )
    assert resolve(["a"], *wheels) == (["a 1.0", "c 1.0"], ())
    assert resolve(["a[x]"], *wheels) == (["a 1.0", "c 1.0", "e 1.0"], ())
    assert resolve(["a", "gone; sys_platform == 'win32'"], *wheels) == (["a 1.0", "c 1.0"], ())


def test_the_highest_version_that_fits() -> None:
    wheels = (wheel("a", "1.9"), wheel("a", "1.10"), wheel("a", "2.0"), wheel("a", "1.10+local"))
    assert resolve(["a"], *wheels)[0] == ["a 2.0"]
    assert resolve(["a<2"], *wheels)[0] == ["a 1.10+local"]
    assert resolve(["a==1.10"], *wheels)[0] == ["a 1.10+local"]
    assert resolve(["a==1.9"], *wheels)[0] == ["a 1.9"]


def test_the_highest_build_tag() -> None:
    wheels = (wheel("a", build="2_b"), wheel("a", build="10_a"), wheel("a"))
    (chosen,), _ = needed(["a"], wheels, ENVIRONMENT)
    assert chosen.filename == "a-1.0-10_a-py3-none-any.whl"


def test_a_prerelease_that_is_there_counts() -> None:
    assert resolve(["a>=1.5"], wheel("a", "2.0rc1")) == (["a 2.0rc1"], ())


def test_circles_end() -> None:
    wheels = (wheel("a", "1.0", "b"), wheel("b", "1.0", "c"), wheel("c", "1.0", "a", "c"))
    assert resolve(["b"], *wheels) == (["a 1.0", "b 1.0", "c 1.0"], ())


def test_what_is_missing_is_named_once_and_all_of_it() -> None:
    wheels = (
        wheel("a", "1.0", "b", "c>=2"),
        wheel("b", "1.0", "d>1"),
        wheel("c", "1.0"),
        wheel("e", "1.0", "d>1"),
    )
    chosen, missing = resolve(["a", "e", "nothing[x]"], *wheels)
    assert missing == ("c>=2", "d>1", "nothing[x]")
    assert chosen == ["a 1.0", "b 1.0", "e 1.0"]


def test_every_requirement_on_a_name_counts() -> None:
    """Whichever is met first: one version must meet them all."""
    wheels = (
        wheel("a", "1.0", "c"),
        wheel("b", "1.0", "c<2"),
        wheel("c", "1.0", "old"),
        wheel("c", "2.0", "new"),
        wheel("old"),
        wheel("new"),
    )
    assert resolve(["a", "b"], *wheels) == (["a 1.0", "b 1.0", "c 1.0", "old 1.0"], ())
    assert resolve(["b", "a"], *wheels) == (["a 1.0", "b 1.0", "c 1.0", "old 1.0"], ())


def test_requirements_that_no_version_meets_together() -> None:
    wheels = (wheel("a", "1.0", "c>=2"), wheel("b", "1.0", "c<2"), wheel("c", "1.0"), wheel("c", "2.0"))
    assert resolve(["a", "b"], *wheels)[1] == ("c<2,>=2",)


def test_a_name_that_is_none() -> None:
    with pytest.raises(InvalidRequirement):
        resolve(["not a name"], wheel("a"))


@st.composite
def _sets(draw: st.DrawFn) -> tuple[StoredWheel, ...]:
    names = "abcde"
    limits = st.sampled_from(("", ">=2", "<2", ">1", "<=3", "!=2"))
    lines = st.builds("{}{}".format, st.sampled_from(names), limits)
    return tuple(
        wheel(name, str(version), *draw(st.lists(lines, max_size=3)))
        for name in names
        for version in draw(st.sets(st.integers(1, 4), max_size=3))
    )


@settings(max_examples=200)
@given(_sets(), st.lists(st.sampled_from("abcde"), min_size=1, max_size=3))
def test_what_is_chosen_fits_together(wheels: tuple[StoredWheel, ...], names: list[str]) -> None:
    """No two of one name, every requirement met, nothing superfluous, the same for any order."""
    chosen, missing = needed(names, wheels, ENVIRONMENT)
    versions = {one.name: one.version for one in chosen}
    assert len(versions) == len(chosen)
    assert needed(names[::-1], wheels[::-1], ENVIRONMENT) == (chosen, missing)
    if missing:
        return
    reached = set(names)
    for one in chosen:
        for line in one.requires:
            requirement = Requirement(line)
            assert requirement.specifier.contains(versions[requirement.name])
            reached.add(requirement.name)
    assert reached == set(versions)
