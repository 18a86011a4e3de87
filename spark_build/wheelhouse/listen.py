"""Listening for HTTP: the socket, TLS, signals; uvicorn does the rest."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from spark_build.errors import HostError, UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

TOKEN = "SPARK_BUILD_TOKEN"  # noqa: S105 - the variable's name
GRACE = 10  # seconds that running downloads get when the server is told to end
NEEDED = ("uvicorn>=0.30", "starlette>=1.0")  # as the extra `serve` says


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """PEM files; `key` may be in the certificate's file."""

    certificate: Path
    key: Path | None


def require_stack() -> None:
    """HostError, with the line to type, where the server's libraries are not installed."""
    try:
        import starlette  # noqa: F401 - is it there?
        import uvicorn  # noqa: F401 - is it there?
    except ImportError as error:
        wanted = " ".join(f"'{name}'" for name in NEEDED)
        raise HostError(
            f"serve needs uvicorn and starlette, and {error.name} is not installed",
            hint=f"{sys.executable} -m pip install {wanted}",
        ) from error


def check_tls(tls: Tls) -> None:
    """UsageError where the files are no certificate with its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no certificate with its key can be read: {error}",
            where=str(tls.certificate),
            hint="give PEM files: --certificate FILE --key FILE (a key without a password)",
        ) from error


def read_token(file: Path | None) -> str:
    """The token from a file, else from the environment; "" for none."""
    if file is None:
        token = os.environ.get(TOKEN, "")
        where = TOKEN
    else:
        token, where = file.read_text(errors="replace").strip(), str(file)
        if not token:
            raise UsageError("the token file is empty", where=where, hint=f"openssl rand -hex 16 > {file}")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError("a token is one line of visible ASCII characters", where=where)
    return token


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; HostError when the address is taken or not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise HostError(
            f"cannot listen on {host} port {port}: {error}",
            hint="choose another with --port N (0: any that is free)" if taken else "see: ip address",
        ) from error
    # Accepted connections inherit it. asyncio would not set it for this socket, and each answer of two
    # packets would wait 40 ms for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def serve(app: ASGIApp, listening: socket.socket, *, tls: Tls | None, verbose: bool) -> int:
    """Answer until a signal comes; returns its number. Running downloads get GRACE seconds to end."""
    import uvicorn

    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("uvicorn.error").addFilter(_tells)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="info" if verbose else "error",
        access_log=verbose,
        lifespan="off",
        ws="none",
        http="h11",  # bounds what it keeps of a request that never ends
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )

    class Server(uvicorn.Server):
        ended_by = 0

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # The base class raises the signal again afterwards, which here means an error.
            del frame
            self.force_exit = self.should_exit
            self.should_exit, self.ended_by = True, sig

    server = Server(config)
    signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[listening])
    return server.ended_by


def _tells(record: logging.LogRecord) -> bool:
    """Whether a line says something: not the traceback of a download that we cut off at the end."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
