"""Exports of a wheelhouse, member by member, for tests that read, change or forge them."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.transfer.bundle import pack
from spark_build.transfer.bundle_import import Allowed, ImportResult, import_bundle
from spark_build.transfer.bundle_write import write_archive
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.trust import SIGNATURE, sign
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import content_digest
from tests.helpers.wheelhouse import VIEW

TOP = f"{VIEW}-1"
Member = tuple[tarfile.TarInfo, bytes]


def export(generation: Generation, store: Path, file: Path) -> int:
    return write_archive(pack(generation, store), file)


def no_view() -> tuple[str, Target]:
    raise AssertionError("an export knows its view")


def import_unsigned(home: Home, path: Path) -> ImportResult:
    """As with --unsigned."""
    return import_bundle(home, path, no_view, allowed=Allowed(unsigned=True))


def import_archive(home: Home, file: Path) -> tuple[Generation, bool]:
    taken = import_unsigned(home, file)
    return taken.generation, taken.new


def told_apart(wheels: Iterable[StoredWheel]) -> list[tuple[str, str, tuple[str, ...]]]:
    """What an import does not change: (file name, sha256, requirements) of each."""
    return [(wheel.filename, wheel.sha256, wheel.requires) for wheel in wheels]


def members(file: Path) -> list[Member]:
    with tarfile.open(file, "r:") as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def written(file: Path, content: Sequence[Member]) -> Path:
    with tarfile.open(file, "w:") as tar:
        for member, data in content:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return file


def member(name: str, data: bytes = b"", **fields: Any) -> Member:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def make_key(folder: Path, name: str) -> Path:
    """A private key of ssh without a passphrase; the public one lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "somebody", "-f", str(folder / name)]
    subprocess.run(command, check=True, timeout=60)
    return folder / name


def taken_apart(file: Path) -> tuple[str, dict[str, bytes]]:
    """(The top folder, content by name below it)."""
    content = members(file)
    top = content[0][0].name.partition("/")[0]
    return top, {info.name.removeprefix(f"{top}/"): data for info, data in content}


def sealed(file: Path, top: str, files: dict[str, bytes], *, key: Path | None = None) -> Path:
    """An export whose record, manifest and sums agree with its changed files, as a careful forger makes it."""
    manifest = json.loads(files["manifest.json"])
    for row in manifest["wheels"]:
        data, name = files[row["filename"]], f"store/{row['key']}/record.json"
        row |= {"sha256": _sha256(data), "size": len(data)}
        with tempfile.TemporaryDirectory() as scratch:
            wheel = Path(scratch, row["filename"])
            wheel.write_bytes(data)
            said = {"content_digest": content_digest(wheel), "sha256": row["sha256"], "size": row["size"]}
        files[name] = json.dumps(json.loads(files[name]) | said).encode()
    papers = [name.split("/")[1:] for name in files if name.startswith("store/")]
    manifest["papers"] = {row["key"]: {} for row in manifest["wheels"]}
    for owner, paper in papers:
        manifest["papers"][owner][paper] = _sha256(files[f"store/{owner}/{paper}"])
    wheels = {row["filename"] for row in manifest["wheels"]}
    others = {name for name in files if not name.startswith("store/")} - wheels - {"manifest.json", SIGNATURE}
    sums = {
        name: data for name, data in files.items() if name not in ("manifest.json", SIGNATURE, "SHA256SUMS")
    }
    files["SHA256SUMS"] = "".join(f"{_sha256(data)}  {name}\n" for name, data in sums.items()).encode()
    manifest["files"] = {name: _sha256(files[name]) for name in others}
    files["manifest.json"] = json.dumps(manifest).encode()
    if key is not None:
        files[SIGNATURE] = sign(files["manifest.json"], key)
    order = sorted(files, key=lambda name: {"manifest.json": 0, SIGNATURE: 1}.get(name, 2))
    return written(file, [member(f"{top}/{name}", files[name]) for name in order])


def relabelled(entry: Path, key: Path) -> None:
    """Have the signer of a remote store's entry say of its wheel that it has other content."""
    content = members(entry)
    names = [info.name.partition("/")[2] for info, _ in content]
    place = next(place for place, name in enumerate(names) if name.endswith("/record.json"))
    record = json.dumps({**json.loads(content[place][1]), "content_digest": "a" * 64}).encode()
    manifest = json.loads(content[0][1])
    manifest["papers"][names[place].split("/")[1]]["record.json"] = _sha256(record)
    data = json.dumps(manifest).encode()
    changed = {0: data, names.index(SIGNATURE): sign(data, key), place: record}
    written(entry, [(info, changed.get(number, old)) for number, (info, old) in enumerate(content)])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
