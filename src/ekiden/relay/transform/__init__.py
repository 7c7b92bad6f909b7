"""The passes over Relay: one file, one pass, one name."""

from typing import TYPE_CHECKING

from ekiden.runtime.late import names_in

if TYPE_CHECKING:
    from ekiden.relay.transform.names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_in("ekiden.relay.transform.names")
