from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from spark_build.wheelhouse.gc import expired, generation_changes
from spark_build.wheelhouse.generations import GenerationChange, KeptGeneration
from spark_build.wheelhouse.resolve import reverse_dependencies
from spark_build.wheels.model import StoredWheel

HERE = {"python_version": "3.11", "sys_platform": "linux"}


def wheel(name: str, version: str = "1.0", build: str = "a", requires: tuple[str, ...] = ()) -> StoredWheel:
    return StoredWheel(
        name=name,
        version=version,
        filename=f"{name}-{version}-{build}.whl",
        sha256=build * 64,
        size=1,
        key=build * 64,
        origin="built",
        requires=requires,
    )


def change(kind: str, name: str, before: str, after: str) -> GenerationChange:
    return GenerationChange(kind=kind, name=name, before=before, after=after)  # type: ignore[arg-type]


def test_what_changed() -> None:
    before = [wheel("a"), wheel("b"), wheel("c"), wheel("d")]
    after = [wheel("a"), wheel("b", build="x"), wheel("c", "2.0"), wheel("e")]
    assert generation_changes(before, after) == (
        change("rebuilt", "b", "1.0", "1.0"),
        change("version", "c", "1.0", "2.0"),
        change("removed", "d", "1.0", ""),
        change("added", "e", "", "1.0"),
    )


def test_the_same_wheel_under_a_newer_key_is_no_change() -> None:
    older = wheel("a")
    assert generation_changes([older], [dataclasses.replace(older, key="f" * 64)]) == ()


def test_several_versions_side_by_side() -> None:
    before = [wheel("a", "1.0"), wheel("a", "2.0")]
    assert generation_changes(before, [*before, wheel("a", "3.0")]) == (change("added", "a", "", "3.0"),)
    assert generation_changes(before, before[:1]) == (change("removed", "a", "2.0", ""),)
    after = [wheel("a", "1.0", "x"), wheel("a", "3.0")]
    assert generation_changes(before, after) == (
        change("rebuilt", "a", "1.0", "1.0"),
        change("version", "a", "2.0", "3.0"),
    )


sets = st.sets(st.builds(wheel, st.sampled_from("abc"), st.sampled_from(["1", "2"]), st.sampled_from("xyz")))


@given(sets, sets)
def test_changes_account_for_every_wheel(before: set[StoredWheel], after: set[StoredWheel]) -> None:
    found = generation_changes(sorted(before, key=str), sorted(after, key=str))
    come = sum(one.kind != "removed" for one in found)
    gone = sum(one.kind != "added" for one in found)
    assert (come, gone) == (len(after - before), len(before - after))
    back = generation_changes(sorted(after, key=str), sorted(before, key=str))
    assert len(back) == len(found)


states = st.builds(
    KeptGeneration,
    number=st.integers(1, 30),
    current=st.booleans(),
    pinned=st.booleans(),
    idle=st.floats(0, 100),
)


@given(st.lists(states, unique_by=lambda one: one.number), st.integers(1, 5), st.floats(0, 100))
def test_what_may_go_is_nobodys(generations: list[KeptGeneration], keep: int, older_than: float) -> None:
    going = expired(generations, keep=keep, older_than=older_than)
    newest = sorted((one.number for one in generations), reverse=True)[:keep]
    assert not set(going) & set(newest)
    for one in generations:
        safe = one.current or one.pinned or one.number in newest or one.idle < older_than
        assert (one.number in going) != safe


def test_who_needs_it() -> None:
    helper, other = wheel("helper", "1.5"), wheel("helper", "2.0", "b")
    demo = wheel("demo", requires=("Helper>=1", "more; extra == 'x'", "helper<1; python_version < '3'"))
    assert reverse_dependencies([helper], [demo], HERE) == ("demo needs Helper>=1",)
    assert reverse_dependencies([helper], [demo, other], HERE) == ()
    assert reverse_dependencies([helper], [other], HERE) == ()
    assert reverse_dependencies([wheel("more")], [demo], HERE) == ()
    strict = wheel("strict", requires=("helper<2",))
    assert reverse_dependencies([helper], [strict, other], HERE) == ("strict needs helper<2",)
