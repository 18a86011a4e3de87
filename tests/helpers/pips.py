"""pip configurations of tests, and indexes made of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from spark_build.sources.http import PipConfig
from spark_build.sources.simple_api import Indexes
from tests.helpers.webserver import sha256

NAME = "demo_pkg-1.0.tar.gz"
DATA = b"not really an archive, nobody looks inside"
SHA = sha256(DATA)
# Switches off what the machine's own /etc/pip.conf may say: an empty value in a stronger file.
BLANK = "index-url =\nextra-index-url =\nfind-links =\nno-index =\ncert =\nproxy =\ntrusted-host =\n"


def isolate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip.conf in `folder` that is the only thing that configures pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    path = folder / "pip.conf"
    path.write_text(f"[global]\n{BLANK}")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    monkeypatch.setenv("HOME", str(folder))
    return path


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def quick(**options: object) -> PipConfig:
    """Settings that do not try again, so that failing tests of the network are fast."""
    return PipConfig(**{"retries": 0, "timeout": 5.0} | options)  # type: ignore[arg-type] # PipConfig's fields


def on(*urls: str, links: tuple[str, ...] = (), **options: object) -> Indexes:
    return Indexes(urls=urls, links=links, config=quick(**options))
