"""Relay-to-Relay passes: each file holds one pass and is named after it."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.relay.transform.names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="names")
