"""Each planted fault turns a test red; and the table still finds its places and tests."""

from __future__ import annotations

import pytest

from tests import faults


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_knows_its_place_and_its_tests(fault: faults.Fault) -> None:
    place = faults.place_of(fault, faults.ROOT)
    assert faults.edited(fault, place) != place.read_text()
    assert len(list(faults.tests_of(fault, faults.ROOT))) == len(fault.tests)


@pytest.mark.soak
def test_every_fault_turns_its_tests_red() -> None:
    assert faults.main([]) == 0
