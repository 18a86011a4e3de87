"""HTTP as the user's pip is configured for it: certificates, proxy, trusted hosts, time limits."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.util.retry import Retry

from spark_build import __version__
from spark_build.errors import HostError
from spark_build.sources.pipconfig import PipConfig

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
    """Trusts the system's certificates too, as pip does, not only those shipped with requests."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **kwargs)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=ssl.create_default_context(), **kwargs)


class _Unverified(HTTPAdapter):
    """For hosts that the user told pip to trust; a redirect elsewhere is verified again."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["verify"] = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureRequestWarning)  # the user decided so
            return super().send(request, *args, **kwargs)


class Session(requests.Session):
    """A session under pip's settings; its requests need no further arguments."""

    def __init__(self, config: PipConfig, *, retries: int | None = None) -> None:
        """`retries`: instead of pip's number. Raises HostError when a certificate file is missing."""
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
        """Hosts that pip was told to trust go unverified, with or without credentials in the URL."""
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
        """pip's settings win over REQUESTS_CA_BUNDLE and the proxy variables, as in pip."""
        if self.config.proxy:
            proxies = {"http": self.config.proxy, "https": self.config.proxy}
        if self.authorities:
            verify = self.authorities
        return super().merge_environment_settings(url, proxies, stream, verify, cert)

    def ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, stream: bool = False
    ) -> requests.Response:
        """One request; follows redirects, raises NETWORK_ERRORS, never for an HTTP status."""
        return self.request(
            method,
            url,
            headers=dict(headers or {}),
            stream=stream,
            timeout=self.config.timeout or None,
            allow_redirects=True,
        )


def _present(option: str, place: str) -> str:
    if not place:
        return ""
    path = Path(place).expanduser()
    if not path.exists():
        raise HostError(
            f"pip's setting {option} names {path}, which does not exist",
            hint="python -m pip config debug   # shows which file or variable sets it",
        )
    return str(path)


def host_of(url: str) -> str:
    """What may be shown of a URL: host and port, the path of a file: URL; never credentials."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return parts.netloc.rpartition("@")[2]
    return path_of(url)


def path_of(url: str) -> str:
    """The local path behind a file: URL; anything without a scheme is a path already."""
    return url2pathname(urlsplit(url).path) if url.startswith("file:") else url


def is_remote(url: str) -> bool:
    """Whether a URL needs the network."""
    return "://" in url and not url.startswith("file:")


def name_in(url: str) -> str:
    """The file name at the end of a URL; "" when there is none that could be written to disk."""
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return "" if name in (".", "..") or "/" in name or "\0" in name else name


def reason(error: Exception) -> str:
    """Why a request failed, in a few words."""
    text = f"{type(error).__name__}: {error}"
    for sign, meaning in _REASONS:
        if sign in text:
            return meaning
    return " ".join(text.split())[:160]
