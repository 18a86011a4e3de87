"""Wheels that somebody made with care: what the audit says of them, and that reading them ends well."""

from __future__ import annotations

import pytest

from spark_build.wheels.audit import audit
from spark_build.wheels.rules import AuditExpectation
from tests.wheels.test_audit import BESIDE, LED, NCCL, SYSTEM, external

# Read as requirements, and then no installer can say whether they count.
NO_ANSWER = (
    'nvidia-nccl-cu13; platform_machine ~= "x86_64"',
    'nvidia-nccl-cu13; os_name === "posix"',
    'nvidia-nccl-cu13; extra ~= "a"',
    'nvidia-nccl-cu13; "a" in extras',
    'nvidia-nccl-cu13; "3" == "3"',
)


@pytest.mark.parametrize("requirement", NO_ANSWER)
def test_a_marker_without_an_answer_is_an_error_and_no_requirement(requirement: str) -> None:
    found = audit(
        external(NCCL, rpath=LED, requires=requirement),
        AuditExpectation(
            distribution="demo-pkg",
            version="1.0",
            platform="linux-x86_64",
            python="cp311",
            provided=("libnccl.so.*",),
            system_libraries=SYSTEM,
            external=BESIDE,
        ),
    )
    said = [one.message for one in found if one.severity == "error"]
    assert f"Requires-Dist: {requirement} has a marker without an answer" in said[-1]
    assert "the wheel does not require nvidia-nccl-cu13" in said[0]
