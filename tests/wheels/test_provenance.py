from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.build.attestations import material_of
from spark_build.recipes.model import Source
from spark_build.wheels import attestation_formats
from spark_build.wheels.attestation_formats import CONTENT, Execution, Material, Origin, statement
from tests.helpers.validators import check_provenance

MATERIALS = (
    Material(
        role="source",
        name="demo",
        version="1.0",
        uri="git+https://example.invalid/demo@refs/tags/v1.0",
        digests={"gitCommit": "a" * 40},
    ),
    Material(role="patch", name="demo/0001.patch", digests={"sha256": "b" * 64}),
    Material(
        role="build requirement",
        name="setuptools",
        version="80.9.0",
        uri=attestation_formats.pypi("setuptools", "80.9.0"),
        digests={"sha256": "c" * 64},
    ),
    Material(
        role="need",
        name="torch",
        version="2.13.0+cu130.spark1",
        uri=attestation_formats.pypi("torch", "2.13.0+cu130.spark1"),
        digests={CONTENT: "d" * 64, "sha256": "e" * 64},
        provider="store",
    ),
)
ORIGIN = Origin(
    recipe="demo",
    distribution="Demo_Project",
    version="1.0",
    wheel_version="1.0+cu130.spark1",
    key="f" * 64,
    epoch=1_700_000_000,
    builder_version="0.1.0",
    target={"platform": "linux-aarch64", "python": "cp312", "cuda_architectures": ["12.1"]},
    parameters={"variables": {"MAX_JOBS": "{jobs}"}, "toolchain": {"c++": "g++ 13"}},
    materials=MATERIALS,
)
EXECUTION = Execution(
    target="gb10",
    train="2.13",
    plan_key="1" * 64,
    started="2026-01-02T03:04:05Z",
    finished="2026-01-02T03:14:05Z",
    sandbox={"kind": "bubblewrap", "network": False},
    compiler_cache={"kind": "none"},
    jobs=20,
    system="Linux",
    findings={"warning": 1},
    byproducts={"audit.json": "2" * 64, "build.log": "3" * 64},
)
WHEEL = ("demo.whl", {"sha256": "4" * 64})


def whole(**changes: Any) -> Any:
    return statement(ORIGIN, [WHEEL], dataclasses.replace(EXECUTION, **changes))


def test_the_published_schemas_take_it() -> None:
    document = check_provenance(json.dumps(whole()))
    assert document["subject"] == [{"name": "demo.whl", "digest": {"sha256": "4" * 64}}]
    details = document["predicate"]["runDetails"]
    assert details["metadata"]["startedOn"] == "2026-01-02T03:04:05Z"
    assert details["byproducts"][0]["annotations"] == {"sparkbuild_warning": 1}
    check_provenance(json.dumps(statement(ORIGIN, [("Demo_Project 1.0", {CONTENT: "5" * 64})])))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it.pop("subject"),
        lambda it: it["subject"][0].pop("digest"),
        lambda it: it["predicate"].update(buildConfig={}),
        lambda it: it["predicate"]["runDetails"]["builder"].update(id=""),
        lambda it: it["predicate"]["runDetails"]["metadata"].update(startedOn="yesterday"),
        lambda it: it["predicate"]["buildDefinition"]["resolvedDependencies"].append({"name": "x"}),
    ],
)
def test_the_check_itself_sees_what_is_wrong(spoil: Any) -> None:
    document = whole()
    spoil(document)
    with pytest.raises((ParseError, ValueError, AssertionError)):
        check_provenance(json.dumps(document))


def test_the_copy_inside_says_nothing_of_one_execution() -> None:
    inner = json.dumps(statement(ORIGIN, [WHEEL]))
    for value in ("gb10", "2026", "bubblewrap", "Linux", "1" * 64, "invocationId", 'jobs"', "byproducts"):
        assert value not in inner
    definition = json.loads(inner)["predicate"]["buildDefinition"]
    assert len(definition["resolvedDependencies"]) == len(MATERIALS)
    assert definition["internalParameters"]["buildKey"] == "f" * 64


def test_each_sandbox_is_another_builder() -> None:
    ids = {
        whole(sandbox={"kind": kind})["predicate"]["runDetails"]["builder"]["id"]
        for kind in ("bubblewrap", "unshare", "none", "not needed")
    }
    assert len(ids) == 4
    check_provenance(json.dumps(whole(sandbox={"kind": "not needed", "network": False})))


@settings(deadline=None)
@given(
    st.builds(
        Material,
        role=st.sampled_from(["source", "patch", "build requirement", "need"]),
        name=st.text(min_size=1),
        uri=st.builds(
            attestation_formats.pypi, st.text("aA1.-_", min_size=1), st.text("01.+!rc", min_size=1)
        ),
        digests=st.dictionaries(st.sampled_from(["sha256", CONTENT]), st.just("a" * 64)),
    )
)
def test_any_material_is_a_resource(material: Material) -> None:
    origin = dataclasses.replace(ORIGIN, materials=(material,))
    check_provenance(json.dumps(statement(origin, [WHEEL], EXECUTION)))


def test_no_password_and_no_place_on_this_machine() -> None:
    git = material_of(
        "demo", Source(kind="git", url="https://me:secret@example.invalid/demo", commit="a" * 40), "1"
    )
    assert git.uri == "git+https://example.invalid/demo"
    here = material_of("demo", Source(kind="git", url="/home/me/demo", tag="v1", commit="a" * 40), "1")
    assert (here.uri, here.name, here.digests) == ("", "demo", {"gitCommit": "a" * 40})
    folder = material_of("demo", Source(kind="local", url="/home/me/demo", sha256="b" * 64), "1")
    assert (folder.uri, folder.digests) == ("", {CONTENT: "b" * 64})
    archive = material_of(
        "demo", Source(kind="archive", url="https://me:secret@example.invalid/d.tar.gz", sha256="b" * 64), "1"
    )
    assert archive.uri == "https://example.invalid/d.tar.gz"
    sdist = Source(kind="sdist", project="Demo_X", filename="demo_x-1.tar.gz", sha256="b" * 64)
    assert material_of("demo", sdist, "1").uri == "pkg:pypi/demo-x@1?file_name=demo_x-1.tar.gz"
