"""System packages: what builds need, and what they only do better with. apt must be there and allowed."""

from __future__ import annotations

import pytest

from spark_build.cli.build import install_packages
from spark_build.errors import HostError
from spark_build.events import Event, Note
from tests.helpers.commands import hint_text

NOWHERE = "spark-build-no-such-package"


def test_a_suggested_package_that_cannot_be_had_stops_nothing() -> None:
    told: list[Event] = []
    assert install_packages((), (NOWHERE,), told.append)
    notes = [one.message for one in told if isinstance(one, Note)]
    assert any(note.startswith(f"warning: going on without {NOWHERE}") for note in notes)


def test_a_missing_one_does() -> None:
    with pytest.raises(HostError) as caught:
        install_packages((NOWHERE,), (), lambda _: None)
    assert NOWHERE in hint_text(caught.value.hint)


def test_nothing_to_install_asks_nobody() -> None:
    told: list[Event] = []
    assert not install_packages((), (), told.append)
    assert told == []
