"""The third-party wheels of a set, chosen for the target by real pip from a real index in a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest
from packaging.tags import parse_tag

from spark_build.build import scheduler
from spark_build.build.context import resolve_context
from spark_build.environments import closure
from spark_build.errors import SourceError, StoreError
from spark_build.events import Note, RecipeResult
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.recipes.loader import load
from spark_build.recipes.model import Target
from spark_build.recipes.parse import Lock, lock_file, render_lock
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheelhouse import trust
from spark_build.wheels.model import StoredWheel
from tests.conftest import ROOT, Root
from tests.helpers.commands import hint_text
from tests.helpers.exports import import_unsigned, make_key
from tests.helpers.webserver import serving
from tests.helpers.wheelhouse import home_in, make_wheel, publish, put_built, put_public
from tests.helpers.wheels import tags_of

SPARK = Target(name="gb10", summary="", platform="linux-aarch64", python="cp312")
H200 = Target(name="h200", summary="", platform="linux-x86_64", python="cp312")
NEEDS = [
    "both>=1",
    "intel; platform_machine == 'x86_64'",
    "arm[fast]; platform_machine == 'aarch64'",
    "old; python_version < '3.12'",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An index with what one machine, the other, or both need; `intel` and `arm` only exist for their own."""
    links = tmp_path / "links"
    for machine in ("x86_64", "aarch64"):
        make_wheel(links, "both", "1.5", tag=f"cp312-cp312-manylinux_2_28_{machine}")
        make_wheel(links, "both", "1.6", tag=f"cp312-cp312-manylinux_2_28_{machine}")
    make_wheel(links, "intel", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    deep = ["deep; platform_machine == 'aarch64' and extra == 'fast'"]
    make_wheel(links, "arm", "1.0", tag="py3-none-manylinux2014_aarch64", requires=deep, extras=["fast"])
    make_wheel(links, "deep", "3.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return home_in(tmp_path)


def built(home: Home, tmp_path: Path, tag: str) -> StoredWheel:
    return put_built(home.store, make_wheel(tmp_path / "dist", "demo", "1.0", requires=NEEDS, tag=tag))


@pytest.mark.parametrize(
    ("target", "tag", "expected"),
    [
        (
            SPARK,
            "cp312-cp312-linux_aarch64",
            {
                "arm-1.0-py3-none-manylinux2014_aarch64.whl",
                "both-1.5-cp312-cp312-manylinux_2_28_aarch64.whl",
                "deep-3.0-py3-none-any.whl",
            },
        ),
        (
            H200,
            "cp312-cp312-linux_x86_64",
            {
                "intel-1.0-py3-none-manylinux_2_28_x86_64.whl",
                "both-1.5-cp312-cp312-manylinux_2_28_x86_64.whl",
            },
        ),
    ],
)
def test_requirements_are_judged_as_on_the_target(
    home: Home, tmp_path: Path, target: Target, tag: str, expected: set[str]
) -> None:
    wheels = closure.resolve(
        [built(home, tmp_path, tag)], {"both": "1.5"}, store=home.store, offline=False, foreign=target
    )
    assert {wheel.filename for wheel in wheels} == expected
    assert {wheel.origin for wheel in wheels} == {"public"}


def test_offline_the_store_completes_it(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = built(home, tmp_path, "cp312-cp312-linux_aarch64")
    found = closure.resolve([wheel], {}, store=home.store, offline=False, foreign=SPARK)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    again = closure.resolve([wheel], {}, store=home.store, offline=True, foreign=SPARK)
    assert again == found


def test_what_an_export_brought_completes_it_while_its_signer_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swapped public wheel must not get into a set of ours, and not pass for a download."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    there, home = home_in(tmp_path / "there"), home_in(tmp_path / "home")
    alice = make_key(tmp_path, "alice")
    sent = publish(there, [put_public(there.store, make_wheel(tmp_path / "d", "helper"))])
    write_archive(pack(sent, there.store, key=alice), tmp_path / "out.tar")
    demo = put_built(home.store, make_wheel(tmp_path / "dist", "demo", requires=["helper"]))
    (helper,) = import_unsigned(home, tmp_path / "out.tar").generation.wheels
    with pytest.raises(SourceError, match="the requirement helper"):
        closure.resolve([demo], {}, store=home.store, offline=True)
    trust.add(home.wheelhouse, "alice", tmp_path / "alice.pub")
    (helper,) = import_unsigned(home, tmp_path / "out.tar").generation.wheels
    assert closure.resolve([demo], {}, store=home.store, offline=True) == (helper,)
    assert helper.shown_origin == "public, imported (alice)"
    trust.remove(home.wheelhouse, "alice")
    with pytest.raises(SourceError, match="the requirement helper"):
        closure.resolve([demo], {}, store=home.store, offline=True)


def test_what_is_missing_for_the_target_is_named(home: Home, tmp_path: Path) -> None:
    (tmp_path / "links" / "deep-3.0-py3-none-any.whl").unlink()
    wheel = built(home, tmp_path, "cp312-cp312-linux_aarch64")
    with pytest.raises(SourceError, match="deep"):
        closure.resolve([wheel], {}, store=home.store, offline=False, foreign=SPARK)


def test_a_public_wheel_that_would_harm_an_environment_is_not_taken(home: Home, tmp_path: Path) -> None:
    files = {"deep-9.0.data/data/pyvenv.cfg": b"home = /tmp"}
    make_wheel(tmp_path / "links", "deep", "9.0", files=files)
    wheel = built(home, tmp_path, "cp312-cp312-linux_aarch64")
    with pytest.raises(StoreError, match=r"deep-9.0.*would replace pyvenv.cfg of the environment"):
        closure.resolve([wheel], {}, store=home.store, offline=False, foreign=SPARK)
    assert not list(home.store.rglob("deep-9*"))


def test_wheels_for_the_oldest_glibc_fit() -> None:
    """As NVIDIA names some for x86-64; for aarch64 the oldest is 2.17."""
    intel = dataclasses.replace(SPARK, platform="linux-x86_64")
    assert set(parse_tag("py3-none-manylinux2010_x86_64.manylinux_2_5_x86_64")) <= tags_of(intel)
    assert not set(parse_tag("py3-none-manylinux_2_5_aarch64")) & tags_of(SPARK)


# --- locked ------------------------------------------------------------------------------------------


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which pip knows alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "links"


def offer(links: Path, version: str = "1.0", code: bytes = b"") -> Path:
    return make_wheel(links, "helper", version, files={"helper.pth": code} if code else {})


def locked(wheel: Path, pin: str = "helper==1.0") -> Lock:
    return Lock(file="the lock", wheels={pin: {wheel.name: sha256_of(wheel)}}, owner="trains/t")


def test_a_public_wheel_of_other_bytes_is_refused(tmp_path: Path, links: Path) -> None:
    home, good = home_in(tmp_path), offer(tmp_path / "good")
    demo = put_built(home.store, make_wheel(tmp_path / "dist", "demo", requires=["helper"]))
    bad = offer(links, code=b"import os\n")

    def resolve(lock: Lock, *, offline: bool = False) -> tuple[StoredWheel, ...]:
        return closure.resolve([demo], {"helper": "1.0"}, store=home.store, offline=offline, locks=(lock,))

    with pytest.raises(SourceError, match=f"the lock does not name these bytes.*{sha256_of(bad)}") as refused:
        resolve(locked(good))
    assert refused.value.message.startswith(bad.name)
    assert "to take it: spark-build recipes pin trains/t  (writes" in hint_text(refused.value.hint)
    assert not list(home.store.rglob("helper*"))
    (taken,) = resolve(Lock(file="", wheels={}))  # what the lock is against; it stays in the store
    assert closure.unlocked([taken], ()) == ["helper==1.0"]
    with pytest.raises(SourceError, match="does not name these bytes"):
        resolve(locked(good), offline=True)
    bad.unlink()
    offer(links)
    (public,) = resolve(locked(good))
    assert (public.sha256, closure.unlocked([public], [locked(good)])) == (sha256_of(good), [])


def test_an_indexs_own_build_of_a_locked_version_is_passed_over(tmp_path: Path, links: Path) -> None:
    """A pin of 1.0 allows 1.0+1, which pip prefers where it sees one."""
    home, good = home_in(tmp_path), offer(tmp_path / "good")
    demo = put_built(home.store, make_wheel(tmp_path / "dist", "demo", requires=["helper"]))
    offer(links, "1.0+1", b"import os\n")

    def resolve(lock: Lock) -> tuple[StoredWheel, ...]:
        return closure.resolve([demo], {"helper": "1.0"}, store=home.store, offline=False, locks=(lock,))

    with pytest.raises(SourceError, match=r"demo 1\.0 depends on helper; .*\(constraint\) helper===1\.0"):
        resolve(locked(good))
    offer(links)
    (public,) = resolve(locked(good))
    assert (public.version, public.sha256) == ("1.0", sha256_of(good))


def test_an_index_adds_nothing_by_a_metadata_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip resolves by what the index tells of a wheel (PEP 658), whose bytes are the locked ones."""
    home, helper, evil = home_in(tmp_path), offer(tmp_path / "w"), make_wheel(tmp_path / "w", "evil")
    demo = put_built(home.store, make_wheel(tmp_path / "dist", "demo", requires=["helper"]))
    told = b"Metadata-Version: 2.1\nName: helper\nVersion: 1.0\nRequires-Dist: evil\n"
    with serving() as site:
        for name, value in {"CONFIG_FILE": os.devnull, "INDEX_URL": f"{site.url}/simple"}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "NO_INDEX"):
            monkeypatch.delenv(f"PIP_{name}", raising=False)
        for wheel in (helper, evil):
            url = site.add(f"/files/{wheel.name}", wheel.read_bytes())
            site.add(f"/files/{wheel.name}.metadata", told)
            attribute = f'data-core-metadata="sha256={hashlib.sha256(told).hexdigest()}"'
            link = f'<a href="{url}" {attribute if wheel is helper else ""}>{wheel.name}</a>'
            page = f"<!DOCTYPE html><html><body>{link}</body></html>"
            site.add(f"/simple/{wheel.name.split('-')[0]}/", page.encode(), kind="text/html")
        with pytest.raises(SourceError, match="inconsistent Requires-Dist"):
            closure.resolve([demo], {}, store=home.store, offline=False, locks=(locked(helper),))
    assert not list(home.store.rglob("evil*"))


def test_what_is_built_is_held_by_no_pin_of_public_wheels(tmp_path: Path, links: Path) -> None:
    home = home_in(tmp_path)
    offer(links)
    helper = put_built(home.store, make_wheel(tmp_path / "dist", "helper", "2.0"))
    assert closure.resolve([helper], {"helper": "1.0"}, store=home.store, offline=False) == ()


def test_a_set_is_completed_by_what_its_trains_lock_names(root: Root, tmp_path: Path, links: Path) -> None:
    """And again when the lock is another one; what no lock holds is said once."""
    home = dataclasses.replace(home_in(tmp_path), data=(root.folder, ROOT))
    good = offer(links)
    make_wheel(links, "free", "1.0")
    demo = put_built(home.store, make_wheel(tmp_path / "dist", "demo", requires=["helper", "free"]))
    root.train(f'{(root.folder / "recipes/trains/t.toml").read_text()}\n[closure]\nhelper = "1.0"\n')
    lock = root.folder / lock_file("trains/t")
    lock.parent.mkdir(parents=True)
    lock.write_text(render_lock(locked(good).wheels))
    setting = resolve_context(home, load(home.data), "host-cpu", "t", {})
    result = RecipeResult(recipe="demo", version="1.0", status="built", seconds=0.0, build_key=demo.key)
    said: list[str] = []

    def publish() -> bool:
        def emit(event: object) -> None:
            said.extend([event.message] if isinstance(event, Note) else [])

        return scheduler.publish(setting, [result], with_closure=True, offline=False, emit=emit)[1]

    assert publish()
    assert not publish()
    assert [one for one in said if "lock" in one] == ["held by no lock of train t: free==1.0"]
    lock.write_text(lock.read_text().replace(sha256_of(good), "0" * 64))
    with pytest.raises(SourceError, match=r"recipes/locks/t/pylock\.toml does not name these bytes"):
        publish()
    lock.write_text(render_lock({}))  # a pin of the train that it lacks
    with pytest.raises(SourceError, match="does not name these bytes"):
        publish()


def test_what_a_recipe_alone_requires_is_locked_with_it(root: Root, tmp_path: Path, links: Path) -> None:
    home = dataclasses.replace(home_in(tmp_path), data=(root.folder, ROOT))
    good, recipe = offer(tmp_path / "good"), root.folder / "recipes/tiny.toml"
    recipe.write_text(f'{recipe.read_text()}\n[closure]\nhelper = "1.0"\n')
    lock = root.folder / lock_file("tiny")
    lock.parent.mkdir(parents=True)
    lock.write_text(render_lock(locked(good).wheels))
    tiny = put_built(home.store, make_wheel(tmp_path / "dist", "tiny", requires=["helper"]))
    setting = resolve_context(home, load(home.data), "host-cpu", "t", {})
    result = RecipeResult(recipe="tiny", version="1.0", status="built", seconds=0.0, build_key=tiny.key)
    said: list[object] = []

    def publish() -> bool:
        return scheduler.publish(setting, [result], with_closure=True, offline=False, emit=said.append)[1]

    bad = offer(links, code=b"import os\n")
    with pytest.raises(SourceError, match=r"pylock\.tiny\.toml does not name these bytes") as refused:
        publish()
    assert "to take it: spark-build recipes pin tiny  (" in hint_text(refused.value.hint)
    assert not list(home.store.rglob("helper*"))
    bad.unlink()
    offer(links)
    assert publish()
    assert "no lock" not in str(said)


def test_a_recipes_closure_holds_without_a_lock(root: Root, tmp_path: Path, links: Path) -> None:
    home = dataclasses.replace(home_in(tmp_path), data=(root.folder, ROOT))
    recipe = root.folder / "recipes/tiny.toml"
    recipe.write_text(f'{recipe.read_text()}\n[closure]\nhelper = "1.0"\n')
    for version in ("1.0", "2.0"):
        make_wheel(links, "helper", version)
    tiny = put_built(home.store, make_wheel(tmp_path / "dist", "tiny", requires=["helper"]))
    setting = resolve_context(home, load(home.data), "host-cpu", "t", {})
    result = RecipeResult(recipe="tiny", version="1.0", status="built", seconds=0.0, build_key=tiny.key)
    made, _ = scheduler.publish(setting, [result], with_closure=True, offline=False, emit=lambda _: None)
    assert made is not None
    assert [(one.name, one.version) for one in made.wheels] == [("helper", "1.0"), ("tiny", "1.0")]
