"""Kernel families: schedules and builders for fused groups of tensor expressions, selected by the
tag of the group's anchor.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.kernels.kernel_selection import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="kernel_selection")
