"""C code generator: lowered loop programs to readable C11, and to object code through the system
compiler.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.codegen.c.exported_names import *  # noqa: F403
else:
    __getattr__, __dir__ = attach(__name__, {}, rest="exported_names")
