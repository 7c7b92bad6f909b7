"""Kernels by families: which loops compute a group of tensor expressions, chosen by the tag of the
group's anchor.
"""

from typing import TYPE_CHECKING

from ekiden.runtime.late import names_in

if TYPE_CHECKING:
    from ekiden.kernels.names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_in("ekiden.kernels.names")
