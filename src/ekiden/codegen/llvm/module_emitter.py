"""Emit a lowered PrimFunc as the text of an LLVM module."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.llvm.builder import LlvmModule
from ekiden.codegen.llvm.debug_info import DebugInfo
from ekiden.codegen.llvm.expression import DemoteRegisterError
from ekiden.codegen.llvm.packed_entry import EntryEmitter
from ekiden.target import Target
from ekiden.target.features import WASM
from ekiden.target.triple import object_triple
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc

DATA_LAYOUTS = {WASM: "e-m:e-p:32:32-p10:8:8-p20:8:8-i64:64-i128:128-n32:64-S128-ni:1:10:20"}
"""Data layout of each architecture whose pointers differ from LLVM's default."""


def emit_function(func: PrimFunc, target: Target) -> str:
    """Emit LLVM IR of one function, exported as `func.name` with the signature of ek_packed."""
    return emit_module([func], target)


def emit_module(funcs: Sequence[PrimFunc], target: Target, debug: DebugInfo | None = None) -> str:
    """Emit one module with several functions, with debug information if lines are given."""
    module = LlvmModule(target, debug)
    for func in funcs:
        _add_function(module, func)
    head = [f"; for {target}", f'target triple = "{object_triple(target.triple)}"']
    if target.architecture in DATA_LAYOUTS:
        head.append(f'target datalayout = "{DATA_LAYOUTS[target.architecture]}"')
    frame = "all" if debug else "none"
    tail = f'attributes #0 = {{ nounwind "frame-pointer"="{frame}" }}\n'
    return module.text(head) + tail + (debug.text() if debug else "")


def _add_function(module: LlvmModule, func: PrimFunc) -> None:
    """Add a function; register buffers that cannot all be SSA values are demoted to the stack and
    the function is emitted again.
    """
    demoted: frozenset[Buffer] = frozenset()
    finished, named = len(module.functions), len(module.metadata)
    while True:
        try:
            return EntryEmitter(module, func.name, demoted).write(func)
        except DemoteRegisterError as error:
            demoted |= {error.buffer}
            # The failed attempt may have added outlined functions and alias scopes.
            del module.functions[finished:], module.metadata[named:]
