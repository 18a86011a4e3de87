"""Views and generations: what one target, train and ABI sees of the store.

A generation is a folder of relative symlinks with the papers an installer wants; it never changes
after it appeared. `current` is switched by one rename.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_build.errors import StoreError
from spark_build.host.files import locked, remove_tree, sync_folder, sync_tree, write_atomically
from spark_build.host.indexpages import write_index
from spark_build.model.wheel import StoredWheel

MANIFEST = "manifest.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One published state of a view. `closure_key` is empty without a closure."""

    number: int
    folder: Path
    wheels: tuple[StoredWheel, ...]
    closure_key: str

    def built(self) -> tuple[StoredWheel, ...]:
        """The wheels that were built here, without the public ones of the closure."""
        return tuple(wheel for wheel in self.wheels if wheel.origin == "built")


def current(view: Path) -> Generation | None:
    """The current generation of a view; None before the first."""
    try:
        folder = view / (view / "current").readlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{view / 'current'} is no symbolic link: {error}", hint="remove it") from error
    return read(folder)


def read(folder: Path) -> Generation:
    """A generation from its manifest."""
    try:
        raw: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        wheels = tuple(StoredWheel(**{**row, "requires": tuple(row["requires"])}) for row in raw["wheels"])
        return Generation(
            number=raw["generation"], folder=folder, wheels=wheels, closure_key=raw["closure_key"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the manifest of this generation cannot be read: {error}",
            where=str(folder / MANIFEST),
            hint="spark-build all publishes a new generation from the store",
        ) from error


def publish(
    view: Path,
    store: Path,
    choose: Callable[[Generation | None], tuple[Iterable[StoredWheel], str]],
    waiting: Callable[[str], None] | None = None,
) -> tuple[Generation, bool]:
    """Publish what `choose` makes of the current generation: (generation, is it new?).

    `choose` runs under the view's lock, so two publishers never lose each other's wheels. The same
    wheels again give no new generation. `waiting` is told who else publishes.
    """
    with locked(view / "lock", purpose="publishing a generation", waiting=waiting):
        for killed in (*view.glob("generations/.tmp-*"), *view.glob(".current-*")):
            remove_tree(killed) if killed.is_dir() and not killed.is_symlink() else killed.unlink()
        before = current(view)
        chosen, closure_key = choose(before)
        wheels = tuple(sorted(chosen, key=lambda wheel: (wheel.name, wheel.filename)))
        if before is not None and (before.wheels, before.closure_key) == (wheels, closure_key):
            return before, False
        number = 1 + max(_numbers(view), default=0)
        folder = view / "generations" / str(number)
        _write_generation(folder, number, wheels, closure_key, store)
        _switch(view, number)
        return read(folder), True


def _numbers(view: Path) -> list[int]:
    generations = view / "generations"
    if not generations.is_dir():
        return []
    return [int(path.name) for path in generations.iterdir() if path.name.isdigit()]


def _write_generation(
    folder: Path, number: int, wheels: Sequence[StoredWheel], closure_key: str, store: Path
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        for wheel in wheels:
            kept = store / wheel.key[:2] / wheel.key / wheel.filename
            if not kept.is_file():
                raise StoreError(f"{wheel.filename} is not in the store", where=str(kept))
            _link(temporary / wheel.filename, kept)
        write_index(temporary, folder.parent.parent, wheels, store)
        manifest = {
            "schema": SCHEMA,
            "generation": number,
            "view": folder.parent.parent.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "closure_key": closure_key,
            "wheels": [asdict(wheel) for wheel in wheels],
        }
        for name, text in papers(wheels).items():
            (temporary / name).write_text(text)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        temporary.chmod(0o755)
        sync_tree(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        remove_tree(temporary)
        raise


def _link(link: Path, kept: Path) -> None:
    """A relative link, so that the whole wheelhouse can move."""
    link.symlink_to(os.path.relpath(kept, link.parent))
    if not link.exists():  # views/ is itself a link to another place: .. leads elsewhere
        link.unlink()
        link.symlink_to(os.path.relpath(kept.resolve(), link.parent.resolve()))


def papers(wheels: Sequence[StoredWheel]) -> dict[str, str]:
    """constraints.txt and requirements.txt (with hashes) of a set of wheels."""
    return {
        "constraints.txt": "".join(f"{wheel.name}=={wheel.version}\n" for wheel in wheels),
        "requirements.txt": requirements(wheels),
    }


def requirements(wheels: Sequence[StoredWheel]) -> str:
    """Lines that pip installs with --require-hashes."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels)


def _switch(view: Path, number: int) -> None:
    """Point `current` at a generation by one rename."""
    temporary = view / f".current-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("generations", str(number)))
    temporary.replace(view / "current")
    sync_folder(view)


def verdict_of(generation: Generation) -> dict[str, Any] | None:
    """What verification said of this generation; None before it was verified."""
    try:
        verdict: dict[str, Any] = json.loads((generation.folder / "verdict.json").read_text())
    except (OSError, ValueError):
        return None
    return verdict


def write_verdict(generation: Generation, verdict: dict[str, Any]) -> None:
    """Keep a verdict beside the wheels it is about."""
    write_atomically(generation.folder / "verdict.json", json.dumps(verdict, indent=1) + "\n")
