"""The tags of a repository on a server."""

from __future__ import annotations

import io
import re
from pathlib import Path

from spark_build.errors import SourceError
from spark_build.sources.gitnet import Remote, UnavailableError
from spark_build.sources.giturl import BadAddressError, check_address, is_local, shown

_TAG = re.compile(r"([0-9a-f]{40})\trefs/tags/(.+?)(\^\{\})?")


def tags(url: str) -> dict[str, str]:
    """All tags with the full commit that each names. Raises SourceError when nobody answers."""
    log = io.BytesIO()  # `ask` returns the last lines only
    try:
        check_address(url)
        remote = Remote(
            url=url,
            local=is_local(url),
            mirror=Path("/nonexistent"),  # no repository of ours takes part
            keep=(),
            log=log,
            progress=None,
            pause=lambda _: None,  # a person waits
        )
        remote.ask("ls-remote", "--tags")
    except (BadAddressError, UnavailableError) as error:
        raise SourceError(f"cannot read the tags of {shown(url)}: {error}") from error
    except SourceError as error:
        # What git itself said is in brackets; the sentence before says what it means.
        raise SourceError(
            error.message.partition(" (")[0], hint=f"git ls-remote --tags {shown(url)}"
        ) from error
    direct: dict[str, str] = {}
    peeled: dict[str, str] = {}
    for found in filter(None, map(_TAG.fullmatch, log.getvalue().decode(errors="replace").splitlines())):
        (peeled if found[3] else direct)[found[2]] = found[1]
    return direct | peeled  # an annotated tag is an object of its own, which names the commit
