"""Format text for people: units, safe characters, no secrets, suggestions; canonical JSON for digests."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any


def format_duration(seconds: float) -> str:
    """Return a duration for people: "48 s", "3 min 12 s", "2 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_size(count: float) -> str:
    """Return a size for people: "17.4 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def format_quantity(value: float, unit: str) -> str:
    """Return a value with a fitting prefix: "62.4 TFLOP/s", "1.20 ms", "118 tokens/s"."""
    if unit == "s":
        for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= scale:
                return f"{three_digits(value / scale)} {name}"
        return f"{three_digits(value * 1e9)} ns"
    if unit in ("FLOP/s", "B/s", "B"):
        for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{three_digits(value / scale)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}".strip()


def three_digits(value: float) -> str:
    """Return a number with at least three significant digits, without a needless exponent."""
    if value == 0 or not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def format_flops(rate: float) -> str:
    """Return a rate in FLOP/s with one decimal: "641.2 TFLOP/s", "190.1 GFLOP/s"."""
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"


def printable(text: str, *, keep: str = "") -> str:
    """Return what a terminal can show: names and logs may hold anything, control codes included.

    All but printable characters and those of `keep` are escaped, ends of lines too.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


HIDDEN = "***"
_NAMES = (
    r"(?:tokens?|secrets?|passw(?:or)?d|passphrase|credentials?|authorization|cookie"
    r"|(?:api|access|private|signing|account|secret)[_-]?key|connection[_-]?string)"
)
# Patterns are text: to compile them at import would take a tenth of what --help takes.
_SECRET_NAME = rf"(?i)(?:^|[^a-z]){_NAMES}(?:[^a-z]|$)|{_NAMES}$"
# What GitHub, GitLab, Hugging Face, npm, PyPI, Slack, AWS and others make.
_TOKENS = (
    r"\b(?:gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|npm_\w{20,}"
    r"|pypi-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AKIA[0-9A-Z]{16}|sk-[\w-]{20,})"
)
# A JSON Web Token. A run of letters is looked at once, and not from each of its words.
_WITH_DOTS = r"(?<![\w-])(?=[\w-]++\.[\w-]{8,}+\.)([\w-]*?\b)eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*"
_RULES = (
    (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
    # A proxy without a scheme.
    (r"(?<![\w:/.-])(?<![\w.+-]\+)[\w.+-]+:[^\s:@/\"']+@(?=[\w.-])", f"{HIDDEN}@"),
    (r"(?i)([?&](?:sig|signature|x-amz-[\w-]+|key|code)=)[^&\s\"']+", rf"\1{HIDDEN}"),
    (r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=]\s*).*", rf"\1{HIDDEN}"),
    (r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}", rf"\1 {HIDDEN}"),
    (
        rf"(?i)({_NAMES}[\w.-]{{0,40}}[\"']?\s{{0,3}}[=:]\s{{0,3}})(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s&]+)",
        rf"\1{HIDDEN}",
    ),
    (rf"(?i)(--?{_NAMES})\s+\S+", rf"\1 {HIDDEN}"),
    (_TOKENS, HIDDEN),
    (_WITH_DOTS, rf"\1{HIDDEN}"),
)
_ADDRESSES = r"://([^\s\"'<>]+)"
_HOMES = r"(?<![\w.~-])/(home|Users)/[^/\s:\"',;]+"


def _without_user(address: str) -> str:
    """Return what follows a URL's scheme, without user and password."""
    authority = address.partition("/")[0]
    _, colon, rest = authority.partition(":")
    # An unescaped password may have @ and / in it; a port is a number.
    end = address.rfind("@") if colon and not rest.isdecimal() else authority.rfind("@")
    return address if end < 0 else HIDDEN + address[end:]


def scrub(text: str, *, home: str = "") -> str:
    """Return text without credentials; `home` becomes ~ and other users' homes are hidden."""
    # Word by word, so that the time grows with the text only.
    text = re.sub(
        _ADDRESSES, lambda found: "://".join(["", *map(_without_user, found[1].split("://"))]), text
    )
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    if home and home != "/":
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    return re.sub(_HOMES, rf"/\1/{HIDDEN}", text)


def scrub_value(value: Any, *, home: str = "") -> Any:
    """Return a JSON value with every text scrubbed, and values with secret names removed."""
    if isinstance(value, dict):
        return {
            scrub(str(name), home=home): HIDDEN
            if isinstance(inner, str) and re.search(_SECRET_NAME, str(name))
            else scrub_value(inner, home=home)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [scrub_value(inner, home=home) for inner in value]
    return scrub(value, home=home) if isinstance(value, str) else value


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ": did you mean 'onnx'?" when a known word is near this one, else ""."""
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return f": did you mean '{near[0]}'?" if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion like `nearest`, or all known words when none is near."""
    names = sorted(known)
    return nearest(word, names) or (f" (known: {', '.join(names)})" if names else "")


def canonical(value: Any) -> str:
    """Return JSON with one spelling per value: sorted keys, no spaces, no NaN."""
    import json

    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the hex sha256 of a value's canonical JSON; names of files may be no UTF-8."""
    import hashlib

    return hashlib.sha256(canonical(value).encode(errors="surrogatepass")).hexdigest()


def document(value: Any) -> bytes:
    """Return JSON for a file that is read by people, too."""
    import json

    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def render_template(name: str, **values: object) -> str:
    """Return spark_build/templates/NAME with the values filled in, escaped in an .html."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("spark_build"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(values)
