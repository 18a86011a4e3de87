"""What the store has is reused when it has the same inputs and was judged by the same; else it is judged again."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from spark_build.build import environment, recipe_build
from spark_build.build.keys import brought_up
from spark_build.errors import Finding
from spark_build.paths import Home
from spark_build.text import digest
from spark_build.wheelhouse import fsck, gc
from spark_build.wheelhouse import store as stores
from tests.conftest import ROOT, Root
from tests.helpers.recipe_roots import make, statuses

OLDER = ROOT / "tests" / "data" / "older-entry"  # of commit 101310a, which built `tiny`
INPUTS = {"rules": 1, "features": {}}
FEATURE = '\n[[features]]\nname = "USE_X"\nvalue = "{}"\n'
PRINTS = "def work():\n    print('--   USE_X : ON', flush=True)\n"


def home_in(folder: Path) -> Home:
    names = ("wheelhouse", "build", "sources", "runs", "cache")
    return Home(data=(), is_strange=False, **{name: folder / name for name in names})


def older(home: Home, **sandbox: Any) -> tuple[str, dict[str, Any]]:
    """An entry that 101310a made, without its wheel, in a store; (its key, its inputs)."""
    document = json.loads((OLDER / "key.json").read_text())
    folder = stores.entry_folder(home.store, document["key"])
    shutil.copytree(OLDER, folder)
    record = json.loads((folder / "record.json").read_text())
    record |= {"filename": "", "papers": dict.fromkeys(("key.json", "provenance.json"), "")}
    (folder / "record.json").write_text(json.dumps(record))
    if sandbox:
        provenance = json.loads((folder / "provenance.json").read_text())
        provenance["predicate"]["buildDefinition"]["internalParameters"]["sandbox"] = sandbox
        (folder / "provenance.json").write_text(json.dumps(provenance))
    return document["key"], document["inputs"]


@pytest.mark.parametrize("found", [True, False])
def test_the_policies_are_those_of_auditwheel(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found as pip installs it, or as any installer does: what was judged before stays judged."""
    if not found:
        monkeypatch.setattr(environment, "find_spec", lambda _: None)
    environment._policies.cache_clear()
    assert environment._policies() == f"auditwheel {version('auditwheel')}"


def sought(home: Home, inputs: dict[str, Any], *, network: bool) -> stores.StoreEntry | None:
    today = brought_up(inputs, network=network)
    assert today is not None
    return recipe_build.find_older_entry(home.store, "tiny", today, with_prefix=False)


def an_entry(home: Home, key: str = "ab" + "0" * 62, **described: Any) -> stores.StoreEntry:
    base = {"name": "x", "version": "1", "origin": "built", "recipe": "x", "requires": []}
    return stores.commit(
        home.store,
        key=key,
        wheel=None,
        described={**base, "content_digest": "c" * 64, **described},
        papers={stores.JUDGEMENT: json.dumps({"inputs": INPUTS}).encode()},
    )


# --- older keys -------------------------------------------------------------------------------------


def test_the_entry_of_an_older_program_is_what_it_said(tmp_path: Path) -> None:
    key, inputs = older(home_in(tmp_path))
    assert digest(inputs) == key
    assert inputs["format"] == 2


@pytest.mark.parametrize(
    ("sandbox", "found"),
    [
        ({}, {False}),
        ({"kind": "bubblewrap", "network": True}, {True}),
        ({"kind": "none", "network": True}, {False, True}),
        ({"kind": "unknown"}, set()),
    ],
    ids=["as it was made", "with the network", "without a sandbox", "not known"],
)
def test_an_older_entry_is_found_by_what_it_was_made_from(
    tmp_path: Path, sandbox: dict[str, Any], found: set[bool]
) -> None:
    home = home_in(tmp_path)
    key, inputs = older(home, **sandbox)
    got = {network: sought(home, inputs, network=network) for network in (False, True)}
    assert {network for network, entry in got.items() if entry} == found
    assert all(entry is None or entry.folder.name == key for entry in got.values())
    other = {**inputs, "toolchain": {**inputs["toolchain"], "libc": "glibc 9"}}
    assert sought(home, other, network=False) is None
    assert (
        recipe_build.find_older_entry(
            home.store, "other", brought_up(inputs, network=False) or {}, with_prefix=False
        )
        is None
    )


def test_an_older_entry_is_taken_over_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_in(tmp_path)
    key, inputs = older(home)
    old, today = sought(home, inputs, network=False), brought_up(inputs, network=False)
    assert old is not None
    assert today is not None
    before = {path for path in home.store.rglob("*") if path.name not in ("lock", "index.json")}
    with monkeypatch.context() as patch:
        patch.setattr(stores, "_seal", lambda folder: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            recipe_build.take_over(home.store, old, "p" * 64, today)
    assert {path for path in home.store.rglob("*") if path.name not in ("lock", "index.json")} == before
    new = recipe_build.take_over(home.store, old, "p" * 64, today)
    assert new.folder.name == digest(today)
    document = json.loads((new.folder / "key.json").read_text())
    assert (document["inputs"], document["taken_over_from"]) == (today, key)
    assert (new.folder / recipe_build.OLD_KEY).read_bytes() == (old.folder / "key.json").read_bytes()
    assert (new.folder / "provenance.json").samefile(old.folder / "provenance.json")
    assert (old.folder / "record.json").exists(), "an older program goes on with it"
    assert recipe_build.take_over(home.store, old, "p" * 64, today) == new


# --- judgements -------------------------------------------------------------------------------------


def test_a_judgement_speaks_of_certain_bytes(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    entry, new = an_entry(home, judgement=digest(INPUTS)), {**INPUTS, "rules": 2}
    assert stores.is_judged(entry, digest(INPUTS))
    assert not stores.is_judged(entry, digest(new))
    assert recipe_build.changed_judgement(entry, new) == ("rules changed: 1 -> 2",)
    stores.note_judgement(entry, new, [Finding("x", "warning", "m")])
    assert stores.is_judged(entry, digest(new))
    assert stores.is_judged(entry, digest(INPUTS)), "the old judgement stands"
    assert recipe_build.changed_judgement(entry, {**INPUTS, "rules": 3}) == ("rules changed: 2 -> 3",)
    shutil.rmtree(entry.folder)
    again = an_entry(home, judgement=digest(INPUTS), content_digest="d" * 64)
    assert not stores.is_judged(again, digest(new)), "other bytes under the same key"


def test_what_came_from_elsewhere_is_judged_here(tmp_path: Path) -> None:
    entry = an_entry(home_in(tmp_path))  # as an import commits it: its papers, not the record's word
    assert not stores.is_judged(entry, digest(INPUTS))
    assert recipe_build.changed_judgement(entry, INPUTS) == ("what it was judged by is not recorded",)


def test_a_damaged_judgement_counts_for_nothing_and_is_found(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    entry = an_entry(home)
    stores.note_judgement(entry, INPUTS, [])
    (path,) = home.wheelhouse.glob("judgements/*/*/*.json")
    assert not list(fsck.of_store(home, {}, []))
    path.write_text(path.read_text()[:40])
    assert not stores.is_judged(entry, digest(INPUTS))
    (found,) = fsck.of_store(home, {}, [])
    assert (found.finding.rule, found.finding.place.file) == ("damaged", str(path))
    assert found.repaired().mended
    assert not list((home.wheelhouse / "judgements").rglob("*.json"))


def test_a_collected_entry_takes_its_judgements_along(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    stores.note_judgement(an_entry(home), INPUTS, [])
    for dry_run in (True, False):
        gc.collect(home, keep=1, older_than=0.0, grace=0.0, dry_run=dry_run)
        assert bool(list((home.wheelhouse / "judgements").rglob("*.json"))) is dry_run


# --- the whole way ----------------------------------------------------------------------------------


def reasons(root: Root) -> tuple[str, list[str]]:
    (step,) = root.json("plan", "a")["steps"]
    return step["decision"], step["reasons"]


def aged(root: Root) -> None:
    """Write the store's only entry as 101310a would have."""
    (path,) = root.folder.glob("wheelhouse/store/*/*/key.json")
    folder, document = path.parent, json.loads(path.read_text())
    inputs = document["inputs"]
    del inputs["recipe"]["network"]
    inputs["format"] = 2
    key = digest(inputs)
    made = json.loads((OLDER / "key.json").read_text())["inputs"]
    assert (made.keys(), made["recipe"].keys()) == (inputs.keys(), inputs["recipe"].keys())
    record = json.loads((folder / "record.json").read_text())
    del record["judgement"], record["papers"][stores.JUDGEMENT]
    assert record.keys() == json.loads((OLDER / "record.json").read_text()).keys()
    for name, value in {
        "key.json": {**document, "key": key, "inputs": inputs},
        "record.json": record,
    }.items():
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(value))
    (folder / stores.JUDGEMENT).unlink()
    place = root.folder / "wheelhouse" / "store" / key[:2] / key
    place.parent.mkdir(exist_ok=True)
    folder.rename(place)
    shutil.rmtree(root.folder / "wheelhouse" / "views")


def test_a_wheelhouse_of_an_older_program_is_not_rebuilt(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": PRINTS})
    assert statuses(root.json("build", "a", "--no-closure")) == {"a": "built"}
    aged(root)
    before = root.state()
    decision, why = reasons(root)
    assert decision == "REUSE"
    assert "to be audited again: what it was judged by is not recorded" in why
    assert root.state() - before <= {"wheelhouse/store/index.json"}, "a plan changes nothing"
    assert "nothing differs" in root.run("why", "a").stdout
    assert statuses(root.json("build", "a", "--no-closure")) == {"a": "reused"}
    assert reasons(root) == ("REUSE", ["in the store with the same inputs and toolchain"])
    wheels = list(root.folder.glob("wheelhouse/store/*/*/*.whl"))
    assert len(wheels) == 2
    assert wheels[0].samefile(wheels[1])
    assert root.run("wheelhouse", "check").returncode == 0
    assert not list(root.folder.glob("build/a/*"))


def test_what_is_asked_anew_is_asked_of_what_the_store_has(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": PRINTS})
    assert statuses(root.json("build", "a", "--no-closure")) == {"a": "built"}
    recipe = root.folder / "recipes" / "a.toml"
    plain, entry = recipe.read_text(), root.folder / "wheelhouse" / "store"
    stored = {path: path.stat().st_mtime_ns for path in entry.glob("*/*/*")}
    recipe.write_text(plain + FEATURE.format("ON"))
    decision, why = reasons(root)
    assert decision == "REUSE"
    assert why[1] == "to be audited again: features.USE_X changed: none -> ON"
    document = root.json("build", "a", "--no-closure")
    assert statuses(document) == {"a": "reused"}
    assert "audited again" in document["results"][0]["reasons"][0]
    assert {path: path.stat().st_mtime_ns for path in entry.glob("*/*/*")} == stored
    assert len(reasons(root)[1]) == 1
    recipe.write_text(plain + FEATURE.format("OFF"))
    for _ in range(2):  # a judgement that says no is not kept
        done = root.run("build", "a", "--no-closure")
        assert done.returncode == 8, done.stderr
        assert "not good by what is asked of it today: features: the build would lack USE_X" in done.stderr
        assert f"then: {root.line} build a" in done.stderr
    recipe.write_text(plain)
    assert reasons(root)[1] == ["in the store with the same inputs and toolchain"]


def test_without_its_log_a_wheel_with_new_features_is_built_again(tmp_path: Path) -> None:
    root = make(tmp_path, {"a": PRINTS})
    assert statuses(root.json("build", "a", "--no-closure")) == {"a": "built"}
    (log,) = root.folder.glob("wheelhouse/store/*/*/build.log")
    log.unlink()
    recipe = root.folder / "recipes" / "a.toml"
    recipe.write_text(recipe.read_text() + FEATURE.format("ON"))
    decision, why = reasons(root)
    assert decision == "BUILD"
    assert "only its build log could tell" in why[1]
    assert statuses(root.json("build", "a", "--no-closure")) == {"a": "built"}
    assert reasons(root) == ("REUSE", ["in the store with the same inputs and toolchain"])
