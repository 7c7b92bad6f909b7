"""Address of an RPC tracker on the command line."""

from __future__ import annotations

from ekiden.runtime.errors import InputError

__all__ = ["tracker_host_port_from_cli"]

DEFAULT_TRACKER_PORT = 9090


def tracker_host_port_from_cli(rpc_tracker_str: str | None) -> tuple[str | None, int | None]:
    """Parse "HOST:PORT" or "HOST"; an empty text has neither. Raises InputError."""
    if not rpc_tracker_str:
        return None, None
    host, _, port = rpc_tracker_str.partition(":")
    if port and not port.isdigit():
        raise InputError(f"tvmc: --rpc-tracker: HOST:PORT expected, got '{rpc_tracker_str}'")
    return host or None, int(port or DEFAULT_TRACKER_PORT)
