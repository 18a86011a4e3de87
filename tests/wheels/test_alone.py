from __future__ import annotations

from dataclasses import replace

import pytest

from spark_build.errors import Finding
from spark_build.wheels.audit import ADVICE, RULES, findings_alone, platforms_of
from spark_build.wheels.diff import Side, wheel_changes
from spark_build.wheels.model import Library, Payload, WheelFacts
from tests.helpers.devicefacts import holding, wheel


def tagged(*tags: str, machine: str = "x86_64", needed: tuple[str, ...] = ()) -> WheelFacts:
    """A wheel with one library; its file is named by the first tag."""
    return replace(
        wheel(),
        filename=f"demo-1.0-{tags[0]}.whl",
        filename_tags=tags,
        wheel_tags=tags,
        libraries=(Library(path="demo/_c.so", machine=machine, needed=needed),),
    )


def found(facts: WheelFacts, *capabilities: str) -> list[Finding]:
    return [
        one
        for one in findings_alone(
            facts, system_libraries=lambda _: frozenset(), policies=lambda _: {}, capabilities=capabilities
        )
        if one.severity == "error"
    ]


@pytest.mark.parametrize(
    "tags",
    [
        ("cp311-cp311-manylinux_2_28_x86_64",),
        ("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"),
        ("cp38-abi3-musllinux_1_2_x86_64",),
        ("cp313-cp313t-linux_x86_64",),
        ("py3-none-manylinux1_x86_64", "py3-none-manylinux2014_aarch64"),
        ("py2-none-linux_x86_64", "py3-none-linux_x86_64"),
        ("pp310-pypy310_pp73-manylinux_2_28_x86_64",),
    ],
)
def test_wheels_for_other_systems_are_sound(tags: tuple[str, ...]) -> None:
    assert found(tagged(*tags)) == []


@pytest.mark.parametrize(
    "tag", ["py2-none-any", "cp311-cp311-win_amd64", "cp311-cp311-macosx_11_0_arm64", "py3-none-win_arm64"]
)
def test_wheels_without_elf_files(tag: str) -> None:
    assert found(replace(tagged(tag), libraries=())) == []


def test_what_it_says_of_itself_must_hold() -> None:
    (one,) = found(tagged("cp311-cp311-manylinux_2_28_aarch64"))
    assert (one.rule, one.message) == ("elf-machine", "demo/_c.so is for x86_64, not aarch64")
    assert [one.rule for one in found(tagged("py3-none-any"))] == ["tags"]


def test_findings_without_number_are_compared_once_for_each_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RECORD of a few kilobytes can name hundreds of thousands of files that are not there."""
    compared = 0
    plain = Finding.__eq__

    def counted(one: Finding, other: object) -> bool:
        nonlocal compared
        compared += 1
        return plain(one, other)

    monkeypatch.setattr(Finding, "__eq__", counted)
    lines = tuple(f"{number}: listed in RECORD, but not there" for number in range(2000))
    facts = replace(tagged("cp311-cp311-linux_x86_64", "cp312-cp312-linux_x86_64"), record_problems=lines)
    assert len(found(facts)) == len(lines)
    assert compared < 10 * len(lines)


def test_what_others_bring_is_not_missed() -> None:
    needs = tagged("cp311-cp311-linux_x86_64", needed=("libanything.so.7", "libtorch_cpu.so"))
    assert found(needs) == []
    assert [one.rule for one in found(replace(needs, requires=("torch",)))] == []
    rules = {
        one.rule
        for one in findings_alone(needs, system_libraries=lambda _: frozenset(), policies=lambda _: {})
    }
    assert "torch-pin" not in rules
    (one,) = found(tagged("cp311-cp311-linux_x86_64", needed=("libpython3.11.so.1.0",)))
    assert one.rule == "libraries"


def test_platforms() -> None:
    assert platforms_of(tagged("py3-none-any", machine="aarch64")) == ("linux-aarch64",)
    assert platforms_of(replace(tagged("py3-none-any"), libraries=())) == ("linux-x86_64",)
    assert platforms_of(tagged("py3-none-macosx_10_9_universal2")) == ("macosx-universal2",)
    assert platforms_of(tagged("py3-none-plan9", machine="riscv64")) == ("linux-riscv64",)


def test_a_gpu_that_somebody_wants() -> None:
    facts = replace(tagged("cp311-cp311-linux_aarch64", machine="aarch64"), device_code=(holding("sm_90"),))
    said = findings_alone(
        facts, system_libraries=lambda _: frozenset(), policies=lambda _: {}, capabilities=("12.1",)
    )
    assert [one.rule for one in said if one.rule.startswith("device")] == ["device-library"]


def test_advice_is_for_rules_that_exist() -> None:
    assert ADVICE.keys() <= {name for name, _ in RULES}


def test_bundled_libraries_are_the_same_by_another_hash() -> None:
    sides = []
    for number, version in (("0a1b2c3d", "1"), ("44556677", "2")):
        inside, papers = f"demo.libs/libz-{number}.so.1", f"demo-{version}.dist-info"
        facts = replace(
            tagged("cp311-cp311-linux_x86_64", needed=(f"libz-{number}.so.1", "libc.so.6")),
            version=version,
            payload=Payload(dist_info=papers, files=3, unpacked=9),
        )
        library = Library(path=inside, machine="x86_64", needed=("libc.so.6",))
        facts = replace(facts, libraries=(*facts.libraries, library))
        members = {inside: (5, 7), f"{papers}/RECORD": (int(version), 1), f"{papers}/METADATA": (4, 4)}
        sides.append(Side(facts=facts, members=members))
    assert [(one.kind, one.subject, one.first, one.second) for one in wheel_changes(*sides)] == [
        ("metadata", "version", "1", "2")
    ]


def test_what_a_common_library_needs_besides() -> None:
    one = tagged("cp311-cp311-linux_x86_64", needed=("libc.so.6",))
    other = Library(path="demo/other.so", machine="x86_64", needed=("libm.so.6", "libnew.so.1"))
    two = replace(one, libraries=(replace(one.libraries[0], needed=("libc.so.6", "libm.so.6")), other))
    first = replace(one, libraries=(*one.libraries, replace(other, needed=("libm.so.6",))))
    rows = [
        (row.subject, row.first, row.second)
        for row in wheel_changes(Side(facts=first, members={}), Side(facts=two, members={}))
    ]
    assert rows == [("libnew.so.1", "", "yes"), ("demo/_c.so: libm.so.6", "", "yes")]
