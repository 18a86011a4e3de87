"""check: every kind of damage is found and named, and what can be mended is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build.paths import Home
from spark_build.wheelhouse import generations, store
from spark_build.wheelhouse.fsck import Suspect, check
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.store import shared_lock
from spark_build.wheels.model import StoredWheel
from tests.helpers.commands import hint_text
from tests.helpers.generations import VIEW as CLI_VIEW
from tests.helpers.generations import root_and_home
from tests.helpers.wheelhouse import demo_house, make_wheel, publish, put_built, put_public, snapshot

Broken = Callable[[Home, Generation], object]
AGAIN = "spark-build --target host-cpu --train 1.0 all"


def look(home: Home, *, deep: bool = False, repair: bool = False) -> tuple[Suspect, ...]:
    return check(home, deep=deep, repair=repair, told=lambda _done, _total: None)


def kept(home: Home, generation: Generation, name: str = "helper") -> Path:
    """A wheel in the store, to be written to."""
    (wheel,) = [one for one in generation.wheels if one.name == name]
    path = store.entry_folder(home.store, wheel.key) / wheel.filename
    path.chmod(0o644)
    return path


def flip(path: Path) -> None:
    """Another inode: what was linked from elsewhere stays whole."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def link(generation: Generation, name: str = "helper") -> Path:
    (wheel,) = [one for one in generation.wheels if one.name == name]
    return generation.folder / wheel.filename


def relinked(generation: Generation, target: str) -> None:
    link(generation).unlink()
    link(generation).symlink_to(target)


def filled(generation: Generation) -> None:
    link(generation).unlink()
    link(generation).write_bytes(b"no wheel")


def to_another(home: Home, generation: Generation) -> None:
    relinked(generation, os.path.relpath(kept(home, generation, "more"), generation.folder))


def cut_record(home: Home, made: Generation) -> None:
    record = kept(home, made).parent / "record.json"
    record.chmod(0o644)
    os.truncate(record, 20)


MENDABLE: dict[str, tuple[str, Broken]] = {
    "link gone": ("missing", lambda _, made: link(made).unlink()),
    "link dangles": ("dangling", lambda _, made: relinked(made, "../nowhere.whl")),
    "link leads elsewhere": ("misplaced", to_another),
    "file for link": ("damaged", lambda _, made: filled(made)),
    "constraints": ("papers", lambda _, made: (made.folder / "constraints.txt").write_text("demo==9\n")),
    "requirements": ("papers", lambda _, made: (made.folder / "requirements.txt").unlink()),
    "manifest gone": ("damaged", lambda _, made: (made.folder / "manifest.json").unlink()),
    "manifest cut": ("damaged", lambda _, made: os.truncate(made.folder / "manifest.json", 99)),
    "store leftover": ("unfinished", lambda home, _: (home.store / ".tmp-x").mkdir()),
    "view leftover": ("unfinished", lambda _, made: (made.folder.parent / ".tmp-x").mkdir()),
    "switch leftover": (
        "unfinished",
        lambda _, made: (made.folder.parent.parent / ".current-1").symlink_to("x"),
    ),
}
HOPELESS: dict[str, tuple[str, Broken, str]] = {
    "wheel gone": ("missing", lambda home, made: kept(home, made).unlink(), "rm -r"),
    "wheel cut": ("damaged", lambda home, made: os.truncate(kept(home, made), 9), "rm -r"),
    "record gone": (
        "missing",
        lambda home, made: (kept(home, made).parent / "record.json").unlink(),
        "rm -r",
    ),
    "record cut": ("damaged", cut_record, "rm -r"),
    "paper gone": (
        "missing",
        lambda home, made: (kept(home, made, "demo").parent / "build.log").unlink(),
        "demo",
    ),
    "entry gone": ("missing", lambda home, made: shutil.rmtree(kept(home, made).parent), AGAIN),
    "foreign wheel": ("foreign", lambda _, made: make_wheel(made.folder, "demo", "9.0"), "rm -r"),
    "foreign in store": ("foreign", lambda home, _: (home.store / "notes.txt").write_text("x"), "rm -r"),
    "foreign in entry": (
        "foreign",
        lambda home, made: (kept(home, made).parent / "x").write_text("x"),
        "rm -r",
    ),
    "foreign key": ("foreign", lambda home, _: (home.store / "ab" / "cd").mkdir(parents=True), "rm -r"),
    "foreign in view": ("foreign", lambda _, made: (made.folder.parent / "notes").mkdir(), "rm -r"),
    "current dangles": ("dangling", lambda _, made: switched(made, "generations/9"), "rollback 1"),
    "current elsewhere": ("misplaced", lambda _, made: switched(made, "."), "rollback 1"),
    "current gone": (
        "unfinished",
        lambda _, made: (made.folder.parent.parent / "current").unlink(),
        "rollback 1",
    ),
    "page gone": ("dangling", lambda _, made: no_page(made), AGAIN),
}


def switched(made: Generation, target: str) -> None:
    current = made.folder.parent.parent / "current"
    current.unlink()
    current.symlink_to(target)


def no_page(made: Generation) -> None:
    shutil.rmtree((made.folder / "index" / "helper").resolve())


def demo(root: Path) -> tuple[Home, Generation]:
    """As `demo_house`; no copy of a wheel lies around."""
    home, made = demo_house(root)
    shutil.rmtree(root / "dist")
    return home, made


def test_nothing_is_wrong(tmp_path: Path) -> None:
    home, _ = demo(tmp_path)
    before = snapshot(home.wheelhouse)
    assert look(home) == look(home, deep=True) == look(home, deep=True, repair=True) == ()
    assert snapshot(home.wheelhouse) == before


@pytest.mark.parametrize("name", MENDABLE)
def test_what_can_be_mended(tmp_path: Path, name: str) -> None:
    kind, breaks = MENDABLE[name]
    home, made = demo(tmp_path)
    before = snapshot(home.wheelhouse)
    breaks(home, made)
    broken = snapshot(home.wheelhouse)
    found = look(home)
    assert [(fault.finding.rule, fault.mended) for fault in found] == [(kind, False)]
    assert Path(found[0].finding.place.file).is_relative_to(home.wheelhouse)
    assert "check --repair" in hint_text(found[0].finding.hint) or "rm -r" in hint_text(found[0].finding.hint)
    assert snapshot(home.wheelhouse) == broken, "looking changes nothing"
    assert [fault.mended for fault in look(home, repair=True)] == [True]
    assert look(home, deep=True) == ()
    after = snapshot(home.wheelhouse)
    if "manifest" not in name:
        assert after == before
    assert generations.read(made.folder).wheels == made.wheels


@pytest.mark.parametrize("name", HOPELESS)
def test_what_cannot_be_mended_says_what_to_type(tmp_path: Path, name: str) -> None:
    kind, breaks, fix = HOPELESS[name]
    home, made = demo(tmp_path)
    breaks(home, made)
    broken = snapshot(home.wheelhouse)
    found = look(home, repair=True)
    assert {fault.finding.rule for fault in found} >= {kind}
    assert len(found) == (2 if name.startswith("record") else 1), found
    assert not any(fault.mended for fault in found)
    assert any(fix in hint_text(fault.finding.hint) for fault in found)
    assert snapshot(home.wheelhouse) == broken


def test_a_manifest_is_made_again_only_where_it_is_proven(tmp_path: Path) -> None:
    """With a link gone, too, nobody knows what the manifest named: requirements.txt says that one lacks."""
    home, made = demo(tmp_path)
    (made.folder / "manifest.json").unlink()
    link(made).unlink()
    (fault,) = look(home, repair=True)
    assert not fault.mended
    assert "rm -r" in hint_text(fault.finding.hint)
    assert not (made.folder / "manifest.json").exists()


def test_flipped_bits(tmp_path: Path) -> None:
    home, made = demo(tmp_path)
    path = kept(home, made)
    flip(path)
    assert look(home) == (), "the size is the same"
    log = kept(home, made, "demo").parent / "build.log"
    flip(log)
    found = look(home, deep=True, repair=True)
    assert sorted((Path(fault.finding.place.file).name, fault.mended) for fault in found) == [
        ("build.log", False),
        (link(made).name, False),
    ]
    assert all("rm -r" in hint_text(fault.finding.hint) for fault in found)


def test_what_is_being_made_is_no_leftover(tmp_path: Path) -> None:
    home, _ = demo(tmp_path)
    with shared_lock(home.store, "importing"):
        (home.store / ".tmp-mine").mkdir()
        assert look(home, repair=True) == ()
        assert (home.store / ".tmp-mine").is_dir()
    assert [fault.finding.rule for fault in look(home)] == ["unfinished"]


def test_a_verification_that_runs_is_no_fault(tmp_path: Path) -> None:
    home, generation = demo(tmp_path)
    with generations.verifying(generation):
        assert look(home, repair=True) == ()


def test_a_wheel_that_was_rebuilt_under_its_key(tmp_path: Path) -> None:
    """Other bytes under the same key: the generation that shows the old ones says so."""
    home, made = demo(tmp_path)
    shutil.rmtree(kept(home, made, "demo").parent)
    again = make_wheel(tmp_path / "again", build="1_0123abcd", files={"demo/__init__.py": b"other"})
    put_built(home.store, again)
    (fault,) = look(home)
    assert "other bytes" in fault.finding.message
    assert AGAIN in hint_text(fault.finding.hint)


def test_a_copy_with_real_files_is_whole(tmp_path: Path) -> None:
    home, made = demo(tmp_path)
    for wheel in made.wheels:
        path = made.folder / wheel.filename
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    assert look(home) == ()


def test_the_command_line(tmp_path: Path) -> None:
    root, home, view = root_and_home(tmp_path)
    made = publish(home, [put_public(home.store, make_wheel(tmp_path / "d"))], view=CLI_VIEW)
    done = root.run("wheelhouse", "check")
    assert (done.returncode, done.stdout) == (0, "all is as it was recorded (--deep reads every byte, too)\n")
    assert root.json("wheelhouse", "check", "--deep") == {"faults": [], "mended": 0, "left": 0}
    (made.folder / made.wheels[0].filename).unlink()
    (view / "generations" / "foreign.whl").write_text("x")
    done = root.run("--json", "wheelhouse", "check")
    assert done.returncode == 10
    assert '"left": 2' in done.stdout
    done = root.run("wheelhouse", "check", "--repair")
    assert done.returncode == 10
    assert done.stdout.splitlines()[-1] == "faults: 2, mended: 1, left: 1"
    assert f"  next: rm -r {view / 'generations' / 'foreign.whl'}" in done.stdout.splitlines()


def test_what_mends_one_view_is_not_made_to_act_on_another(tmp_path: Path) -> None:
    """A generation that goes from one view is published anew there; the command's own --target is another."""
    root, home, _ = root_and_home(tmp_path)
    wheel = put_public(home.store, make_wheel(tmp_path / "d"))
    made = publish(home, [wheel], view="gb10-t-cp312")
    noted = made.folder / "manifest.json"
    noted.write_text("{")
    (made.folder / "requirements.txt").unlink()
    later = publish_elsewhere(home, wheel)
    (later / "current").unlink()
    line = f"spark-build --root {root.folder} --target"
    again = f"{line} gb10 --train t all (publishes a new generation), then: rm -r {made.folder}"
    back = f"{line} auto --train t wheelhouse rollback 1"
    for options in ((), ("--target", "host-cpu"), ("--target", "host-cpu", "--train", "t")):
        document = json.loads(root.run("--json", *options, "wheelhouse", "check").stdout)
        fixes = {one["path"]: one["fix"] for one in document["faults"]}
        assert fixes == {str(noted): again, str(later / "current"): back}
        shown = root.run(*options, "wheelhouse", "check").stdout.splitlines()
        assert {f"  next: {fix}" for fix in fixes.values()} <= set(shown)


def publish_elsewhere(home: Home, wheel: StoredWheel) -> Path:
    """A view of a GPU that no target is for, which only --target auto finds."""
    return publish(home, [wheel], view="cuda-sm75-t-cp312").folder.parent.parent


def test_whether_the_wheels_install_is_tried_for_real(tmp_path: Path) -> None:
    root, home, view = root_and_home(tmp_path)
    dist = tmp_path / "dist"
    needy = put_built(home.store, make_wheel(dist, "needy", "1.0", build="1_0123abcd", requires=["rare>=2"]))
    rare = put_public(home.store, make_wheel(dist, "rare", "1.0"))
    publish(home, [needy, rare], view=view.name)
    done = root.run("wheelhouse", "check")
    assert done.returncode == 10
    assert "incomplete: " in done.stdout
    assert "rare>=2" in done.stdout
    assert f"--root {root.folder} --target host-cpu --train t all (completes the set)" in done.stdout
    assert root.run("wheelhouse", "check", "--no-resolve").returncode == 0
    publish(home, [needy, put_public(home.store, make_wheel(dist, "rare", "2.1"))], view=view.name)
    assert root.run("wheelhouse", "check").returncode == 0
    publish(home, [needy, rare], view="elsewhere-1.0-cp311")  # a target that nobody here knows
    done = root.run("wheelhouse", "check")
    assert done.returncode == 0
    assert "elsewhere-1.0-cp311: no target of that name" in done.stderr
