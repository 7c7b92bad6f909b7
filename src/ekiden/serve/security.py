"""Authentication of requests, and exposure checks: bearer tokens and certificates."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import ssl
from pathlib import Path

from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve.config import ServerConfig

__all__ = ["TokenStore", "check_exposure", "exposure_warnings", "tls_context"]

MIN_TOKEN_LENGTH = 16
"""Letters of the shortest token."""


class TokenStore:
    """Bearer tokens of a server, stored as digests."""

    def __init__(self, path: str, control_path: str, allow_control: bool = False) -> None:
        """Read token files, one token per line; an empty path means none. With `allow_control`
        those who may ask may also load and unload, where there are no tokens at all. Raises
        ServeError.
        """
        self._control = _read_token_file(control_path)
        self._all = _read_token_file(path) + self._control if path else []
        self._allow_control = allow_control

    def check(self, header: bytes) -> None:
        """Raise RequestError for a request without a valid token, if one is required."""
        if self._all and not _matches_digest(header, self._all):
            raise RequestError("a bearer token expected", "unauthenticated")

    def check_control(self, header: bytes) -> None:
        """Raise RequestError ("forbidden") unless the request may load and unload models."""
        if self._control or self._all:
            if not _matches_digest(header, self._control):
                raise RequestError("this token may not load or unload", "forbidden")
        elif not self._allow_control:
            raise RequestError(
                "loading and unloading need a token of --control-token-file, or a server on the"
                " loopback interface with --allow-control",
                "forbidden",
            )


def _matches_digest(header: bytes, digests: list[bytes]) -> bool:
    """Return whether a bearer token matches one of the digests, in constant time."""
    scheme, _, token = header.partition(b" ")
    digest = hashlib.sha256(token.strip()).digest()
    matches = [
        hmac.compare_digest(digest, known_digest) for known_digest in digests
    ]  # all: no time tells which
    return scheme.lower() == b"bearer" and any(matches)


def _read_token_file(path: str) -> list[bytes]:
    if not path:
        return []
    try:
        lines = Path(path).read_bytes().split()
    except OSError as error:
        raise ServeError(f"tokens '{path}': {(error.strerror or '').lower()}") from None
    if not lines or min(map(len, lines)) < MIN_TOKEN_LENGTH:
        raise ServeError(f"tokens '{path}': tokens of at least {MIN_TOKEN_LENGTH} letters expected")
    # Digests have one length, which the constant-time comparison requires.
    return [hashlib.sha256(line).digest() for line in lines]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(config: ServerConfig) -> None:
    """Raise ServeError for a server that would listen beyond loopback without authentication or
    TLS.
    """
    is_local = is_loopback(config.host)
    if not (is_local or config.token_file or config.tls_client_ca or config.open):
        raise ServeError(
            f"host '{config.host}': others could reach the server: give a token_file, a "
            f"tls_client_ca, or say --open"
        )
    if config.allow_control and not is_local:
        raise ServeError(
            f"host '{config.host}': allow_control is for the loopback interface: give a"
            f" control_token_file"
        )
    if config.allow_control and (config.token_file or config.control_token_file):
        raise ServeError("allow_control: not beside tokens: give a control_token_file alone")


def exposure_warnings(config: ServerConfig) -> str:
    """Return a warning about what a server allows everyone who can reach it; empty if it requires a
    token or certificate, or only this machine can reach it.
    """
    if is_loopback(config.host) or config.token_file or config.tls_client_ca:
        return ""
    control = "with a control token" if config.control_token_file else "nobody may"
    return (
        "everybody who reaches this address may run models, read and begin sequences, ask models"
        " of text, list models and read metrics, by any name of the host; to load and unload: "
        + control
    )


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Return the TLS context of HTTP connections; None without TLS. Raises ServeError."""
    if not config.tls_certificate:
        if config.tls_key or config.tls_client_ca:
            raise ServeError("tls_certificate: it is missing, and tls_key or tls_client_ca is not")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Earlier versions are deprecated (RFC 8996).
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key or None)
        if config.tls_client_ca:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"tls_certificate '{config.tls_certificate}': {error}") from None
    return context
