"""Analyses of Relay programs, without changing them.

Names follow `tvm.relay.analysis`. `get_calibration_data` runs programs: it stands on a higher floor
and is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.relay.analysis.names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="names")
