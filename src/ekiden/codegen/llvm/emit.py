"""A lowered PrimFunc to the text of an LLVM module."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.llvm.builder import Module
from ekiden.codegen.llvm.debug import DebugLines
from ekiden.codegen.llvm.entry import EntryEmitter
from ekiden.codegen.llvm.expression import DemoteRegisterError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc


def emit(func: PrimFunc, target: Target) -> str:
    """LLVM IR of one function, exported as `func.name` with the signature of ek_packed.

    Symbolic dimensions must be bound by a plain dimension of a param. Raises InternalError for a
    form that lowering must have removed.
    """
    return emit_all([func], target)


def emit_all(funcs: Sequence[PrimFunc], target: Target, debug: DebugLines | None = None) -> str:
    """One module with several functions; with debug information, if lines are given."""
    module = Module(target, debug)
    for func in funcs:
        _write(module, func)
    head = [f"; for {target}", f'target triple = "{target.triple}"']
    frame = "all" if debug else "none"
    tail = f'attributes #0 = {{ nounwind "frame-pointer"="{frame}" }}\n'
    return module.text(head) + tail + (debug.text() if debug else "")


def _write(module: Module, func: PrimFunc) -> None:
    """Add a function; one whose register buffers cannot all be SSA values is written again with
    those on the stack."""
    demoted: frozenset[Buffer] = frozenset()
    finished = len(module.functions)
    while True:
        try:
            return EntryEmitter(module, func.name, demoted).write(func)
        except DemoteRegisterError as found:
            demoted |= {found.buffer}
            del module.functions[finished:]
