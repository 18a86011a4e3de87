"""Real schedulers, workers and clients, as processes with roots of their own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.files import sha256_of
from tests.conftest import Root
from tests.helpers import farms
from tests.helpers.farms import built_by
from tests.helpers.recipe_roots import statuses

EIGHT = dict.fromkeys("abcdefgh", "")
NEEDS = {"b": "a", "c": "b", "d": "a", "f": "e", "g": "f"}


def wheels(root: Root) -> dict[str, str]:
    """sha256 of each wheel in the view, read anew."""
    rows = root.json("wheelhouse", "list")["wheels"]
    return {Path(row["path"]).name: sha256_of(Path(row["path"])) for row in rows}


@pytest.mark.slow
def test_eight_recipes_on_three_workers_are_what_one_machine_builds(tmp_path: Path) -> None:
    """Nothing is built twice, and one worker of another platform, which is asked for nothing, hinders nobody."""
    lab = farms.make(tmp_path, EIGHT, NEEDS)
    lab.scheduler()
    *roots, foreign = lab.roots("one", "two", "three", "foreign")
    for root in roots:
        lab.worker(root)
    lab.worker(foreign, before=("setarch", "i686"))
    done = lab.client.run(*lab.words(*EIGHT))
    assert done.returncode == 0, done.stderr
    assert statuses(json.loads(done.stdout)) == dict.fromkeys(EIGHT, "built"), done.stderr
    shares = [built_by(root) for root in roots]
    assert sorted(name for share in shares for name in share) == [*EIGHT]
    assert all(shares), "each had something to do"
    assert not (foreign.folder / "build").exists()
    alone = replace(lab.client, folder=tmp_path / "alone")
    shutil.copytree(lab.client.folder / "recipes", alone.folder / "recipes")
    alone.json("build", *EIGHT, "--no-closure")
    assert built_by(alone) == {*EIGHT}
    assert wheels(alone) == wheels(lab.client)
