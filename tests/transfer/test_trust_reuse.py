"""What a plan makes of wheels from elsewhere, on the recorded root: nothing has to be built for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_build.wheelhouse import store
from tests.contract import harness
from tests.helpers.exports import make_key


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded root, its export signed by alice, and roots of the same recipes without any wheel."""
    place = harness.unpack(tmp_path_factory.mktemp("trust"))
    make_key(place, "alice")
    for name in ("unsigned", "trusting"):
        for kind in ("recipes", "patches"):
            shutil.copytree(place / "root" / kind, place / name / kind)
    say(place, "root", "build", "tiny", "--offline")  # puts it under today's key
    say(
        place, "root", "wheelhouse", "export", "{root}/set", "--without-spark-build", "--sign", "{root}/alice"
    )
    return place


def say(place: Path, root: str, *words: str) -> str:
    line = ["--root", f"{{root}}/{root}", "--train", "t", "--target", "host-cpu", *words]
    done = harness.run(place, line)
    assert done.exit_code == 0, done
    return " ".join(done.stdout.split())


def step(place: Path, root: str) -> Any:
    return json.loads(say(place, root, "--json", "plan", "tiny"))["steps"][0]


def test_what_nobody_signed_is_built_anew(place: Path) -> None:
    say(place, "unsigned", "wheelhouse", "import", "--unsigned", "{root}/set")
    assert "tiny 1.0 imported (unsigned)" in say(place, "unsigned", "wheelhouse", "list")
    planned = step(place, "unsigned")
    told = "what is imported (unsigned) is not reused: its signer is not trusted"
    assert (planned["decision"], planned["reasons"]) == ("BUILD", [told])
    why = say(place, "unsigned", "why", "tiny")
    assert f"nothing differs, and yet: {told}" in why
    assert "the last one was not built here: imported (unsigned)" in why


def test_what_a_trusted_signer_vouches_for_is_reused(place: Path) -> None:
    say(place, "trusting", "wheelhouse", "trust", "add", "alice", "{root}/alice.pub")
    taken = json.loads(say(place, "trusting", "--json", "wheelhouse", "import", "{root}/set"))
    (tiny,) = (row for row in taken["wheels"] if row["name"] == "tiny")
    assert (tiny["origin"], tiny["imported"], taken["signer"]) == ("imported", "alice", "alice")
    planned = step(place, "trusting")
    assert planned["decision"] == "REUSE"
    assert "imported (alice)" in planned["reasons"]
    assert "would be reused" in say(place, "trusting", "why", "tiny")
    built = json.loads(say(place, "trusting", "--json", "build", "tiny", "--offline"))
    assert [(row["status"], row["wheels"]) for row in built["results"]] == [("reused", [tiny["filename"]])]
    assert json.loads(say(place, "trusting", "--json", "wheelhouse", "list"))["wheels"] == taken["wheels"]
    own = store.entry_folder(place / "trusting/wheelhouse/store", planned["build_key"])
    assert not own.exists(), "the keys of our own builds know nothing of it"
    say(place, "trusting", "wheelhouse", "trust", "remove", "alice")
    planned = step(place, "trusting")
    assert (planned["decision"], planned["reasons"][0]) == (
        "BUILD",
        "what is imported (alice) is not reused: its signer is not trusted",
    )
