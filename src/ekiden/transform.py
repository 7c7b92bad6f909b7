"""Passes of modules and the context they run under, at TVM's place."""

from ekiden.ir.transform import (
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    PassInfo,
    PassInstrument,
    PrintIR,
    Sequential,
    module_pass,
)

__all__ = [
    "FunctionPass",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PrintIR",
    "Sequential",
    "module_pass",
]
