"""`wheelhouse serve`: the wheels over HTTP, for other nodes."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.wheelhouse.server import Tls

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any free one."
)
@click.option("--generation", type=click.IntRange(1), help="This one only, of the selected view.")
@click.option("--certificate", type=FILE, help="Serve over TLS with this PEM file.")
@click.option("--key", type=FILE, help="The certificate's key, where it is in another file.")
@click.option("--token-file", type=FILE, help="Ask clients for the token in FILE (or in SPARK_BUILD_TOKEN).")
@shared
def serve(
    options: Options,
    host: str,
    port: int,
    generation: int | None,
    certificate: Path | None,
    key: Path | None,
    token_file: Path | None,
) -> int:
    """Serve the wheels to other nodes, for pip, uv and people, until it is interrupted.

    Without --generation: all views, and what is published meanwhile.
    """
    from spark_build.wheelhouse import server

    server.require_stack()
    from spark_build.wheelhouse.server import Shelf, application

    if key and not certificate:
        raise click.UsageError("--key needs --certificate")
    tls = server.Tls(certificate=certificate, key=key) if certificate else None
    if tls:
        server.check_tls(tls)
    token = server.read_token(token_file)
    home = options.home()
    only = (options.setting().view.name, generation) if generation else None
    shelf = Shelf(views=home.views, store=home.store, only=only, token=token)
    shelf.prepare()
    with server.bind(host, port) as listening:
        _warn(host, tls, token)
        _announce(options, shelf.names(), listening, host, tls=tls, token=token)
        ended_by = server.serve(application(shelf), listening, tls=tls, verbose=options.verbosity > 0)
    if options.verbosity >= 0:
        click.echo(f"{signal.Signals(ended_by).name}: ended", err=True)
    return 128 + ended_by


def _warn(host: str, tls: Tls | None, token: str) -> None:
    from spark_build.wheelhouse.server import is_loopback

    if is_loopback(host):
        return
    if not token:
        click.echo(
            "warning: everyone who reaches this port can read the wheels; --token-file FILE asks for a token",
            err=True,
        )
    if tls is None:
        sent = "the token and what is sent" if token else "what is sent"
        click.echo(
            f"warning: without TLS everyone on the way can read {sent}, and change it; "
            "--certificate FILE --key FILE encrypts it",
            err=True,
        )


def _announce(
    options: Options, views: list[str], listening: socket.socket, host: str, *, tls: Tls | None, token: str
) -> None:
    from spark_build.wheelhouse.server import install_lines, is_loopback

    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - only compared
    shown = f"[{shown}]" if ":" in shown else shown
    root = f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}"
    indexes = {view: f"{root}/{view}/simple/" for view in views}
    if options.json:
        render.print_json({"url": f"{root}/", "indexes": indexes})
    elif options.verbosity >= 0:
        print(f"serving {root}/ (a page for people; Ctrl-C ends)")
        trusted = "" if tls or is_loopback(shown) else shown
        for view in views:
            print(f"{view}:")
            for line in install_lines(indexes[view], token=bool(token), trusted=trusted):
                print(f"  {line}")
    # Nobody may wait for more before they see it.
    sys.stdout.flush()
