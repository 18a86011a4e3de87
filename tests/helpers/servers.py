"""`wheelhouse serve` as a real process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.conftest import CLI


@dataclass(kw_only=True)
class Served:
    """A running server: its URLs, its process, what it logged."""

    url: str  # ends with a slash
    indexes: Mapping[str, str]
    process: subprocess.Popen[str]
    log: Path
    session: requests.Session = field(default_factory=requests.Session)

    def get(self, path: str, **headers: str) -> requests.Response:
        return self.ask("GET", path, **headers)

    def ask(self, method: str, path: str, **headers: str) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        verify = self.session.verify
        return self.session.request(
            method, self.url + path, headers=named, timeout=20, allow_redirects=False, verify=verify
        )

    def asked(self) -> list[str]:
        """The last part of each path that was asked for since `forget`."""
        return [
            path.rstrip("/").rpartition("/")[2]
            for path in re.findall(r'"\w+ (\S+) HTTP', self.log.read_text())
        ]

    def forget(self) -> None:
        self.log.write_text("")


@contextlib.contextmanager
def served(root: Path, *arguments: object, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serve the wheelhouse of a root on a free port; the server must end well on SIGTERM."""
    handle, name = tempfile.mkstemp(dir=root)
    command = [*CLI, "--root", str(root), "--json", "-v", "wheelhouse", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        # Appending, so that the log can be emptied while it is written.
        stderr=os.open(name, os.O_WRONLY | os.O_APPEND),
        text=True,
        env={**os.environ, **(env or {})},
    )
    os.close(handle)
    try:
        assert process.stdout is not None
        said = ""
        while not said.endswith("\n}\n"):
            line = process.stdout.readline()
            assert line, Path(name).read_text()
            said += line
        yield Served(**json.loads(said), process=process, log=Path(name))
    finally:
        if process.poll() is None:
            process.terminate()
        code = process.wait(timeout=30)
        process.communicate()
    assert code == 143, Path(name).read_text()
