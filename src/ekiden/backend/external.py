"""External compilers: who makes the kernels of functions that PartitionGraph cut out for them.

    def for_test(function):                  # a relay.Function with global_symbol
        def kernel(*tensors): ...            # the inputs, then the tensors it writes
        return kernel

    register_external("test", for_test)

An executable keeps what `External.compile` says, and has a kernel made of it where it is loaded.
`ekiden.byoc` is the road to engines that compile to bytes. Nothing here is used unless a module has
such functions: they are made by a user who annotates and partitions, never by default.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.extensions import note_extension
from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest
from ekiden.relay.expr import Function
from ekiden.runtime import Module, get_global_func, register_func
from ekiden.runtime.devices.engines import guarded, kept_for
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

Kernel = Callable[..., object]
"""What computes a function: called with its inputs and the tensors it writes."""
Codegen = Callable[[Function], Kernel]


@dataclass(frozen=True, slots=True)
class External:
    """A compiler: the text that an executable keeps of a function, made where that is compiled."""

    compile: Callable[[Function], str]


_EXTERNALS: dict[str, External] = {}


def register_external(compiler: str, codegen: Codegen) -> None:
    """Name the code generator of an external compiler; a later one takes its place.

    Executables that need it can be loaded from then on: they keep the functions, and have them
    compiled when they are loaded.
    """
    note_extension(codegen)

    def make(symbol: str, metadata: str) -> Kernel:
        """The kernel of a function that an executable keeps as JSON, compiled again on this
        machine.
        """
        function = load_json(kept_for(symbol, metadata))
        assert isinstance(function, Function)
        return guarded(compiler, symbol, codegen(function))

    register_func(f"ek.external.{compiler}", make, override=True)
    register_compiler(compiler, External(save_json))


def register_compiler(name: str, external: External) -> None:
    """Name a compiler; the global function ek.external.<name> makes kernels where it is loaded."""
    _EXTERNALS[name] = external


def _registered_as_in_tvm(compiler: str) -> bool:
    """Whether a global function relay.ext.<compiler> makes modules of functions: then `codegen` is
    that."""
    make = get_global_func(f"relay.ext.{compiler}", allow_missing=True)
    if make is None:
        return False

    def codegen(function: Function) -> Kernel:
        """The function of the symbol in the module that TVM's generator made. Raises CompileError
        where it gave something else.
        """
        symbol, made = str(function.attr("global_symbol")), make(function)
        if not isinstance(made, Module):
            given = type(made).__name__
            raise CompileError(f"relay.ext.{compiler}: it should give a module, got {given}")
        return made.get_function(symbol)

    register_external(compiler, codegen)
    return True


def is_external(function: Function) -> bool:
    """Whether a function is for an external compiler."""
    return function.attr("Compiler") is not None


def build_external(function: Function) -> tuple[str, list[str]]:
    """Have a function compiled; gives the name of what computes it, which is its own and a digest,
    as another program may have one of that name, and what an executable keeps of it: the compiler's
    name and a text.

    Raises CompileError when nobody is registered for its compiler.
    """
    compiler, symbol = str(function.attr("Compiler")), str(function.attr("global_symbol"))
    if compiler not in _EXTERNALS and not _registered_as_in_tvm(compiler):
        known = ", ".join(sorted(_EXTERNALS)) or "none is"
        raise CompileError(
            f"function {symbol!r} is for the external compiler {compiler!r}, which has no code "
            f"generator (registered: {known}); register one with backend.external."
            f"register_external, as the global function relay.ext.{compiler} or with "
            "byoc.register, or bring the function back with "
            "relay.transform.Inline() and DefuseOps()"
        )
    name = f"{symbol}_{structural_digest(function)[:12]}"
    return name, [compiler, _EXTERNALS[compiler].compile(function)]
