from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packageurl import PackageURL

from spark_build.wheels import attestation_formats
from spark_build.wheels.attestation_formats import WheelContent, bom, licences
from tests.helpers.validators import check_sbom
from tests.wheels.test_provenance import ORIGIN

MOMENT = "2023-11-14T22:13:20Z"
METADATA = b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\nLicense-Expression: Apache-2.0\n"
AUDITWHEEL = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.4",
    "metadata": {"component": {"type": "library", "bom-ref": "me", "name": "demo"}},
    "components": [
        {"type": "library", "bom-ref": "me", "name": "demo", "version": "1.0"},
        {
            "type": "library",
            "bom-ref": "pkg:deb/debian/libprotobuf-lite32@3.21.12-3#aaaa",
            "name": "libprotobuf-lite32",
            "version": "3.21.12-3",
            "purl": "pkg:deb/debian/libprotobuf-lite32@3.21.12-3",
        },
    ],
}
CONTENT = WheelContent(
    hashes={"demo/__init__.py": "1" * 64, "demo.libs/libprotobuf-lite-0a1b2c3d.so.32": "2" * 64},
    metadata=METADATA,
    sboms=(json.dumps(AUDITWHEEL).encode(), b"no json", b"[]", b'{"components": [{}, 3, {"name": 1}]}'),
)


def document(content: WheelContent = CONTENT, **named: Any) -> Any:
    return check_sbom(json.dumps(bom(ORIGIN, content, moment=MOMENT, **named)))


def test_the_published_schema_takes_it() -> None:
    found = document()
    main = found["metadata"]["component"]
    assert main["purl"] == "pkg:pypi/demo-project@1.0%2Bcu130.spark1"
    assert main["licenses"] == [{"expression": "Apache-2.0"}]
    assert found["metadata"]["timestamp"] == MOMENT
    assert "hashes" not in main
    (ancestor,) = main["pedigree"]["ancestors"]
    assert ancestor["pedigree"]["commits"] == [{"uid": "a" * 40}]
    assert main["pedigree"]["patches"] == [{"type": "unofficial", "diff": {"url": "demo/0001.patch"}}]
    assert f"demo/0001.patch sha256 {'b' * 64}" in main["pedigree"]["notes"]


def test_what_was_copied_into_the_wheel_is_there_with_its_package() -> None:
    roles = {
        one["name"]: (one["properties"][0]["value"], one["scope"], one.get("purl", ""))
        for one in document()["components"]
    }
    assert roles == {
        "libprotobuf-lite32": (
            "bundled library",
            "required",
            "pkg:deb/debian/libprotobuf-lite32@3.21.12-3",
        ),
        "demo.libs/libprotobuf-lite-0a1b2c3d.so.32": ("bundled library", "required", ""),
        "setuptools": ("build requirement", "excluded", "pkg:pypi/setuptools@80.9.0"),
        "torch": ("need", "required", "pkg:pypi/torch@2.13.0%2Bcu130.spark1"),
    }


def test_beside_a_wheel_it_names_that_file() -> None:
    main = document(file_name="demo-1.0-1_ffffffff-py3-none-any.whl", sha256="9" * 64)["metadata"][
        "component"
    ]
    assert main["hashes"] == [{"alg": "SHA-256", "content": "9" * 64}]
    assert main["purl"].endswith("?file_name=demo-1.0-1_ffffffff-py3-none-any.whl")


def test_nothing_is_random() -> None:
    assert document() == document()
    other = dataclasses.replace(ORIGIN, key="0" * 64)
    serials = {bom(one, CONTENT, moment=MOMENT)["serialNumber"] for one in (ORIGIN, other)}
    assert len(serials) == 2


def test_a_prefix_is_no_python_package() -> None:
    prefix = dataclasses.replace(ORIGIN, distribution="llvm", python_package=False)
    found = check_sbom(json.dumps(bom(prefix, WheelContent(hashes={}), moment="")))
    assert found["metadata"]["component"]["purl"] == "pkg:generic/llvm@1.0%2Bcu130.spark1"
    assert "timestamp" not in found["metadata"]


def test_the_check_itself_sees_what_is_wrong() -> None:
    wrong: list[dict[str, Any]] = [
        {"serialNumber": "7"},
        {"metadata": {"component": {"name": "x"}}},
        {"extra": 1},
        {"components": [{"name": "x"}]},
    ]
    for change in wrong:
        with pytest.raises(AssertionError):
            check_sbom(json.dumps({**bom(ORIGIN, CONTENT, moment=MOMENT), **change}))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: x", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: BSD-3-Clause", [{"license": {"name": "BSD-3-Clause"}}]),
        (
            f"License: {'long ' * 30}\nClassifier: License :: OSI Approved :: MIT License",
            [{"license": {"name": "MIT License"}}],
        ),
        ("Classifier: Programming Language :: Python", []),
        ("", []),
    ],
)
def test_licences(lines: str, expected: list[Any]) -> None:
    metadata = f"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n{lines}\n".encode()
    assert licences(metadata) == expected
    document(dataclasses.replace(CONTENT, metadata=metadata))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists) | st.fixed_dictionaries(
    {"name": st.text() | st.integers()},
    optional={"version": st.text(), "purl": st.text(), "bom-ref": st.text() | st.none()},
)))  # fmt: skip
def test_a_strangers_sbom_spoils_nothing(components: list[Any]) -> None:
    foreign = json.dumps({"bomFormat": "CycloneDX", "components": components}).encode()
    document(dataclasses.replace(CONTENT, sboms=(foreign,)))


@given(st.text("aB1.-_", min_size=1), st.text("01.+!~rcé@?#", min_size=1), st.text("aB1.-_+", min_size=1))
def test_purls_are_those_of_the_reference_library(name: str, version: str, file_name: str) -> None:
    expected = PackageURL("pypi", None, name, version, {"file_name": file_name}).to_string()
    assert attestation_formats.pypi(name, version, file_name=file_name) == expected
