"""Who may ask `serve`, and for what length of path."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST = 800  # characters of a path


class Guard:
    """Lets through who says the token: as the password of basic authentication, or as a bearer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 without the token, 404 to endless paths; else hand the request on."""
        app = self.app
        said = Headers(scope=scope).get("authorization", "")
        if self.token and not bears(said, self.token):
            challenge = {"WWW-Authenticate": 'Basic realm="wheelhouse", charset="UTF-8"'}
            app = PlainTextResponse("say the token as the password\n", 401, headers=challenge)
        elif len(scope["path"]) > LONGEST:
            app = PlainTextResponse("too long a path\n", 404)
        await app(scope, receive, send)


def bears(authorization: str, token: str) -> bool:
    """Whether an Authorization header says the token; in constant time."""
    scheme, _, said = authorization.strip().partition(" ")
    said = said.strip()
    if scheme.lower() == "basic":
        try:
            said = base64.b64decode(said, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(said.encode(), token.encode())
