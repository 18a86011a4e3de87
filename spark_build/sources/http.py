"""HTTP sessions, with pip's configuration of indexes and certificates."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.util.retry import Retry

from spark_build import __version__
from spark_build.errors import HostError, SourceError
from spark_build.paths import path_given

BUSY = (408, 429, 500, 502, 503, 504, 520, 524, 527)  # worth another try
NETWORK_ERRORS = (requests.RequestException, HTTPError)
Response = requests.Response

_REASONS = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
    ("NameResolutionError", "the name cannot be resolved"),
    ("ProxyError", "the proxy does not answer"),
    ("SSLError", "no secure connection"),
    ("Connection refused", "connection refused"),
    ("Network is unreachable", "the network is unreachable"),
    ("No route to host", "no route to it"),
    ("timed out", "no answer in time"),
    ("TimeoutError", "no answer in time"),
    ("IncompleteRead", "the connection broke off"),
    ("Connection reset", "the connection broke off"),
    ("RemoteDisconnected", "the connection broke off"),
    ("Connection aborted", "the connection broke off"),
)


class _SystemTrust(HTTPAdapter):
    """An adapter that also trusts the system's certificates, as pip does."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **kwargs)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=ssl.create_default_context(), **kwargs)


class _Unverified(HTTPAdapter):
    """An adapter for the user's trusted hosts; a redirect to another host is verified."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["verify"] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)  # the user decided so
            return super().send(request, *args, **kwargs)


class Session(requests.Session):
    """A session with pip's settings; its requests need no further arguments."""

    def __init__(self, config: PipConfig, *, retries: int | None = None) -> None:
        """Use `retries` in place of pip's number. Raises HostError for a missing certificate file."""
        super().__init__()
        self.config = config
        self.headers["User-Agent"] = f"spark-build/{__version__}"
        self.cert = _present("client-cert", config.client_cert) or None
        self.authorities = _present("cert", config.cert)
        retry = Retry(
            total=config.retries if retries is None else retries,
            backoff_factor=0.25,
            status_forcelist=BUSY,
            raise_on_status=False,
            respect_retry_after_header=False,  # a server may ask for hours
        )
        self.mount("https://", (HTTPAdapter if config.cert else _SystemTrust)(max_retries=retry))
        self.mount("http://", HTTPAdapter(max_retries=retry))
        self.unverified = _Unverified(max_retries=retry)

    def get_adapter(self, url: str) -> BaseAdapter:
        """Return the adapter for a URL; trusted hosts go unverified, with or without credentials."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2].lower()
        plain = host.removesuffix(f":{parts.port}") if parts.port else host
        if parts.scheme == "https" and not {host, plain}.isdisjoint(self.config.trusted_hosts):
            return self.unverified
        return super().get_adapter(url)

    def merge_environment_settings(
        self,
        url: str | bytes | None,
        proxies: MutableMapping[str, str] | None,
        stream: bool | None,
        verify: bool | str | None,
        cert: str | tuple[str, str] | None,
    ) -> Any:
        """Prefer pip's settings to REQUESTS_CA_BUNDLE and proxy variables, as pip does."""
        if self.config.proxy:
            proxies = {"http": self.config.proxy, "https": self.config.proxy}
        if self.authorities:
            verify = self.authorities
        return super().merge_environment_settings(url, proxies, stream, verify, cert)

    def ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, stream: bool = False
    ) -> requests.Response:
        """Send one request, follow redirects; raises NETWORK_ERRORS, never for an HTTP status."""
        try:
            return self.request(
                method,
                url,
                headers=dict(headers or {}),
                stream=stream,
                timeout=self.config.timeout or None,
                allow_redirects=True,
            )
        except requests.RequestException:
            raise
        except ValueError as error:  # of urllib.parse: a redirect to what is no address
            raise requests.exceptions.InvalidURL(f"it names a bad address: {error}") from error


def _present(option: str, place: str) -> str:
    if not place:
        return ""
    path = path_given(place, f"pip's setting {option}")
    if not path.exists():
        raise HostError(
            f"pip's setting {option} names {path}, which does not exist",
            hint="python -m pip config debug   # shows which file or variable sets it",
        )
    return str(path)


def host_of(url: str) -> str:
    """Return what may be shown of a URL: host and port, the path of a file: URL; no credentials."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return parts.netloc.rpartition("@")[2]
    return path_of(url)


def path_of(url: str) -> str:
    """Return the local path of a file: URL; text without a scheme is a path already."""
    return url2pathname(urlsplit(url).path) if _is_file(url) else url


def is_remote(url: str) -> bool:
    """Return whether a URL needs the network."""
    return "://" in url and not _is_file(url)


def _is_file(url: str) -> bool:
    return url[:5].lower() == "file:"


def name_in(url: str) -> str:
    """Return the file name at the end of a URL; "" when there is none that is safe on disk."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return "" if name in (".", "..") or "/" in name or "\0" in name else name


def network_reason(error: Exception) -> str:
    """Return a short reason for a failed request."""
    text = f"{type(error).__name__}: {error}"
    for sign, meaning in _REASONS:
        if sign in text:
            return meaning
    return " ".join(text.split())[:160]


# As in pip: a command's own section beats [global], a variable beats both. What `pip download`
# would use comes first, because that is what stands in for it here.
SECTIONS = ("global", "install", "download", ":env:")
ALIASES = {"pypi-url": "index-url", "default-timeout": "timeout"}
OPTIONS = frozenset({
    "index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert", "proxy", "timeout",
    "trusted-host", "retries", *ALIASES,
})  # fmt: skip
YES = frozenset({"y", "yes", "t", "true", "on", "1"})
NO = frozenset({"n", "no", "f", "false", "off", "0"})


@dataclass(frozen=True, kw_only=True, slots=True)
class PipConfig:
    """Package indexes of pip and how to reach them; "" as `index_url` means pip's default."""

    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str = ""  # path of the only certificates to trust
    client_cert: str = ""
    proxy: str = ""
    timeout: float = 15.0  # seconds without an answer, pip's own default
    retries: int = 3
    trusted_hosts: tuple[str, ...] = ()  # host or host:port


def pip_config(settings: Mapping[str, str]) -> PipConfig:
    """Return the configuration of pip's settings by key ("global.index-url").

    Raises SourceError for a value that pip would refuse too.
    """
    values: dict[str, str] = {}
    for section in SECTIONS:
        for key, value in settings.items():
            owner, _, option = key.partition(".")
            # An empty value leaves what a weaker section says, as in pip.
            if owner == section and value:
                values[ALIASES.get(option, option)] = value
    return PipConfig(
        index_url=values.get("index-url", "").strip(),
        extra_index_urls=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(values.get("find-links", "").split()),
        no_index=_truth(values.get("no-index", "no")),
        cert=values.get("cert", ""),
        client_cert=values.get("client-cert", ""),
        proxy=values.get("proxy", ""),
        timeout=_number("timeout", values.get("timeout", "15")),
        retries=int(_number("retries", values.get("retries", "3"))),
        trusted_hosts=tuple(host.lower() for host in values.get("trusted-host", "").split()),
    )


def _truth(value: str) -> bool:
    if value.lower() in YES:
        return True
    if value.lower() in NO:
        return False
    raise _refused("no-index", value, "neither yes nor no")


def _number(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise _refused(option, value, "not a number") from None
    if not 0 <= number < 1e9:
        raise _refused(option, value, "out of range")
    return number


def _refused(option: str, value: str, problem: str) -> SourceError:
    return SourceError(
        f"pip's setting {option} = {value!r} is {problem}",
        hint="python -m pip config debug   # shows which file or variable sets it",
    )
