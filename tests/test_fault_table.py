"""Each planted fault turns a test red; and the table still finds its places and tests."""

from __future__ import annotations

import re

import pytest

from tests import faults
from tests.defences import Fault
from tests.ground.test_security_page import PAGE, ROWS, named


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_knows_its_place_and_its_tests(fault: Fault) -> None:
    place = faults.place_of(fault, faults.ROOT)
    assert faults.edited(fault, place) != place.read_text()
    assert len(list(faults.tests_of(fault, faults.ROOT))) == len(fault.tests)


@pytest.mark.parametrize("fault", [one for one in faults.FAULTS if one.attacks], ids=lambda fault: fault.name)
def test_a_fault_turns_a_test_of_its_attack_red(fault: Fault) -> None:
    for number in faults.lines_taken_out(fault, PAGE):
        assert any(
            f"/{module}.py::" in test and part in test
            for module, part in named(ROWS[number])
            for test in faults.tests_of(fault, faults.ROOT)
        ), ROWS[number]


def test_the_page_counts_its_attacks_and_their_faults() -> None:
    lines = set().union(*(faults.lines_taken_out(fault, PAGE) for fault in faults.FAULTS))
    assert [attack for attack, _ in faults.attack_lines(PAGE)] == [row.split("|")[1].strip() for row in ROWS]
    assert re.search(
        rf"\b{len(ROWS)} attacks.* {len(lines)} of them have a fault", PAGE.partition("##")[0], re.DOTALL
    )


@pytest.mark.soak
def test_every_fault_turns_its_tests_red() -> None:
    assert faults.main([]) == 0
