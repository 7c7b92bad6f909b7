"""Loop programs as Python text, in the style of TVMScript.

    from ekiden.tir.script import T

    @T.prim_func
    def add_one(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for i in range(128):
            with T.block("B"):
                vi = T.axis.spatial(128, i)
                B[vi] = A[vi] + 1.0

`add_one` is a PrimFunc; `add_one.script()` is its text and `from_source` reads it back.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.tir.script.builtins import I, T
    from ekiden.tir.script.decorator import ir_module, prim_func
    from ekiden.tir.script.parser import from_source

__all__ = ["I", "T", "from_source", "ir_module", "prim_func"]

# T and I are whole when the decorators are: those are names of theirs
if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {"decorator": "I T ir_module prim_func", "parser": "from_source"},
        registers=True,
    )
