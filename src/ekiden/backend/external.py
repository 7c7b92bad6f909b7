"""External compilers: who makes the kernels of functions that PartitionGraph cut out for them.

    def for_test(function):                  # a relay.Function with global_symbol
        def kernel(*tensors): ...            # the inputs, then the tensors it writes
        return kernel

    register_external("test", for_test)

Nothing here is used unless a module has such functions: they are made by a user who annotates and
partitions, never by default.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ekiden.ir.extensions import note_extension
from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest
from ekiden.relay.expr import Function
from ekiden.runtime import register_func
from ekiden.runtime.errors import CompileError

Codegen = Callable[[Function], Callable[..., object]]
"""Makes of a function what computes it: called with its inputs and the tensors it writes."""

_CODEGENS: dict[str, Codegen] = {}


def register_external(compiler: str, codegen: Codegen) -> None:
    """Name the code generator of an external compiler; a later one takes its place.

    Executables that need it can be loaded from then on: they keep the functions, and have them
    compiled when they are loaded.
    """
    note_extension(codegen)
    _CODEGENS[compiler] = codegen

    def make(symbol: str, metadata: str) -> Callable[..., object]:
        function = load_json(json.loads(metadata)["external"][symbol][1])
        assert isinstance(function, Function)
        return _CODEGENS[compiler](function)

    register_func(f"ek.external.{compiler}", make, override=True)


def is_external(function: Function) -> bool:
    """Whether a function is for an external compiler."""
    return function.attr("Compiler") is not None


def kept_form(function: Function) -> list[str]:
    """What an executable keeps of a function for an external compiler: that one's name, and the
    function.
    """
    return [str(function.attr("Compiler")), save_json(function)]


def build_external(function: Function) -> str:
    """Have a function compiled; gives the name of the global function that computes it: its own,
    and a digest, as another program may have one of that name.

    Raises CompileError when no code generator is registered for its compiler.
    """
    compiler, symbol = str(function.attr("Compiler")), str(function.attr("global_symbol"))
    if compiler not in _CODEGENS:
        known = ", ".join(sorted(_CODEGENS)) or "none is"
        raise CompileError(
            f"function {symbol!r} is for the external compiler {compiler!r}, which has no code "
            f"generator (registered: {known}); register one with backend.external."
            "register_external, or bring the function back with relay.transform.Inline() and "
            "DefuseOps()"
        )
    name = f"{symbol}_{structural_digest(function)[:12]}"
    register_func(name, _CODEGENS[compiler](function), override=True)
    return name
