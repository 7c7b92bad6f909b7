"""Protection against cross-site request forgery and DNS rebinding: host names that a server answers
to, and origins that may call it.

A page can make a browser of this machine send requests to a server on the loopback interface: by
its address, which the browser marks with the page's origin, or by a name of the page's own that
resolves to 127.0.0.1 (DNS rebinding), which shows in `Host` alone.
"""

from __future__ import annotations

import ipaddress

from starlette.types import Scope

from ekiden.runtime.errors import RequestError
from ekiden.serve.config import ServerConfig

__all__ = ["PAGE_PATH", "OriginChecker", "reject_form_types", "require_json"]

Headers = dict[bytes, bytes]
MAX_CACHED_HOSTS = 256
"""Values of `Host` that need no second look."""
PAGE_PATH = "/"
"""The page that tries models, to which pages of other origins may lead."""
FORM_CONTENT_TYPES = frozenset({
    b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain",
})  # fmt: skip
"""The types that any page may send anywhere without asking first (the Fetch standard's
CORS-safelisted values)."""


class OriginChecker:
    """Checker of a request's Host and Origin headers, before any other processing."""

    def __init__(self, config: ServerConfig) -> None:
        self._pages = frozenset(name.lower() for name in config.allowed_hosts)
        self._names = self._pages | {"", "localhost", config.host.lower()}
        # Every browser says a host; what says none is another program.
        # With a token no page can ask anything; with TLS a name of its own fails the certificate.
        self._checks_host = not (config.token_file or config.tls_certificate or config.open)
        self._accepted: set[bytes] = set()

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raise RequestError ("forbidden") for a request to a foreign host name or from a page of
        another origin.
        """
        host = headers.get(b"host", b"")
        if self._checks_host and host not in self._accepted:
            self._check_host(host)
        if b"origin" in headers:
            self._check_origin(headers[b"origin"], host)
        elif (
            b"sec-fetch-site" in headers
            and headers[b"sec-fetch-site"] in (b"cross-site", b"same-site")
            and scope["path"] != PAGE_PATH
        ):
            # A GET too: an image's address can name a model, which is then loaded on demand.
            raise RequestError("requests of pages of other origins are refused", "forbidden")

    def _check_host(self, host: bytes) -> None:
        name = strip_port(host)
        if not self._is_own_host(name):
            raise RequestError(
                f"host '{name[:64]}': only localhost, IP addresses and the 'allowed_hosts' of"
                " serve.toml are answered",
                "forbidden",
            )
        if len(self._accepted) < MAX_CACHED_HOSTS:
            self._accepted.add(host)

    def _is_own_host(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)  # no name that could lead elsewhere tomorrow
        except ValueError:
            return False
        return True

    def _check_origin(self, origin: bytes, host: bytes) -> None:
        """Raise RequestError for a page of another origin."""
        _, _, origin_host = origin.partition(b"://")
        if origin_host and (origin_host == host or strip_port(origin_host) in self._pages):
            return
        raise RequestError("requests of pages of other origins are refused", "forbidden")


def strip_port(host: bytes) -> str:
    """Return the host name in a `Host` header: without the port, and an IPv6 address without its
    brackets.
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") <= 1 else text


def require_json(headers: Headers) -> None:
    """Require a JSON content type of a state-changing request."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RequestError(
            "content-type: application/json expected, as this changes state", "media"
        )


def reject_form_types(headers: Headers) -> None:
    """Reject the content types that a cross-origin page may send without a preflight request."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in FORM_CONTENT_TYPES:
        raise RequestError(
            "content-type: application/json or application/octet-stream expected, as this changes"
            " state",
            "media",
        )
