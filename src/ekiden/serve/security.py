"""Who may ask: bearer tokens and certificates."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import ssl
from pathlib import Path

from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve.config import ServerConfig

__all__ = ["Tokens", "check_exposure", "tls_context"]

LEAST_LENGTH = 16
"""Letters of the shortest token."""


class Tokens:
    """The tokens of a server. Only their digests are kept."""

    def __init__(self, path: str, control_path: str) -> None:
        """Files of tokens, one a line; an empty path is none. Raises ServeError."""
        self._all = _read(path) + _read(control_path)
        self._control = _read(control_path)
        if control_path and not path:
            raise ServeError("control_token_file: a token_file is needed too")

    def check(self, header: bytes) -> None:
        """Raises RequestError for a request without a token, where one is needed."""
        if self._all and not _is_among(header, self._all):
            raise RequestError("a bearer token expected", "unauthenticated")

    def check_control(self, header: bytes) -> None:
        """The same for what changes the server. Raises RequestError ("forbidden") for a token that
        may not."""
        if self._all and not _is_among(header, self._control):
            raise RequestError("this token may not load or unload", "forbidden")


def _is_among(header: bytes, digests: list[bytes]) -> bool:
    scheme, _, token = header.partition(b" ")
    found = hashlib.sha256(token.strip()).digest()
    matches = [hmac.compare_digest(found, each) for each in digests]  # all: no time tells which
    return scheme.lower() == b"bearer" and any(matches)


def _read(path: str) -> list[bytes]:
    if not path:
        return []
    try:
        lines = Path(path).read_bytes().split()
    except OSError as error:
        raise ServeError(f"tokens '{path}': {(error.strerror or '').lower()}") from None
    if not lines or min(map(len, lines)) < LEAST_LENGTH:
        raise ServeError(f"tokens '{path}': tokens of at least {LEAST_LENGTH} letters expected")
    return [hashlib.sha256(line).digest() for line in lines]


def check_exposure(config: ServerConfig) -> None:
    """Raises ServeError for a server that others could reach and nothing protects."""
    try:
        is_local = ipaddress.ip_address(config.host).is_loopback
    except ValueError:
        is_local = config.host == "localhost"
    if not (is_local or config.token_file or config.tls_client_ca or config.open):
        raise ServeError(
            f"host '{config.host}': others could reach the server: give a token_file, a "
            f"tls_client_ca, or say --open"
        )


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """What HTTP's connections are wrapped by; None for none. Raises ServeError."""
    if not config.tls_certificate:
        if config.tls_key or config.tls_client_ca:
            raise ServeError("tls_certificate: it is missing, and tls_key or tls_client_ca is not")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key or None)
        if config.tls_client_ca:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"tls_certificate '{config.tls_certificate}': {error}") from None
    return context
