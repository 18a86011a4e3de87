"""A farm of real processes on this machine: a scheduler, workers with roots of their own, a client's root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

from tests.conftest import Root
from tests.helpers import processes, recipe_roots
from tests.helpers.exports import make_key

SHORT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}
WAITING = 120.0  # seconds, for what another process is about to do


@dataclass(kw_only=True)
class Lab:
    """A folder with roots of the same recipes, a remote store, a certificate, and processes."""

    folder: Path
    client: Root
    address: str = ""
    logs: dict[str, Path] = field(default_factory=dict)

    @property
    def certificates(self) -> Path:
        return self.folder / "farm"

    def roots(self, *names: str) -> list[Root]:
        """Roots of the same recipes in which nothing was built: each has a key, all trust all."""
        keys = self.folder / "keys"
        keys.mkdir(exist_ok=True)
        trusted = [f"--trust={name}={make_key(keys, name)}.pub" for name in names]
        self.client.json("remotes", "add", "lab", str(self.remote), *trusted)
        made = [replace(self.client, folder=self.folder / name) for name in names]
        for root in made:
            shutil.copytree(self.client.folder / "recipes", root.folder / "recipes", dirs_exist_ok=True)
            words = [
                "remotes",
                "add",
                "lab",
                str(self.remote),
                "--push",
                "--sign",
                str(keys / root.folder.name),
            ]
            root.json(*words, *trusted)
        return made

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    def start(
        self,
        name: str,
        root: Root,
        *words: str,
        before: tuple[str, ...] = (),
        certificates: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command with its output in a file."""
        self.logs[name] = self.folder / f"{name}.log"
        where = ("--certificates", str(certificates or self.certificates))
        command = [*before, *root.command("farm", *words, *where)]
        with self.logs[name].open("wb") as log:
            return processes.start(command, env={**root.environment(), **SHORT}, stdout=log, stderr=log)

    def said(self, name: str) -> str:
        return self.logs[name].read_text(errors="replace")

    def scheduler(self, name: str = "scheduler") -> subprocess.Popen[bytes]:
        """Start a scheduler, at the address of the last one if there was one."""
        port = self.address.rpartition(":")[2] or "0"
        started = self.start(name, self.client, "scheduler", "--host", "127.0.0.1", "--port", port)
        until(lambda: "scheduler is at tls://" in self.said(name), lambda: self.said(name))
        self.address = re.findall(r"tls://\S+", self.said(name))[0]
        return started

    def workers(self, *roots: Root, before: tuple[str, ...] = ()) -> list[subprocess.Popen[bytes]]:
        """Start workers and wait until they work for the scheduler."""
        started = [self.start(one.folder.name, one, "worker", self.address, before=before) for one in roots]
        said = [self.folder / f"{one.folder.name}.log" for one in roots]
        until(
            lambda: all("works for" in log.read_text() for log in said), lambda: [*map(Path.read_text, said)]
        )
        return started

    def words(self, *recipes: str) -> list[str]:
        """What a client types."""
        where = ["--farm", self.address, "--certificates", str(self.certificates)]
        return ["--json", "build", *recipes, "--no-closure", *where]

    def share(self) -> None:
        """Have the client push, and trust itself: what workers of its machine need."""
        key = make_key(self.folder, "me")
        self.client.json("remotes", "add", "lab", str(self.remote), "--push", "--sign", str(key))
        self.client.json("wheelhouse", "trust", "add", "me", f"{key}.pub")

    def build(self, *recipes: str, where: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a client in a process of its own, of this farm or of the one at `where`."""
        words = ["--json", "build", *recipes, "--no-closure", *where] if where else self.words(*recipes)
        return processes.start(
            self.client.command(*words),
            env={**self.client.environment(), **SHORT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def make(folder: Path, recipes: Mapping[str, str], needs: Mapping[str, str] | None = None) -> Lab:
    """A lab with these recipes; nobody works in it yet."""
    client = recipe_roots.make(folder, recipes, needs, folder="client")
    lab = Lab(folder=folder, client=replace(client, env=SHORT))
    lab.remote.mkdir()
    client.json("farm", "init", str(lab.certificates))
    return lab


def held(token: str) -> str:
    """What a recipe does that starts a program of this name, and waits until `release`."""
    return f"""
import time

def work():
    child = subprocess.Popen(["sleep", "{token}"])
    while not os.path.exists("../go-on"):
        time.sleep(0.05)
    child.kill()
    child.wait()
"""


def building(root: Root, recipe: str) -> bool:
    """Whether a root builds a recipe now, or did until it was killed."""
    return any(root.folder.glob(f"build/{recipe}/*/build-started"))


def release(root: Root, recipe: str) -> None:
    """Let a held build go on."""
    for tree in root.folder.glob(f"build/{recipe}/*/src"):
        (tree.parent / "go-on").touch()


def until(true: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WAITING
    while not true():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def built_by(root: Root) -> set[str]:
    """Names of the recipes that were built in a root, not imported."""
    rows = (
        root.json("wheelhouse", "list")["wheels"] if (root.folder / "wheelhouse" / "views").exists() else []
    )
    return {row["name"] for row in rows if row["origin"] == "built"}


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process takes connections, with their ports."""
    links = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [
        line
        for name in ("tcp", "tcp6")
        if (table := Path(f"/proc/{pid}/net/{name}")).exists()
        for line in table.read_text().splitlines()[1:]
    ]
    rows = [line.split() for line in lines]
    mine = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]
    return {(_address(one), int(port, 16)) for one, port in mine}


def _address(text: str) -> str:
    """An address as the kernel's tables have it: words of four bytes, each the other way round."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    return str(ip_address(b"".join(words)))


def commands_with(text: str) -> list[int]:
    """Processes whose command line has this text."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()  # in the pattern it fails for one that ends meanwhile
        except OSError:
            continue
        if text.encode() in words and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found
