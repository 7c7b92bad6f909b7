"""Code generators for GPUs and other devices; a loop program bound to threads becomes kernels,
written in a dialect of C, and a function of the host that launches them.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.codegen.device.exported_names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="exported_names")
