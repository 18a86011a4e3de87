"""Small real wheels, stores and views for tests, and real processes to meddle with them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from spark_build.files import sha256_of
from spark_build.paths import Home
from spark_build.text import digest
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import Generation
from spark_build.wheels.model import StoredWheel
from spark_build.wheels.reader import content_digest, read_facts
from tests.helpers import processes
from tests.helpers.wheels import PYTHON, record_of, write_zip

VIEW = f"host-cpu-1.0-{PYTHON}"


def make_wheel(
    folder: Path,
    name: str = "demo",
    version: str = "1.0",
    *,
    build: str = "",
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """A pure wheel that pip and uv install; its module's VERSION tells which one got installed."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    metadata += "".join(f"Requires-Dist: {need}\n" for need in requires)
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
    wheel += f"Tag: {tag}\n"
    wheel += f"Build: {build}\n" if build else ""
    own = {f"{module}/__init__.py": f"VERSION = {version!r}\nBUILD = {build!r}\n".encode()}
    everything = {
        **(own if files is None else files),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    record = f"{info}/RECORD"
    folder.mkdir(parents=True, exist_ok=True)
    return write_zip(
        folder / f"{module}-{version}{'-' + build if build else ''}-{tag}.whl",
        [*everything.items(), (record, record_of(everything, record).encode())],
    )


def home_in(root: Path) -> Home:
    return Home(
        data=(),
        wheelhouse=root / "wheelhouse",
        build=root / "build",
        sources=root / "sources",
        runs=root / "runs",
        cache=root / "cache",
    )


def put_built(store: Path, wheel: Path, *, note: str = "") -> StoredWheel:
    """Commit a wheel as if it had been built; `note` gives another build key."""
    inputs = {"recipe": wheel.name, "note": note}
    key = digest(inputs)
    papers = {
        "key.json": json.dumps({"key": key, "inputs": inputs}).encode(),
        "build.log": b"$ make\nall well\n" * 50,
        "provenance.json": provenance(wheel, key),
    }
    return _commit(store, wheel, key=key, origin="built", papers=papers)


def provenance(wheel: Path, key: str) -> bytes:
    """As much of one as an import looks at."""
    statement = {
        "subject": [{"name": wheel.name, "digest": {"sha256": sha256_of(wheel)}}],
        "predicate": {"buildDefinition": {"internalParameters": {"buildKey": key}}},
    }
    return json.dumps(statement).encode()


def put_public(store: Path, wheel: Path) -> StoredWheel:
    """Commit a wheel as part of a closure."""
    return _commit(store, wheel, key=sha256_of(wheel), origin="public", papers={})


def _commit(store: Path, wheel: Path, *, key: str, origin: str, papers: Mapping[str, bytes]) -> StoredWheel:
    facts = read_facts(wheel)
    described = {
        "name": facts.name,
        "version": facts.version,
        "origin": origin,
        "recipe": facts.name if origin == "built" else "",
        "requires": list(facts.requires),
        "content_digest": content_digest(wheel),
    }
    committed = stores.commit(store, key=key, wheel=wheel, described=described, papers=papers).wheel
    assert committed is not None
    return committed


def publish(home: Home, wheels: Iterable[StoredWheel], *, view: str = VIEW) -> Generation:
    chosen = list(wheels)
    return generations.publish(home.views / view, home.store, lambda _: (chosen, ""))[0]


def demo_house(root: Path) -> tuple[Home, Generation]:
    """A published view: demo (built) needs helper and, by its extra, more; lonely needs nothing."""
    home, dist = home_in(root), root / "dist"
    demo = make_wheel(
        dist,
        build="1_0123abcd",
        requires=["helper>=1", "more; extra == 'x'", "absent; python_version < '3'"],
        extras=["x"],
    )
    wheels = [put_built(home.store, demo)]
    wheels += [
        put_public(home.store, make_wheel(dist, name, version))
        for name, version in (("helper", "1.5"), ("more", "2.0"), ("lonely", "3.0"))
    ]
    return home, publish(home, wheels)


def snapshot(folder: Path) -> dict[str, str]:
    """Everything below a folder: files by content, links by where they point, folders; no locks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        elif path.name != "lock":
            found[name] = sha256_of(path)
    return found


def start(code: str, *arguments: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A real Python process that runs `code`; talk to it through its stdin and stdout."""
    return processes.start(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def hear(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints; "" at its end."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: subprocess.Popen[str], line: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str], timeout: float = 30) -> str:
    """What the process still prints; it must end well by itself."""
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, out
    return out


def eventually(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def verify_wheel(entry: stores.StoreEntry) -> None:
    """The entry's wheel still has the bytes it was committed with."""
    assert entry.wheel is not None
    assert sha256_of(entry.folder / entry.wheel.filename) == entry.wheel.sha256
