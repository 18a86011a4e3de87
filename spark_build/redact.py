"""Text without secrets: crash reports and support bundles. It rather hides too much than too little."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
_NAMES = (
    r"(?:tokens?|secrets?|passw(?:or)?d|passphrase|credentials?|authorization|cookie"
    r"|(?:api|access|private|signing|account|secret)[_-]?key|connection[_-]?string)"
)
_SECRET_NAME = re.compile(rf"(?i)(?:^|[^a-z]){_NAMES}(?:[^a-z]|$)|{_NAMES}$")
# What GitHub, GitLab, Hugging Face, npm, PyPI, Slack, AWS and others make.
_TOKENS = (
    r"\b(?:gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|npm_\w{20,}"
    r"|pypi-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{16}|sk-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
        (r"(?<![\w:/.-])[\w.+-]+:[^\s:@/\"']+@(?=[\w.-])", f"{HIDDEN}@"),  # a proxy without a scheme
        (r"(?i)([?&](?:sig|signature|x-amz-[\w-]+|key|code)=)[^&\s\"']+", rf"\1{HIDDEN}"),
        (r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=]\s*).*", rf"\1{HIDDEN}"),
        (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {HIDDEN}"),
        (
            rf"(?i)({_NAMES}[\w.-]{{0,40}}[\"']?\s{{0,3}}[=:]\s{{0,3}})(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s&]+)",
            rf"\1{HIDDEN}",
        ),
        (rf"(?i)(--?{_NAMES})\s+\S+", rf"\1 {HIDDEN}"),
        (_TOKENS, HIDDEN),
    )
)
_ADDRESSES = re.compile(r"://([^\s\"'<>]+)")
_HOMES = re.compile(r"(?<![\w.~-])/(home|Users)/[^/\s:\"',;]+")


def _without_user(address: str) -> str:
    """What follows a scheme, without user and password."""
    authority = address.partition("/")[0]
    _, colon, rest = authority.partition(":")
    # An unescaped password may have @ and / in it; a port is a number.
    end = address.rfind("@") if colon and not rest.isdecimal() else authority.rfind("@")
    return address if end < 0 else HIDDEN + address[end:]


def scrub(text: str, *, home: str = "") -> str:
    """Text without credentials; `home` becomes ~ and the names of other homes are hidden."""
    # Word by word, so that the time grows with the text only.
    text = _ADDRESSES.sub(lambda found: "://".join(["", *map(_without_user, found[1].split("://"))]), text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    if home and home != "/":
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    return _HOMES.sub(rf"/\1/{HIDDEN}", text)


def scrub_value(value: Any, *, home: str = "") -> Any:
    """The same for what JSON knows: every text in it, and all below a name that says secret."""
    if isinstance(value, dict):
        return {
            scrub(str(name), home=home): HIDDEN
            if isinstance(inner, str) and _SECRET_NAME.search(str(name))
            else scrub_value(inner, home=home)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub_value(inner, home=home) for inner in value]
    return scrub(value, home=home) if isinstance(value, str) else value
