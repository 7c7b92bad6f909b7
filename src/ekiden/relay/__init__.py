"""Relay, the functional graph IR: expressions, types, operators, passes, text format, interpreter.

Names stand where TVM's `relay` has them. Operators are `relay.op.add` and `relay.add` alike; what
compiles (`relay.build`, `relay.vm`, `relay.create_executor`) or imports (`relay.frontend`) stands
on higher floors and is loaded when it is first used.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.relay.names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="names")
