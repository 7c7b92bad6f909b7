"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
from ekiden.runtime.late import names_in
from ekiden.tir import texts as texts
from ekiden.tir.distinct import distinct as distinct

if TYPE_CHECKING:
    from ekiden.tir.names import *  # noqa: F403
else:
    __getattr__, __dir__ = names_in("ekiden.tir.names")
