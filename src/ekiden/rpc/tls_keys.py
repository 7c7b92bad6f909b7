"""Key files and the TLS connections they secure: mutual TLS, and a token bound to the channel.

A key file holds a private key, the certificate that belongs to it, and a secret of 32 bytes. Both
sides have the same file: each shows the certificate and takes no other, and proves with the secret
that it speaks on this very channel: what one connection carried is worth nothing on another.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
from pathlib import Path

from ekiden.rpc.errors import RPCError
from ekiden.runtime.files import PathName, check_folder, rewrite_os_errors
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Key", "is_loopback", "make_key", "wrap_client_socket", "wrap_server_socket"]

_BEGIN, _END = "-----BEGIN EKIDEN RPC SECRET-----", "-----END EKIDEN RPC SECRET-----"
_TOKEN_BYTES = 32
_TLS_HANDSHAKE_TIMEOUT_S = 10.0
"""How long a handshake may take."""


@dataclass(frozen=True, slots=True)
class Key:
    """Key file: its path for `ssl`, the certificate, and the secret."""

    path: Path
    certificate: str
    secret: bytes

    @staticmethod
    def read(path: PathName) -> Key:
        """Read a key file."""
        with rewrite_os_errors("read key", path):
            text = Path(path).read_text("ascii", "replace")
            mode = os.stat(path).st_mode
        # Anyone who can read the file can run code on every server that uses it.
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RPCError(f"read key '{path}': others may read it: chmod 600")
        secret = re.search(rf"{_BEGIN}\n([0-9a-f]{{64}})\n{_END}", text)
        certificate = re.search(
            r"-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n", text, re.DOTALL
        )
        if secret is None or certificate is None:
            raise RPCError(f"read key '{path}': it is no key file: ekiden rpc keygen makes one")
        return Key(Path(path), certificate[0], bytes.fromhex(secret[1]))

    def tls_context(self, side: ssl._SSLMethod) -> ssl.SSLContext:
        """Return a TLS 1.3 context that presents this certificate and accepts no other."""
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Devices have no stable names; the pinned certificate and the token identify the peer.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if side is ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # a session is not resumed
        context.load_cert_chain(self.path)
        context.load_verify_locations(cadata=self.certificate)
        return context

    def channel_token(self, stream: ssl.SSLSocket | ssl.SSLObject, side: bytes) -> bytes:
        """Return the token by which a side authenticates itself on this channel. Raises RPCError if
        the TLS library provides no channel binding.
        """
        # The token is bound to this channel, so it cannot be replayed through another one.
        binding = stream.get_channel_binding("tls-unique")
        if not binding:
            raise RPCError("rpc: the TLS library gives no channel binding")
        return hmac.digest(self.secret, side + b"\0" + binding, "sha256")


def make_key(path: PathName) -> None:
    """Write a new key file, readable only by its owner."""
    target = check_folder(path)
    if target.exists():
        raise FileExistsError(f"write key '{path}': it exists")
    program = shutil.which("openssl")
    if program is None:
        raise RPCError("make a key: the command openssl expected, which is not installed")
    with tempfile.TemporaryDirectory(prefix="ekiden-key-") as folder:
        files = [Path(folder, name) for name in ("key", "certificate")]
        command = [
            program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "3650", "-subj", "/CN=ekiden-rpc", "-keyout", str(files[0]),
            "-out", str(files[1]),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RPCError(f"make a key: openssl failed: {done.stderr.strip()}")
        text = "".join(file.read_text() for file in files)
    text += f"{_BEGIN}\n{secrets.token_hex(32)}\n{_END}\n"
    # Created with its final permissions: there is no moment at which others could open it.
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(text)


def wrap_client_socket(plain: socket.socket, key: Key) -> ssl.SSLSocket:
    """Secure a connection with TLS, as the client."""
    return _authenticate(plain, key, ssl.PROTOCOL_TLS_CLIENT, b"client", b"server")


def wrap_server_socket(plain: socket.socket, key: Key) -> ssl.SSLSocket:
    """Secure a connection with TLS, as the server."""
    return _authenticate(plain, key, ssl.PROTOCOL_TLS_SERVER, b"server", b"client")


def _authenticate(
    plain: socket.socket, key: Key, method: ssl._SSLMethod, mine: bytes, theirs: bytes
) -> ssl.SSLSocket:
    """Perform the TLS handshake and exchange tokens bound to the channel. A peer that fails learns
    nothing more.
    """
    plain.settimeout(_TLS_HANDSHAKE_TIMEOUT_S)
    try:
        stream = key.tls_context(method).wrap_socket(plain, server_side=mine == b"server")
    except OSError as error:
        plain.close()
        raise RPCError(f"rpc: no TLS with the other side: {error}") from error
    try:
        stream.sendall(key.channel_token(stream, mine))
        peer_token = _receive_all(stream, _TOKEN_BYTES)
    except OSError as error:
        stream.close()
        raise RPCError(f"rpc: the other side does not take this key: {error}") from error
    if not hmac.compare_digest(peer_token, key.channel_token(stream, theirs)):
        stream.close()
        raise RPCError("rpc: the other side has another key")
    return stream


def _receive_all(stream: ssl.SSLSocket, size: int) -> bytes:
    """Receive exactly `size` bytes, or fewer at the end of the stream."""
    received = b""
    while len(received) < size and (piece := stream.recv(size - len(received))):
        received += piece
    return received


def is_loopback(host: str) -> bool:
    """Return whether every address of a host is on this machine's loopback."""
    try:
        addresses = socket.getaddrinfo(host or "0.0.0.0", None)
    except OSError:
        return False
    return all(str(row[4][0]).startswith("127.") or row[4][0] == "::1" for row in addresses)
