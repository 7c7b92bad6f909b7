"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach
from ekiden.tir import printer_hooks as printer_hooks
from ekiden.tir.alpha_renaming import distinct as distinct

if TYPE_CHECKING:
    from ekiden.tir.exported_names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="exported_names")
